"""Remembering: records, their operation, its steps and messages in one statement, so that an answer means durable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from isotherm.pipeline.stages import INDEX, STAGES, TIER_EMBED
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.records import NewRecord
from isotherm.storage.postgres import arrays, operations, outbox, steps
from isotherm.storage.postgres.arrays import Column
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection

KIND = "tier.remember"
# Most written rows of a call that are told one by one.
TOLD = 50

# Rows come in one order, so that two batches over the same ids wait for each other instead of deadlocking.
# A record that is there with the same text and metadata is left alone; another text replaces it and its cold body, and
# what it was found by, words and vector, goes with the text it came from. One that is pinned while it is cold is indexed
# again, since what was indexed has a pass to follow, and that lifts it.
_REMEMBER = """
WITH sent AS (
    DELETE FROM outbox WHERE id = ANY(%(sent)s)
), op AS (
    INSERT INTO operations (id, kind, bank_id, namespace_id, key_hash, fingerprint, trace_id)
    VALUES (%(operation)s, %(kind)s, %(bank)s, %(namespace)s, %(key)s, %(fingerprint)s, %(trace)s)
    ON CONFLICT (kind, key_hash) WHERE key_hash IS NOT NULL DO NOTHING
    RETURNING id
), given AS (
    SELECT * FROM unnest(%(spaces)s, %(banks)s, %(ids)s, %(texts)s, %(hashes)s, %(roles)s, %(tags)s, %(meta)s,
            %(weights)s, %(tiers)s, %(pins)s, %(values)s, %(created)s, %(sizes)s)
        AS g (space, bank, id, said, sha, role, tags, meta, weight, tier, pinned, value, created, size)
    WHERE EXISTS (SELECT 1 FROM op)
    ORDER BY space, id COLLATE "C"
), written AS (
    INSERT INTO tier_records AS r (
        namespace_id, bank_id, id, content, content_sha256, role, categories, metadata, importance, tier, pinned,
        value_log, created_at, last_access_at, size_bytes, vector_state)
    SELECT space, bank, id, said, sha, role, coalesce(tags::text[], '{}'), coalesce(meta::jsonb, '{}'), weight, tier,
           pinned, value, created, created, size, %(state)s
    FROM given
    ON CONFLICT (namespace_id, id) DO UPDATE SET
        (content, tier, summary, moved_at, moved_from, last_access_at, value_log, indexed, vector_state) = (
            SELECT CASE WHEN same THEN r.content ELSE excluded.content END,
                CASE WHEN same THEN r.tier ELSE excluded.tier END,
                CASE WHEN same THEN r.summary END,
                CASE WHEN moved THEN tier_came_again(r.key, %(operation)s, excluded.tier) ELSE r.moved_at END,
                CASE WHEN moved THEN r.tier ELSE r.moved_from END,
                CASE WHEN same THEN r.last_access_at ELSE greatest(r.last_access_at, excluded.last_access_at) END,
                CASE WHEN same THEN r.value_log ELSE greatest(r.value_log, excluded.value_log) END,
                r.indexed AND found AND NOT (r.tier = 1 AND excluded.pinned),
                CASE WHEN found AND r.vector_state <> 'none' THEN r.vector_state ELSE excluded.vector_state END
            FROM (SELECT r.content_sha256 = excluded.content_sha256) AS a (same),
                LATERAL (SELECT NOT same AND r.tier <> excluded.tier, same AND r.metadata -> 'searchable'
                    IS NOT DISTINCT FROM excluded.metadata -> 'searchable') AS b (moved, found)),
        content_sha256 = excluded.content_sha256, size_bytes = excluded.size_bytes, role = excluded.role,
        categories = excluded.categories, metadata = excluded.metadata, importance = excluded.importance,
        pinned = r.pinned OR excluded.pinned, version = r.version + 1
    WHERE (r.content_sha256, r.metadata, r.importance, r.categories, r.role, r.pinned)
        IS DISTINCT FROM (excluded.content_sha256, excluded.metadata, excluded.importance, excluded.categories,
                          excluded.role, r.pinned OR excluded.pinned)
    RETURNING r.key, r.namespace_id, r.id, r.tier, r.version, r.vector_state, r.moved_at
), emptied AS (
    DELETE FROM cold_bodies USING written
    WHERE record_key = key AND tier > 1 AND version > 1
), unlike AS (
    DELETE FROM tier_vectors USING written
    WHERE record_key = key AND vector_state NOT IN ('done', 'again') AND version > 1
), step AS (
    INSERT INTO operation_steps (operation_id, stage, queue, input, input_hash, retry_until, nudge_at)
    SELECT op.id, s.stage, s.queue,
           jsonb_build_object('keys', (SELECT coalesce(jsonb_agg(key ORDER BY key), '[]') FROM written
               WHERE s.whole OR vector_state = 'pending')),
           %(hash)s, now() + %(retry_for)s, now() + %(nudge)s
    FROM op, (VALUES (%(index)s, %(queue)s, true), (%(embed)s, %(embed_queue)s, false)) AS s (stage, queue, whole)
    WHERE s.whole OR EXISTS (SELECT 1 FROM written WHERE vector_state = 'pending')
    RETURNING id, stage
), message AS (
    INSERT INTO outbox (operation_id, step_id, builder, payload, not_before)
    SELECT op.id, step.id, 'step',
           jsonb_build_object('stage', step.stage, 'job', jsonb_build_object(
               'step_id', step.id, 'operation_id', op.id, 'trace_id', %(trace)s::uuid)),
           now() + %(grace)s
    FROM op, step RETURNING id, payload
)
SELECT (SELECT jsonb_agg(jsonb_build_array(id, payload) ORDER BY id) FROM message), n,
       CASE WHEN n <= %(told)s THEN (SELECT coalesce(jsonb_agg(jsonb_build_array(key, namespace_id, id, version)), '[]') FROM written) END, m
FROM (SELECT count(*) AS n, count(*) FILTER (WHERE moved_at = now()) AS m FROM written) AS w"""

# On one line it is short enough for the driver to keep what it made of it; above 4,096 characters it starts over each time.
_STATEMENT = " ".join(_REMEMBER.split())


class Placed(NamedTuple):
    """A cleaned record and where it goes."""

    place: Place
    record: NewRecord


@dataclass(frozen=True, slots=True)
class Patience:
    """How long steps are retried, when they are announced again, and how long producers may publish first."""

    retry_for: timedelta
    nudge_after: timedelta
    grace: timedelta


@dataclass(frozen=True, slots=True)
class Written:
    """A row that a call wrote; version 1 means that it is new."""

    key: int
    namespace_id: int
    id: str
    version: int


@dataclass(frozen=True, slots=True)
class Remembered:
    """Outcome of one statement.

    Args: messages: to publish, none when the call was a repeat; written: how many rows are new or changed; rows: these, None
    when there are more than `TOLD`; moved: how many went to another tier, that of their new text.
    """

    operation_id: UUID
    messages: tuple[Message, ...] = ()
    written: int = 0
    rows: tuple[Written, ...] | None = ()
    moved: int = 0

    @property
    def new(self) -> bool:
        """Whether the call was not a repeat of an earlier one."""
        return bool(self.messages)


def remember(
    conn: Connection,
    new: NewOperation,
    rows: Mapping[str, Column],
    patience: Patience,
    sent: Sequence[int] = (),
    *,
    embed: bool = False,
) -> Remembered:
    """Store records under one operation. The caller commits, then publishes the messages.

    Args: rows: what `columns` makes of them; sent: ids of outbox messages that
    this process has published since, to be removed on the way; embed: new and changed texts get a vector, by a step.
    Raises: RejectedError when the operation's key was used with another body.
    """
    state = "pending" if embed else "none"
    values = {**_operation_values(new, patience), **rows, "sent": arrays.bigints(sent), "state": state}
    row = conn.execute(_STATEMENT, {**values, "told": TOLD}).fetchone()
    assert row is not None  # noqa: S101 - a count is one row
    messages, written, told, moved = row
    if messages is None:
        known = operations.by_key(conn, new)
        assert known is not None  # noqa: S101 - only a conflict on the key leaves the step out
        return Remembered(known.id)
    out = tuple(Message(int(message_id), outbox.STEP, payload) for message_id, payload in messages)
    return Remembered(new.id, out, written, None if told is None else tuple(Written(*w) for w in told), moved)


def fingerprint_rows(rows: Sequence[Placed]) -> bytes:
    """SHA-256 over everything of a call that a repeat must have in common with it."""
    parts = [
        (p.place.namespace_id, p.record.id, p.record.content, p.record.role, p.record.weight,
         list(p.record.categories), p.record.metadata, p.record.pinned, p.record.tier.value)
        for p in rows
    ]  # fmt: skip
    return steps.input_hash({"rows": parts})


def _operation_values(new: NewOperation, patience: Patience) -> dict[str, Any]:
    return {
        "operation": new.id,
        "kind": new.kind,
        "bank": new.bank_id,
        "namespace": new.namespace_id,
        "key": new.key,
        "fingerprint": new.fingerprint,
        "hash": new.fingerprint or new.id.bytes,
        "trace": new.trace_id,
        "index": INDEX,
        "queue": STAGES[INDEX].value,
        "embed": TIER_EMBED,
        "embed_queue": STAGES[TIER_EMBED].value,
        "retry_for": patience.retry_for,
        "nudge": patience.nudge_after,
        "grace": patience.grace,
    }


def columns(rows: Sequence[Placed]) -> dict[str, Column]:
    """Records by column, each as the array that its parameter takes; of two with one id in one namespace the last one counts.

    Args: rows: at least one.
    """
    unique = list({(p.place.namespace_id, p.record.id): p for p in rows}.values())
    records = [p.record for p in unique]
    contents = [r.content.encode() for r in records]
    weights, moments = [r.weight for r in records], [r.created_at for r in records]
    return {
        "spaces": arrays.bigints([p.place.namespace_id for p in unique]),
        "banks": arrays.bigints([p.place.bank_id for p in unique]),
        "ids": arrays.texts([r.id for r in records]),
        "texts": arrays.encoded(contents),
        "hashes": arrays.byteas([hashlib.sha256(content).digest() for content in contents]),
        "roles": arrays.texts([r.role for r in records]),
        "tags": arrays.texts([_array(r.categories) if r.categories else None for r in records]),
        "meta": arrays.texts([_json(r.metadata) if r.metadata else None for r in records]),
        "weights": arrays.floats(weights),
        "tiers": arrays.smallints([r.tier.rank for r in records]),
        "pins": arrays.booleans([r.pinned for r in records]),
        "values": arrays.floats(heat.value_logs(weights, moments)),
        "created": arrays.moments(moments),
        "sizes": arrays.integers([len(content) for content in contents]),
    }


def _array(names: Sequence[str]) -> str:
    """An array of texts as SQL spells it: quoted, so that nothing in a name means anything."""
    quoted = (name.replace("\\", r"\\").replace('"', r"\"") for name in names)
    return f"""{{{",".join(f'"{name}"' for name in quoted)}}}"""


def _json(metadata: Mapping[str, Any]) -> str:
    return json.dumps(metadata, ensure_ascii=False, separators=(",", ":"))
