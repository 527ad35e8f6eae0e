"""Records as they are read: those a recall selected, by their ids, and the newest of a namespace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.records import Record, Tier
from isotherm.storage.postgres import arrays
from isotherm.storage.postgres.cold_bodies import StoredBody
from isotherm.storage.postgres.namespaces import Scope, predicate
from isotherm.storage.postgres.pool import Connection

_RECORDS = """
SELECT r.key, r.id, n.tenant, n.scope, n.agent, n.session, n.run, r.content, r.summary, r.tier, r.pinned, r.version,
       r.importance, r.access_count, r.heat_log, r.created_at, r.last_access_at, r.moved_at, r.size_bytes, r.metadata,
       r.categories, r.content_sha256
FROM {rows} JOIN namespaces AS n ON n.id = r.namespace_id"""

_TAIL = """
SELECT r.id, r.key, r.role, r.created_at, r.content, r.metadata, r.summary, b.body, b.raw_bytes, r.content_sha256, o.object_key
FROM tier_records AS r LEFT JOIN cold_bodies AS b ON b.record_key = r.key LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
WHERE {scope} ORDER BY r.created_at DESC, r.id DESC LIMIT %(limit)s"""


_LARGEST_COLD = """
SELECT n.tenant, n.scope, n.agent, n.session, n.run, r.id, coalesce(octet_length(b.body), o.stored_bytes)
FROM cold_bodies AS b JOIN tier_records AS r ON r.key = b.record_key JOIN namespaces AS n ON n.id = r.namespace_id
LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
WHERE n.tenant IS NOT DISTINCT FROM %(tenant)s::text AND r.tier = 1 ORDER BY r.size_bytes DESC, r.id LIMIT 1"""


def records(conn: Connection, keys: Sequence[int], scope: Scope, now: datetime) -> dict[int, Record]:
    """Records by row key, read under the scope; heat as of `now`."""
    within, params = predicate(scope)
    # One by one by their keys, whatever the planner takes the scope for.
    row = f"SELECT * FROM tier_records AS r WHERE r.key = k.key AND {within} LIMIT 1"
    sql = _RECORDS.format(rows=f"unnest(%(keys)s::bigint[]) AS k (key) CROSS JOIN LATERAL ({row}) AS r")
    rows = conn.execute(sql, {**params, "keys": arrays.bigints(keys)}).fetchall()
    return {int(row[0]): _record(row, now) for row in rows}


def by_id(conn: Connection, namespace: Namespace, ids: Sequence[str], now: datetime) -> dict[str, tuple[int, Record]]:
    """Row key and record by id, within one namespace."""
    within, params = predicate(Scope(namespace=namespace))
    sql = _RECORDS.format(rows="tier_records AS r") + f" WHERE r.id = ANY(%(ids)s) AND {within}"
    rows = conn.execute(sql, {**params, "ids": list(ids)}).fetchall()
    return {row[1]: (int(row[0]), _record(row, now)) for row in rows}


def newest_at(conn: Connection, scope: Scope) -> datetime | None:
    """When the newest record of a scope was said, None for an empty one."""
    within, params = predicate(scope)
    sql = f"SELECT r.created_at FROM tier_records AS r WHERE {within} ORDER BY r.created_at DESC, r.id DESC LIMIT 1"
    row = conn.execute(sql, params).fetchone()
    return None if row is None else row[0]


_AROUND = """
SELECT h.key, n.key FROM unnest(%(keys)s::bigint[]) AS k (key) CROSS JOIN LATERAL (
    SELECT * FROM tier_records AS r WHERE r.key = k.key AND {scope} AND r.role IS NOT NULL LIMIT 1) AS h
CROSS JOIN LATERAL (({before}) UNION ALL ({after})) AS n WHERE n.role IS NOT NULL"""
_NEXT = """SELECT n.key, n.role FROM tier_records AS n
    WHERE n.namespace_id = h.namespace_id AND (n.created_at, n.id) {beyond} (h.created_at, h.id)
    ORDER BY n.created_at {order}, n.id {order} LIMIT {limit}"""
_BEFORE = _NEXT.format(order="DESC", beyond="<", limit="%(radius)s")
_FROM_HERE = _NEXT.format(order="ASC", beyond=">=", limit="%(radius)s + 1")


def windows(conn: Connection, keys: Sequence[int], scope: Scope, radius: int, now: datetime) -> dict[int, list[Record]]:
    """By row key each record of a conversation with its neighbors, in order; none of another session.

    Args: keys: of a scope; those of no conversation are left out; radius: how many turns before and after.
    """
    within, params = predicate(scope)
    sql = _AROUND.format(scope=within, before=_BEFORE, after=_FROM_HERE)
    pairs = conn.execute(sql, {**params, "keys": list(keys), "radius": radius}).fetchall()
    rows = records(conn, sorted({int(key) for _, key in pairs}), scope, now)
    found: dict[int, list[Record]] = {}
    for hit, key in pairs:
        if int(key) in rows:
            found.setdefault(int(hit), []).append(rows[int(key)])
    return {hit: sorted(turns, key=lambda turn: (turn.created_at, turn.id)) for hit, turns in found.items()}


@dataclass(frozen=True, slots=True)
class Newest:
    """A record as it is replayed: `content` is None while it is cold, and `stored` says where its text is."""

    id: str
    key: int
    role: str | None
    created_at: datetime
    content: str | None
    metadata: dict[str, Any]
    stored: StoredBody


def newest(conn: Connection, namespace: Namespace, limit: int) -> list[Newest]:
    """The newest records of a namespace, oldest first."""
    within, params = predicate(Scope(namespace=namespace))
    rows = conn.execute(_TAIL.format(scope=within), {**params, "limit": limit}).fetchall()
    return [Newest(row[0], row[1], row[2], row[3], row[4], row[5], StoredBody(*row[6:])) for row in reversed(rows)]


_STORED = """
SELECT r.content, r.summary, b.body, b.raw_bytes, r.content_sha256, o.object_key
FROM tier_records AS r LEFT JOIN cold_bodies AS b ON b.record_key = r.key LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
WHERE {scope} AND r.id = %(id)s"""


def stored(conn: Connection, namespace: Namespace, record_id: str) -> tuple[str | None, StoredBody] | None:
    """The content of a record, None while it is cold, and where its text is; None when there is no such record."""
    within, params = predicate(Scope(namespace=namespace))
    row = conn.execute(_STORED.format(scope=within), {**params, "id": record_id}).fetchone()
    return None if row is None else (row[0], StoredBody(*row[1:]))


def _record(row: Sequence[Any], now: datetime) -> Record:
    (_, record_id, tenant, scope, agent, session, run, content, summary, tier, pinned, version, importance, accesses,
     heat_log, created, accessed, moved, size, metadata, categories, sha) = row  # fmt: skip
    return Record(
        id=record_id,
        namespace=Namespace(tenant=tenant, scope=scope, agent=agent, session=session, run=run),
        content=content,
        summary=summary,
        tier=Tier.from_rank(tier),
        pinned=pinned,
        version=int(version),
        importance=importance,
        access_count=int(accesses),
        heat=heat.heat(heat_log, now),
        created_at=created,
        last_access_at=accessed,
        moved_at=moved,
        size_bytes=int(size),
        metadata=metadata,
        categories=tuple(categories),
        content_sha256=bytes(sha).hex(),
    )


@dataclass(frozen=True, slots=True)
class ColdBody:
    """A cold record with a body of its own, and the bytes that body takes."""

    namespace: Namespace
    id: str
    stored_bytes: int


def largest_cold(conn: Connection, *, tenant: str | None) -> ColdBody | None:
    """The longest text of a tenant that is cold, None when no cold record has a body of its own."""
    row = conn.execute(_LARGEST_COLD, {"tenant": tenant}).fetchone()
    if row is None:
        return None
    name_tenant, scope, agent, session, run, record_id, stored = row
    return ColdBody(
        Namespace(tenant=name_tenant, scope=scope, agent=agent, session=session, run=run), record_id, stored
    )
