"""Reads of interests: points, what was said for them, and contradictions; each inside one bank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from isotherm.pipeline.identity import Bank
from isotherm.pipeline.interest.candidates import Kind, Status, Vector, statement_digest
from isotherm.pipeline.interest.freshness import Freshness, freshness
from isotherm.storage.postgres.cold_bodies import original
from isotherm.storage.postgres.interest_near import written
from isotherm.storage.postgres.namespaces import Scope, predicate
from isotherm.storage.postgres.pool import Connection

_POINT = """p.id, p.name, p.summary, p.keywords, p.kind, p.status, p.subjective, p.importance, p.confidence, p.reliability,
       p.seen_count, p.first_seen_at, p.last_seen_at, p.ttl_days, p.version,
       EXISTS (SELECT 1 FROM interest_contradictions AS c WHERE (c.status = 'open' OR c.current_because = 'decided by hand')
               AND ((c.left_id = p.id AND c.current_side = 'right') OR (c.right_id = p.id AND c.current_side = 'left')))"""

_LISTED = """
SELECT {point} FROM interest_points AS p WHERE {scope} AND p.status = ANY(%(statuses)s)
ORDER BY p.seen_count DESC, p.importance DESC, p.last_seen_at DESC, p.id LIMIT %(limit)s"""

_BY_ID = "SELECT {point} FROM interest_points AS p WHERE {scope} AND p.id = ANY(%(ids)s)"

# A point belongs to a span of time when something was said for it then.
_SAID_THEN = """(%(after)s::timestamptz IS NULL AND %(before)s::timestamptz IS NULL OR EXISTS (
    SELECT 1 FROM interest_evidence AS e WHERE e.point_id = {point}
      AND (%(after)s::timestamptz IS NULL OR e.event_time >= %(after)s)
      AND (%(before)s::timestamptz IS NULL OR e.event_time < %(before)s)))"""

# Each leg has its own quota; what is archived leads to what came after it.
_CANDIDATES = """
WITH RECURSIVE found AS (
    (SELECT p.id FROM interest_points AS p
     WHERE {scope} AND p.status <> 'archived' AND p.embedding_model = %(model)s AND %(vec)s <> '' AND {then}
     ORDER BY p.embedding <=> nullif(%(vec)s, '')::halfvec, p.id LIMIT %(quota)s)
    UNION
    (SELECT p.id FROM interest_points AS p
     WHERE {scope} AND p.terms && %(terms)s::bigint[] AND (p.status = 'archived' OR {then})
     ORDER BY (SELECT count(*) FROM unnest(p.terms) AS t WHERE t = ANY(%(terms)s::bigint[])) DESC, p.id LIMIT %(quota)s)
), walk (start, id, hops) AS (
    SELECT id, id, 0 FROM found
    UNION
    SELECT w.start, e.target_id, w.hops + 1 FROM walk AS w
    JOIN interest_points AS p ON p.id = w.id AND p.status = 'archived'
    JOIN interest_edges AS e ON e.source_id = w.id AND e.kind = 'sequel' WHERE w.hops < 10
)
SELECT p.id,
       max(CASE WHEN s.embedding_model = %(model)s AND %(vec)s <> ''
           THEN 1 - (s.embedding <=> nullif(%(vec)s, '')::halfvec) END),
       max((SELECT count(*) FROM unnest(s.terms) AS t WHERE t = ANY(%(terms)s::bigint[])))
FROM walk AS w JOIN interest_points AS p ON p.id = w.id JOIN interest_points AS s ON s.id = w.start
WHERE {scope} AND p.status <> 'archived' AND {then} GROUP BY p.id ORDER BY p.id"""

_EVIDENCE = """
SELECT e.id, e.point_id, n.session, e.record_id, e.turn, e.event_time, e.start_char, e.end_char,
       encode(e.statement, 'hex'), r.content, r.summary, b.body, b.raw_bytes, r.content_sha256
FROM interest_evidence AS e JOIN namespaces AS n ON n.id = e.namespace_id
LEFT JOIN tier_records AS r ON r.key = e.record_key AND r.namespace_id = e.namespace_id
LEFT JOIN cold_bodies AS b ON b.record_key = r.key
WHERE {scope} AND (e.point_id = ANY(%(points)s) OR e.id = ANY(%(ids)s))
ORDER BY e.event_time, e.id"""

_OF_CONTRADICTION = """c.id, c.left_id, c.right_id, c.rule, c.left_words, c.right_words, c.description, c.left_evidence,
       c.right_evidence, c.current_side, c.current_because, c.status, c.created_at"""
_CONTRADICTIONS = f"""
SELECT {_OF_CONTRADICTION}
FROM interest_contradictions AS c WHERE {{scope}} AND c.status = ANY(%(statuses)s)
ORDER BY c.created_at DESC, c.id LIMIT %(limit)s"""
_CONTRADICTION = f"SELECT {_OF_CONTRADICTION} FROM interest_contradictions AS c WHERE {{scope}} AND c.id = %(id)s"


@dataclass(frozen=True, slots=True)
class Interest:
    """A stored point as people and programs see it.

    Args: sessions: how many said it; contested: whether an open contradiction has another side that counts; version:
        raised by every change.
    """

    id: UUID
    name: str
    summary: str
    keywords: tuple[str, ...]
    kind: Kind
    status: Status
    subjective: bool
    importance: float
    confidence: float
    reliability: float
    sessions: int
    first_seen_at: datetime
    last_seen_at: datetime
    ttl: timedelta | None
    version: int
    contested: bool

    def freshness(self, now: datetime) -> Freshness:
        """How fresh it is at a moment."""
        return freshness(self.last_seen_at, self.ttl, now)


@dataclass(frozen=True, slots=True)
class Evidence:
    """A statement for a point; `quote` is read from the message now, None when that is gone."""

    id: int
    point_id: UUID
    session: str | None
    record_id: str
    turn: int
    at: datetime
    quote: str | None


@dataclass(frozen=True, slots=True)
class ContradictionRow:
    """A contradiction by ids. `current_side` is left or right, None when nothing tells them apart."""

    id: UUID
    left_id: UUID
    right_id: UUID
    rule: str
    left_words: str
    right_words: str
    description: str
    left_evidence: int | None
    right_evidence: int | None
    current_side: str | None
    current_because: str
    status: str
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Hit:
    """A point that a query found: cosine, None without vectors, and how many of the query's words it has."""

    id: UUID
    cosine: float | None
    words: int


def listed(conn: Connection, bank: Bank, statuses: Sequence[str], limit: int) -> list[Interest]:
    """Points of a bank: those of most sessions first, then the most important and the newest."""
    scope, params = predicate(Scope(bank=bank), "p")
    sql = _LISTED.format(point=_POINT, scope=scope)
    return [_interest(r) for r in conn.execute(sql, {**params, "statuses": list(statuses), "limit": limit}).fetchall()]


def by_id(conn: Connection, bank: Bank, ids: Sequence[UUID]) -> dict[UUID, Interest]:
    """Points of a bank by their ids; those of other banks are not found."""
    scope, params = predicate(Scope(bank=bank), "p")
    rows = conn.execute(_BY_ID.format(point=_POINT, scope=scope), {**params, "ids": list(ids)}).fetchall()
    return {row[0]: _interest(row) for row in rows}


def candidates(
    conn: Connection,
    bank: Bank,
    *,
    terms: Sequence[int],
    vec: Vector | None,
    model: str | None,
    quota: int,
    after: datetime | None = None,
    before: datetime | None = None,
) -> list[Hit]:
    """Points of a bank that may answer a query, by vector and by words; an archived one stands for its successor.

    Args: after, before: only points for which something was said in that span, its end not included.
    """
    scope, params = predicate(Scope(bank=bank), "p")
    values = {**params, "terms": list(terms), "vec": written(vec), "model": model or "", "quota": quota}
    values |= {"after": after, "before": before}
    sql = _CANDIDATES.format(scope=scope, then=_SAID_THEN.format(point="p.id"))
    rows = conn.execute(sql, values).fetchall()
    return [Hit(i, None if cosine is None else float(cosine), int(n or 0)) for i, cosine, n in rows]


def contradiction(conn: Connection, bank: Bank, wanted: UUID) -> ContradictionRow | None:
    """One contradiction, None when the bank has none of this id."""
    scope, params = predicate(Scope(bank=bank), "c")
    row = conn.execute(_CONTRADICTION.format(scope=scope), {**params, "id": wanted}).fetchone()
    return None if row is None else ContradictionRow(*row)


def evidence(conn: Connection, bank: Bank, *, points: Sequence[UUID] = (), ids: Sequence[int] = ()) -> list[Evidence]:
    """What was said for points, or single statements by id, oldest first, with the words as they stand in the messages."""
    scope, params = predicate(Scope(bank=bank), "e")
    values = {**params, "points": list(points), "ids": list(ids)}
    return [_evidence(row) for row in conn.execute(_EVIDENCE.format(scope=scope), values).fetchall()]


def contradictions(conn: Connection, bank: Bank, statuses: Sequence[str], limit: int) -> list[ContradictionRow]:
    """Contradictions of a bank, newest first."""
    scope, params = predicate(Scope(bank=bank), "c")
    values = {**params, "statuses": list(statuses), "limit": limit}
    rows = conn.execute(_CONTRADICTIONS.format(scope=scope), values).fetchall()
    return [ContradictionRow(*row) for row in rows]


def _interest(row: Sequence[Any]) -> Interest:
    (point_id, name, summary, keywords, kind, status, subjective, importance, confidence, reliability, sessions, first,
     last, ttl_days, version, contested) = row  # fmt: skip
    ttl = None if ttl_days is None else timedelta(days=ttl_days)
    return Interest(
        point_id, name, summary, tuple(keywords), Kind(kind), Status(status), subjective, importance, confidence,
        reliability, int(sessions), first, last, ttl, int(version), contested,
    )  # fmt: skip


def _evidence(row: Sequence[Any]) -> Evidence:
    (evidence_id, point, session, record_id, turn, at, start, end, statement, content, summary, body, raw_bytes,
     sha) = row  # fmt: skip
    whole = content
    if whole is None and sha is not None:  # of a body in the blob store the summary is what is quoted
        whole = original(summary, body, raw_bytes, sha) or summary
    return Evidence(int(evidence_id), point, session, record_id, turn, at, _quote(whole, start, end, statement))


def _quote(whole: str | None, start: int, end: int, statement: str) -> str | None:
    """The statement where the message still has it, else the message."""
    if whole is None:
        return None
    said = whole[start:end]
    return " ".join((said if said and statement_digest(said) == statement else whole).split())
