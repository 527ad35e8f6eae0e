"""What is stored already, as a run needs it: points near those of a session, names in use, and statements that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.interest.candidates import HistPoint, Kind, Point, Status
from isotherm.storage.postgres import interest_near
from isotherm.storage.postgres.interest_near import sent
from isotherm.storage.postgres.pool import Connection

# Stored points that each leg may propose for one point of a session.
_NEAREST = 20
# A word of more points than this says little about any of them, and proposes none by itself.
_COMMON = 300

Statement = tuple[int, str]  # key of a message, digest of what it says

# By words, those that share most first; and by name.
_WORDED = """
WITH q AS (SELECT * FROM unnest(%(places)s::int[], %(terms)s::bigint[]) AS u (place, term)),
posted AS (
    SELECT a.term, n.point_id FROM (SELECT DISTINCT term FROM q) AS a CROSS JOIN LATERAL (
        SELECT p.point_id FROM interest_postings AS p WHERE p.bank_id = %(bank)s AND p.term = a.term
        LIMIT %(common)s + 1) AS n
), telling AS (SELECT term FROM posted GROUP BY term HAVING count(*) <= %(common)s)
SELECT place, point_id FROM (
    SELECT q.place, p.point_id, row_number() OVER (PARTITION BY q.place ORDER BY count(*) DESC, p.point_id) AS best
    FROM q JOIN telling USING (term) JOIN posted AS p USING (term) GROUP BY q.place, p.point_id) AS shared
WHERE best <= %(nearest)s
UNION
SELECT n.place::int - 1, p.id FROM unnest(%(names)s::text[]) WITH ORDINALITY AS n (name, place)
JOIN interest_points AS p ON p.bank_id = %(bank)s AND p.canonical = n.name AND p.status <> 'archived'"""

_POINTS = """
SELECT p.id, p.name, p.summary, p.keywords, p.kind, p.status, p.confidence, p.importance, p.reliability, p.last_seen_at,
       p.version, CASE WHEN p.embedding_model = %(model)s THEN halfvec_send(p.embedding) END
FROM interest_points AS p WHERE p.id = ANY(%(ids)s) AND p.bank_id = %(bank)s AND p.status <> 'archived' ORDER BY p.id"""

_KNOWN = """
SELECT e.record_key, encode(e.statement, 'hex'), array_agg(e.point_id ORDER BY e.point_id)
FROM interest_evidence AS e
JOIN unnest(%(keys)s::bigint[], %(statements)s::text[]) AS q (key, statement)
  ON e.record_key = q.key AND e.statement = decode(q.statement, 'hex')
WHERE e.bank_id = %(bank)s GROUP BY e.record_key, e.statement"""

_NAMES = """
SELECT canonical, count(*), array_agg(id ORDER BY id) FILTER (WHERE status = 'archived')
FROM interest_points WHERE bank_id = %(bank)s AND canonical = ANY(%(names)s) GROUP BY canonical"""

_PENDING = "SELECT id FROM interest_points WHERE bank_id = %(bank)s AND id = ANY(%(ids)s) AND status = 'pending_review'"


@dataclass(frozen=True, slots=True)
class Near:
    """Stored points, and which of them is near which point of the session: (place, id)."""

    points: tuple[HistPoint, ...]
    pairs: frozenset[tuple[int, UUID]]


def near(conn: Connection, bank_id: int, points: Sequence[Point], model: str | None) -> Near:
    """Stored points that may have to do with points of a session: by vector, by words and by name.

    Args: points: a few hundred at most, since up to 40 stored ones come with each; model: stamp of the points' vectors; only
        vectors of the same model are compared.
    """
    pairs = set(_worded(conn, bank_id, points))
    if model is not None:
        nearest = interest_near.nearest(conn, bank_id, [p.vec for p in points], model, _NEAREST)
        pairs |= {(place, found) for place, neighbors in enumerate(nearest) for found, _ in neighbors}
    ids = sorted({found for _, found in pairs})
    with conn.cursor(binary=True) as cursor:
        rows = cursor.execute(_POINTS, {"bank": bank_id, "ids": ids, "model": model or ""}).fetchall()
    found = tuple(_hist(row) for row in rows)
    there = {point.id for point in found}
    return Near(found, frozenset(pair for pair in pairs if pair[1] in there))


def _worded(conn: Connection, bank_id: int, points: Sequence[Point]) -> list[tuple[int, UUID]]:
    asked = [(n, t) for n, p in enumerate(points) for t in terms_of(p.candidate.topic, "", p.candidate.tags)]
    values = {
        "bank": bank_id,
        "places": [place for place, _ in asked],
        "terms": [term for _, term in asked],
        "names": [p.candidate.name for p in points],
        "common": _COMMON,
        "nearest": _NEAREST,
    }
    return [(int(place), found) for place, found in conn.execute(_WORDED, values).fetchall()]


def known(conn: Connection, bank_id: int, statements: Sequence[Statement]) -> dict[Statement, list[UUID]]:
    """Those of the statements that are evidence already, and of which points, archived ones too."""
    values = {"bank": bank_id, "keys": [k for k, _ in statements], "statements": [s for _, s in statements]}
    return {(int(key), str(digest)): list(ids) for key, digest, ids in conn.execute(_KNOWN, values).fetchall()}


def names(conn: Connection, bank_id: int, wanted: Sequence[str]) -> tuple[dict[str, int], dict[str, list[UUID]]]:
    """How often each canonical name was used, and the archived points that had it."""
    rows = conn.execute(_NAMES, {"bank": bank_id, "names": list(wanted)}).fetchall()
    return {name: int(n) for name, n, _ in rows}, {name: list(ids) for name, _, ids in rows if ids}


def pending(conn: Connection, bank_id: int, ids: Sequence[UUID]) -> set[UUID]:
    """Those of the points that wait for review."""
    return {row[0] for row in conn.execute(_PENDING, {"bank": bank_id, "ids": list(ids)}).fetchall()}


def terms_of(name: str, summary: str, keywords: Sequence[str]) -> list[int]:
    """The words by which a point is found, as numbers."""
    return text.terms(" ".join((name, summary, *keywords)))


def _hist(row: Sequence[Any]) -> HistPoint:
    point_id, name, summary, keywords, kind, status, confidence, importance, reliability, seen, version, embedding = row
    return HistPoint(
        id=point_id,
        name=name,
        summary=summary,
        tags=tuple(keywords),
        kind=Kind(kind),
        status=Status(status),
        confidence=confidence,
        importance=importance,
        reliability=reliability,
        last_seen_at=seen,
        version=int(version),
        vec=None if embedding is None else sent(embedding),
    )


def by_statement(found: Mapping[Statement, Sequence[UUID]], point: Point) -> list[UUID] | None:
    """The points that have every statement of a point as evidence already; None when some statement is new."""
    sources = point.candidate.sources
    if not sources or any((s.record_key, s.statement) not in found for s in sources):
        return None
    return sorted({i for s in sources for i in found[s.record_key, s.statement]})
