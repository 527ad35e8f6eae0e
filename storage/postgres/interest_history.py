"""What is stored already, as a run needs it: points near those of a session, names in use, and statements that are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np

from isotherm.pipeline import text
from isotherm.pipeline.interest.candidates import HistPoint, Kind, Point, Status, Vector
from isotherm.storage.postgres.pool import Connection

# Stored points that each leg may propose for one point of a session.
_NEAREST = 20

Statement = tuple[int, str]  # key of a message, digest of what it says

_NEAR = """
WITH q AS (
    SELECT place, nullif(vec, '')::halfvec AS vec, name,
           ARRAY(SELECT t::bigint FROM jsonb_array_elements_text(terms) AS t) AS terms
    FROM unnest(%(vectors)s::text[], %(names)s::text[], %(terms)s::jsonb[]) WITH ORDINALITY AS u (vec, name, terms, place)
), proposed AS (
    SELECT q.place, n.id FROM q CROSS JOIN LATERAL (
        SELECT p.id FROM interest_points AS p
        WHERE p.bank_id = %(bank)s AND p.status <> 'archived' AND p.embedding_model = %(model)s
          AND p.embedding_dim = vector_dims(q.vec)
        ORDER BY p.embedding <=> q.vec, p.id LIMIT %(nearest)s) AS n
    UNION
    SELECT q.place, n.id FROM q CROSS JOIN LATERAL (
        SELECT p.id FROM interest_points AS p
        WHERE p.bank_id = %(bank)s AND p.status <> 'archived' AND p.terms && q.terms
        ORDER BY (SELECT count(*) FROM unnest(p.terms) AS t WHERE t = ANY(q.terms)) DESC, p.id LIMIT %(nearest)s) AS n
    UNION
    SELECT q.place, p.id FROM q JOIN interest_points AS p ON p.canonical = q.name
    WHERE p.bank_id = %(bank)s AND p.status <> 'archived'
)
SELECT array_agg(x.place::int - 1), p.id, p.name, p.summary, p.keywords, p.kind, p.status, p.confidence, p.importance,
       p.reliability, p.last_seen_at, p.version, CASE WHEN p.embedding_model = %(model)s THEN p.embedding END
FROM proposed AS x JOIN interest_points AS p ON p.id = x.id
GROUP BY p.id ORDER BY p.id"""

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
    """Stored points that may have to do with points of a session, in one query: by vector, by words and by name.

    Args: model: stamp of the points' vectors; only vectors of the same model are compared.
    Cost: one look at each point of the bank that is not archived, for each point of the session.
    """
    values = {
        "bank": bank_id,
        "model": model or "",
        "nearest": _NEAREST,
        "vectors": [written(p.vec) for p in points],
        "names": [p.candidate.name for p in points],
        "terms": [_json(terms_of(p.candidate.topic, "", p.candidate.tags)) for p in points],
    }
    rows = conn.execute(_NEAR, values).fetchall()
    pairs = {(int(place), row[1]) for row in rows for place in row[0]}
    return Near(tuple(_hist(row[1:]) for row in rows), frozenset(pairs))


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


def written(vec: Vector | None) -> str:
    """A vector as the server reads it; blank for none."""
    return "" if vec is None else "[" + ",".join(f"{x:.6g}" for x in vec.tolist()) + "]"


def _json(terms: Sequence[int]) -> str:
    return "[" + ",".join(f'"{t}"' for t in terms) + "]"


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
        vec=None if embedding is None else read_vector(embedding),
    )


def read_vector(embedding: Any) -> Vector:  # noqa: ANN401 - the driver's own type
    """A stored vector as an array."""
    array: Vector = np.asarray(embedding.to_numpy(), dtype=np.float32)
    return array


def by_statement(found: Mapping[Statement, Sequence[UUID]], point: Point) -> list[UUID] | None:
    """The points that have every statement of a point as evidence already; None when some statement is new."""
    sources = point.candidate.sources
    if not sources or any((s.record_key, s.statement) not in found for s in sources):
        return None
    return sorted({i for s in sources for i in found[s.record_key, s.statement]})
