"""Records as they are read: those a recall selected, by their ids, and the newest of a namespace."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.records import Record, Tier
from isotherm.storage.postgres import arrays
from isotherm.storage.postgres.cold_bodies import StoredBody
from isotherm.storage.postgres.namespaces import EACH_ID, Scope, in_order, predicate
from isotherm.storage.postgres.pool import Connection

_RECORDS = """
SELECT r.key, r.id, n.tenant, n.scope, n.agent, n.session, n.run, r.content, r.summary, r.tier, r.pinned, r.version,
       r.importance, r.access_count, r.heat_log, r.created_at, r.last_access_at, r.moved_at, r.size_bytes, r.metadata::text,
       r.categories, r.content_sha256
FROM {rows} CROSS JOIN LATERAL (SELECT * FROM namespaces AS n WHERE n.id = r.namespace_id LIMIT 1) AS n"""

_TAIL = """
SELECT r.id, r.key, r.role, r.created_at, r.content, r.metadata, r.summary, b.body, b.raw_bytes, r.content_sha256, o.object_key
FROM tier_records AS r LEFT JOIN cold_bodies AS b ON b.record_key = r.key LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
WHERE {scope} ORDER BY r.created_at DESC, r.id DESC LIMIT %(limit)s"""


_LARGEST_COLD = """
SELECT n.tenant, n.scope, n.agent, n.session, n.run, r.id, coalesce(octet_length(b.body), o.stored_bytes)
FROM cold_bodies AS b JOIN tier_records AS r ON r.key = b.record_key JOIN namespaces AS n ON n.id = r.namespace_id
LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
WHERE n.tenant IS NOT DISTINCT FROM %(tenant)s::text AND r.tier = 1 ORDER BY r.size_bytes DESC, r.id LIMIT 1"""


class Row(NamedTuple):
    """A record as it is read; whoever wants all of it makes a `Record` of it."""

    key: int
    id: str
    tenant: str | None
    scope: str
    agent: str
    session: str | None
    run: str | None
    content: str | None
    summary: str | None
    tier: int
    pinned: bool
    version: int
    importance: float
    access_count: int
    heat_log: float | None
    created_at: datetime
    last_access_at: datetime
    moved_at: datetime | None
    size_bytes: int
    metadata_json: str
    categories: list[str]
    content_sha256: bytes

    @property
    def metadata(self) -> dict[str, Any]:
        """As that of the record, read anew each time: of most rows nobody asks."""
        found: dict[str, Any] = json.loads(self.metadata_json)
        return found

    @property
    def text(self) -> str:
        """As that of the record."""
        return self.content if self.content is not None else (self.summary or "")

    def record(self, now: datetime) -> Record:
        """The record, its heat as of `now`."""
        return Record(
            id=self.id,
            namespace=Namespace(
                tenant=self.tenant, scope=self.scope, agent=self.agent, session=self.session, run=self.run
            ),
            content=self.content,
            summary=self.summary,
            tier=Tier.from_rank(self.tier),
            pinned=self.pinned,
            version=self.version,
            importance=self.importance,
            access_count=self.access_count,
            heat=heat.heat(self.heat_log, now),
            created_at=self.created_at,
            last_access_at=self.last_access_at,
            moved_at=self.moved_at,
            size_bytes=self.size_bytes,
            metadata=self.metadata,
            categories=tuple(self.categories),
            content_sha256=self.content_sha256.hex(),
        )


def records(conn: Connection, keys: Sequence[int], scope: Scope, now: datetime) -> dict[int, Record]:
    """Records by row key, read under the scope; heat as of `now`."""
    return {key: row.record(now) for key, row in read(conn, keys, scope).items()}


def read(conn: Connection, keys: Sequence[int], scope: Scope) -> dict[int, Row]:
    """Rows by their key, read under the scope."""
    within, params = predicate(scope)
    # One by one by their keys, whatever the planner takes the scope for.
    row = f"SELECT * FROM tier_records AS r WHERE r.key = k.key AND {within} LIMIT 1"
    sql = _RECORDS.format(rows=f"unnest(%(keys)s::bigint[]) AS k (key) CROSS JOIN LATERAL ({row}) AS r")
    rows = conn.execute(sql, {**params, "keys": arrays.bigints(keys)}, binary=True).fetchall()
    return {row[0]: Row._make(row) for row in rows}


def by_id(conn: Connection, namespace: Namespace, ids: Sequence[str], now: datetime) -> dict[str, tuple[int, Record]]:
    """Row key and record by id, within one namespace."""
    within, params = predicate(Scope(namespace=namespace))
    row = f"SELECT * FROM tier_records AS r WHERE r.id = g.id AND {within} LIMIT 1"
    sql = _RECORDS.format(rows=f"{EACH_ID} CROSS JOIN LATERAL ({row}) AS r")
    rows = conn.execute(sql, {**params, "ids": list(ids)}, binary=True).fetchall()
    return {row[1]: (row[0], Row._make(row).record(now)) for row in rows}


def newest_at(conn: Connection, scope: Scope) -> datetime | None:
    """When the newest record of a scope was said, None for an empty one."""
    sql = in_order(scope, "r.created_at", [], limit="1", newest_first=True)
    row = conn.execute(sql, predicate(scope)[1]).fetchone()
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
