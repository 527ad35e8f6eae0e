"""What interests need after they were written: vectors they lack, a second judgement, and a look at their age."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from isotherm.pipeline.interest.candidates import Candidate, Kind, Source, Vector
from isotherm.pipeline.interest.freshness import expired, freshness, next_look
from isotherm.storage.postgres import interest_links, interest_write
from isotherm.storage.postgres.interest_near import written
from isotherm.storage.postgres.pool import Connection

KIND = "interest.tend"

_DUE = """
SELECT b.bank_id FROM interest_banks AS b
WHERE (EXISTS (SELECT 1 FROM interest_points AS p WHERE p.bank_id = b.bank_id AND p.status = 'pending_review'
               AND p.updated_at < now() - %(rest)s)
       OR %(embeds)s AND EXISTS (SELECT 1 FROM interest_points AS p
                                 WHERE p.bank_id = b.bank_id AND p.status <> 'archived' AND p.placed_at IS NULL)
       OR EXISTS (SELECT 1 FROM interest_points AS p WHERE p.bank_id = b.bank_id AND p.embedding_model < %(model)s)
       OR EXISTS (SELECT 1 FROM interest_points AS p WHERE p.bank_id = b.bank_id AND p.embedding_model > %(model)s))
  AND NOT EXISTS (SELECT 1 FROM operations AS o WHERE o.bank_id = b.bank_id AND o.kind = %(kind)s
                  AND (o.finished_at IS NULL OR o.finished_at > now() - %(rest)s
                       AND coalesce((o.result ->> 'embedded')::int, 0) < %(full)s))
ORDER BY b.bank_id LIMIT %(limit)s"""

_BARE = """
SELECT id, version, name, summary FROM interest_points
WHERE bank_id = %(bank)s AND status <> 'archived' AND embedding_model IS DISTINCT FROM %(model)s
ORDER BY id LIMIT %(limit)s"""

_EMBED = """
UPDATE interest_points SET embedding = %(vec)s::halfvec, embedding_model = %(model)s,
    embedding_dim = vector_dims(%(vec)s::halfvec), placed_at = NULL, updated_at = now()
WHERE id = %(id)s AND bank_id = %(bank)s AND version = %(version)s AND status <> 'archived'"""

_PENDING = """
SELECT p.id, p.version, p.name, p.summary, p.confidence, p.importance, p.keywords, p.kind, p.subjective, p.ttl_days,
       e.namespace_id, e.record_key, e.record_id, e.turn, e.event_time, e.start_char, e.end_char, encode(e.statement, 'hex')
FROM (SELECT * FROM interest_points WHERE bank_id = %(bank)s AND status = 'pending_review'
      ORDER BY created_at, first_seen_at, id LIMIT %(limit)s) AS p
LEFT JOIN interest_evidence AS e ON e.point_id = p.id
ORDER BY p.created_at, p.first_seen_at, p.id, e.event_time, e.id"""
_HOLD = "SELECT 1 FROM interest_banks WHERE bank_id = %s FOR UPDATE"

_OLD = """
SELECT id, bank_id, freshness, last_seen_at, ttl_days FROM interest_points
WHERE status <> 'archived' AND look_at <= %(now)s ORDER BY look_at, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED"""
_AGE = """
UPDATE interest_points SET freshness = %(level)s, look_at = coalesce(%(look)s::timestamptz, 'infinity') WHERE id = %(id)s"""
_EXPIRE = """
UPDATE interest_points SET status = 'archived', embedding = NULL, embedding_model = NULL, embedding_dim = NULL,
    version = version + 1, updated_at = now() WHERE id = %(id)s"""


@dataclass(frozen=True, slots=True)
class Bare:
    """A point without a vector, as it was read."""

    id: UUID
    version: int
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Pending:
    """A point that waits for review, with what was said for it, as it was read."""

    id: UUID
    version: int
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Aged:
    """How many points changed, and how many of them expired."""

    changed: int
    expired: int


def due(conn: Connection, *, model: str | None, rest: timedelta, full: int, limit: int) -> list[int]:
    """Banks with points that wait for review, whose vector is of another model, or that nobody looked at for their vector and theme.

    Args: model: stamp of the embedder, None when there is none; rest: how long a bank is left alone after it was tended;
        full: not after so many vectors were made at once, since more are waited for.
    """
    values = {"embeds": model is not None, "model": model, "rest": rest, "full": full, "limit": limit, "kind": KIND}
    return [int(row[0]) for row in conn.execute(_DUE, values).fetchall()]


def bare(conn: Connection, bank_id: int, model: str, limit: int) -> list[Bare]:
    """Points of a bank that lack a vector of a model."""
    rows = conn.execute(_BARE, {"bank": bank_id, "model": model, "limit": limit}).fetchall()
    return [Bare(found, int(version), Candidate(name, summary)) for found, version, name, summary in rows]


def embed(conn: Connection, bank_id: int, point: Bare, vec: Vector, model: str) -> bool:
    """Give a point its vector; False when it has changed meanwhile."""
    values = {"bank": bank_id, "id": point.id, "version": point.version, "vec": written(vec), "model": model}
    return bool(conn.execute(_EMBED, values).rowcount)


def relate(conn: Connection, bank_id: int, vectors: Mapping[UUID, Vector], model: str) -> None:
    """Link points that have another vector now with what is near it, and with nothing that was near before."""
    interest_links.drop(conn, bank_id, list(vectors))
    interest_links.add(conn, bank_id, interest_links.alike(conn, bank_id, vectors, model))


def pending(conn: Connection, bank_id: int, limit: int, *, hold: bool = False) -> list[Pending]:
    """Points of a bank that wait for review, the oldest first.

    Args: hold: lock the bank, so that nobody changes or forgets them before the transaction ends.
    """
    if hold:
        conn.execute(_HOLD, (bank_id,))
    found: dict[UUID, Pending] = {}
    for row in conn.execute(_PENDING, {"bank": bank_id, "limit": limit}).fetchall():
        point_id, version, name, summary, confidence, importance, tags, kind, subjective, ttl, *said = row
        sources = (Source(*said),) if said[0] is not None else ()
        one = Candidate(
            name, summary, confidence, tuple(tags), subjective=subjective, kind=Kind(kind), importance=importance,
            sources=sources, event_time=said[4], ttl_days=ttl,
        )  # fmt: skip
        known = found.get(point_id)
        whole = one if known is None else known.candidate.with_sources_of([one])
        found[point_id] = Pending(point_id, int(version), whole)
    return list(found.values())


def age(conn: Connection, now: datetime, limit: int) -> Aged:
    """Look at the points whose time it is: how fresh they are now, and whether their time is over.

    What expires is archived with an entry in the log, by which it can be brought back.
    """
    rows = conn.execute(_OLD, {"now": now, "limit": limit}).fetchall()
    changed = gone = 0
    for point_id, bank_id, before, last_seen, ttl_days in rows:
        ttl = None if ttl_days is None else timedelta(days=ttl_days)
        level = freshness(last_seen, ttl, now).value
        conn.execute(_AGE, {"id": point_id, "level": level, "look": next_look(last_seen, ttl, now)})
        if level != before:
            changed += 1
            interest_write.log(conn, point_id, "age", {"level": level}, bank=bank_id, operation=None)
        if expired(last_seen, ttl, now):
            gone += 1
            conn.execute(_EXPIRE, {"id": point_id})
            interest_write.log(conn, point_id, "archive", {"rule": "expired"}, bank=bank_id, operation=None)
    return Aged(changed, gone)


def unchanged(judged: Sequence[Pending], now: Sequence[Pending]) -> list[bool]:
    """For each point whether it is still as it was judged."""
    versions = {one.id: one.version for one in now}
    return [versions.get(one.id) == one.version for one in judged]
