"""Whole records out of the database and into another one: with tier, pin, times, heat and, of cold ones, body and summary."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.rows import TupleRow

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.stages import INDEX, TIER_EMBED
from isotherm.pipeline.tier.portable import PortableRecord
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import operations, outbox, steps
from isotherm.storage.postgres.cold_bodies import StoredBody, compressed
from isotherm.storage.postgres.namespaces import EACH_ID, Place, Scope, behind, in_order, predicate
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.reach import reaching
from isotherm.storage.postgres.steps import NewStep
from isotherm.storage.postgres.tier_write import Patience

KIND = "tier.import"
_PAGE = 500
# Of texts in memory at a time.
_BYTES = 8 * 1024 * 1024

_KEYS = "r.created_at, r.id, r.size_bytes"

_ROWS = """
SELECT r.id, r.created_at, r.content, encode(r.content_sha256, 'hex'), r.role, r.categories, r.metadata, r.importance, r.tier,
       r.pinned, r.summary, r.version, r.access_count, r.heat_log, r.value_log, r.last_access_at, r.moved_at, r.moved_from,
       b.body, b.raw_bytes, o.object_key
FROM {each} CROSS JOIN LATERAL (SELECT * FROM tier_records AS r WHERE {scope} AND r.id = g.id LIMIT 1) AS r
LEFT JOIN cold_bodies AS b ON b.record_key = r.key LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
ORDER BY r.created_at, r.id"""

# A record that is there stays as it is, whatever the file says: it may have been changed since.
_LOAD = """
INSERT INTO tier_records (
    namespace_id, bank_id, id, content, content_sha256, role, categories, metadata, importance, tier, pinned, summary, version,
    access_count, heat_log, value_log, created_at, last_access_at, moved_at, moved_from, size_bytes, vector_state)
SELECT g.namespace_id, g.bank_id, g.id, g.content, decode(g.sha256, 'hex'), g.role,
       ARRAY(SELECT json_array_elements_text(g.categories)), g.metadata, g.importance, g.tier, g.pinned, g.summary, g.version,
       g.access_count, g.heat_log, g.value_log, g.created_at, g.last_access_at, g.moved_at, g.moved_from, g.size_bytes,
       %(vector_state)s
FROM json_to_recordset(%(rows)s) AS g (
    namespace_id bigint, bank_id bigint, id text, content text, sha256 text, role text, categories json, metadata jsonb,
    importance float8, tier smallint, pinned boolean, summary text, version bigint, access_count bigint, heat_log float8,
    value_log float8, created_at timestamptz, last_access_at timestamptz, moved_at timestamptz, moved_from smallint,
    size_bytes integer)
ORDER BY g.namespace_id, g.id COLLATE "C"
ON CONFLICT (namespace_id, id) DO NOTHING
RETURNING key, namespace_id, id"""

_BODIES = """
INSERT INTO cold_bodies (record_key, body, codec, raw_bytes)
SELECT g.key, g.body, 'zstd', g.raw FROM unnest(%(keys)s::bigint[], %(bodies)s::bytea[], %(raw)s::integer[]) AS g (key, body, raw)"""

_NAMES = ("id", "created_at", "content", "sha256", "role", "categories", "metadata", "importance", "tier", "pinned", "summary",
          "version", "access_count", "heat_log", "value_log", "last_access_at", "moved_at", "moved_from")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Exported:
    """A record as `PortableRecord` has it; of a cold one `stored` says where its content is."""

    fields: dict[str, Any]
    stored: StoredBody | None


@dataclass(frozen=True, slots=True)
class Loaded:
    """Outcome of one batch: its operation, whether this call made it, and how many records were not there before."""

    operation_id: UUID
    new: bool = True
    written: int = 0


def export(namespace: Namespace) -> Iterator[Exported]:
    """The records of a namespace in order of (created_at, id); some megabytes of them are in memory at a time.

    Each page is a transaction of its own: what is written meanwhile may or may not be among them.
    Raises: TransientError when PostgreSQL cannot be reached.
    """
    scope = Scope(namespace=namespace)
    after: tuple[datetime, str] | None = None
    while True:
        with reaching(namespace), connection() as conn:
            found = keys(conn, scope, after, _PAGE)
        for ids in _portions(found):
            with reaching(namespace), connection() as conn:
                rows = read(conn, scope, ids)
            yield from (_exported(namespace, row) for row in rows)
        if len(found) < _PAGE:
            return
        after = (found[-1][0], found[-1][1])


def keys(conn: Connection, scope: Scope, after: tuple[datetime, str] | None, limit: int) -> list[TupleRow]:
    """The next records of a scope: (created_at, id, size of the text). Args: after: the last one of the page before."""
    tests, values = behind(after)
    sql = in_order(scope, _KEYS, tests, limit="%(limit)s", newest_first=False)
    return conn.execute(sql, {**predicate(scope)[1], **values, "limit": limit}).fetchall()


def read(conn: Connection, scope: Scope, ids: Sequence[str]) -> list[TupleRow]:
    """Rows of records of a scope by their ids, in order of (created_at, id)."""
    within, params = predicate(scope)
    return conn.execute(_ROWS.format(scope=within, each=EACH_ID), {**params, "ids": list(ids)}).fetchall()


def _portions(found: Sequence[Sequence[Any]]) -> Iterator[list[str]]:
    ids: list[str] = []
    held = 0
    for _, record_id, size in found:
        if ids and held + size > _BYTES:
            yield ids
            ids, held = [], 0
        ids.append(record_id)
        held += size
    if ids:
        yield ids


def _exported(namespace: Namespace, row: Sequence[Any]) -> Exported:
    fields = dict(zip(_NAMES, row, strict=False))
    fields |= {"tier": Tier.from_rank(fields["tier"]).value, "tenant": namespace.tenant, "agent": namespace.agent,
               "session": namespace.session, "scope": namespace.scope, "run": namespace.run}  # fmt: skip
    if fields["moved_from"] is not None:
        fields["moved_from"] = Tier.from_rank(fields["moved_from"]).value
    if fields["content"] is not None:
        return Exported(fields, None)
    body, raw_bytes, object_key = row[-3:]
    return Exported(fields, StoredBody(fields["summary"], body, raw_bytes, bytes.fromhex(fields["sha256"]), object_key))


def load(
    conn: Connection,
    new: NewOperation,
    rows: Sequence[tuple[Place, PortableRecord]],
    patience: Patience,
    *,
    embed: bool,
) -> tuple[Loaded, list[Message]]:
    """Store records of one bank as another installation had them, and write the steps that index and embed them.

    Bodies of cold records stay in the database whatever their size; the next time they go cold they are kept as always.
    Raises: RejectedError when the operation's key was used with another body.
    """
    operation, fresh = operations.create(conn, new)
    if not fresh:
        return Loaded(operation.id, new=False), []
    values = {"rows": _json(rows), "vector_state": "pending" if embed else "none"}
    written = {(int(ns), str(i)): int(key) for key, ns, i in conn.execute(_LOAD, values).fetchall()}
    _load_bodies(conn, rows, written)
    keys = sorted(written.values())
    wanted = [NewStep(stage, {"keys": keys}) for stage in ([INDEX, TIER_EMBED] if embed and keys else [INDEX])]
    ids = steps.add(conn, new.id, wanted, retry_for=patience.retry_for, nudge_after=patience.nudge_after)
    messages = [
        outbox.announce(conn, one.stage, step_id, operation_id=new.id, trace_id=new.trace_id, delay=patience.grace)
        for step_id, one in zip(ids, wanted, strict=True)
    ]
    return Loaded(new.id, written=len(written)), messages


def _load_bodies(
    conn: Connection, rows: Sequence[tuple[Place, PortableRecord]], written: dict[tuple[int, str], int]
) -> None:
    raws = {
        written[place.namespace_id, record.id]: record.content.encode()
        for place, record in rows
        if record.summary is not None
        and record.summary != record.content
        and (place.namespace_id, record.id) in written
    }
    if raws:
        bodies = [compressed(raw) for raw in raws.values()]
        conn.execute(_BODIES, {"keys": list(raws), "bodies": bodies, "raw": [len(raw) for raw in raws.values()]})


def _json(rows: Sequence[tuple[Place, PortableRecord]]) -> str:
    # Of two lines for one record the first counts.
    unique = {(place.namespace_id, record.id): (place, record) for place, record in reversed(rows)}.values()
    return json.dumps([_row(place, record) for place, record in unique], ensure_ascii=False, separators=(",", ":"))


def _row(place: Place, record: PortableRecord) -> dict[str, Any]:
    moved_at, moved_from = record.moved_at, record.moved_from
    return {
        "namespace_id": place.namespace_id,
        "bank_id": place.bank_id,
        "id": record.id,
        "content": None if record.tier is Tier.COLD else record.content,
        "sha256": record.sha256,
        "role": record.role,
        "categories": record.categories,
        "metadata": record.metadata,
        "importance": record.importance,
        "tier": record.tier.rank,
        "pinned": record.pinned,
        "summary": record.summary,
        "version": record.version,
        "access_count": record.access_count,
        "heat_log": record.heat_log,
        "value_log": record.value_log,
        "created_at": record.created_at.isoformat(),
        "last_access_at": record.last_access_at.isoformat(),
        "moved_at": None if moved_at is None else moved_at.isoformat(),
        "moved_from": None if moved_from is None else moved_from.rank,
        "size_bytes": len(record.content.encode()),
    }
