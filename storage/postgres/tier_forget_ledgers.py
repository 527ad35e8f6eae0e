"""Forgetting single records in the ledgers of work: inputs and answers of steps, keys and hashes of calls.

A step that holds a record with others goes on without it. One that is running is taken from its runner, which may have the
text in its hands: what it brings later is refused, and the step runs again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isotherm.pipeline.stages import ARCHIVE, INDEX, MIGRATE, RESTORE, SUMMARIZE, TIER_EMBED
from isotherm.storage.postgres import outbox
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_write import Patience

_STAGES = (INDEX, TIER_EMBED, MIGRATE, RESTORE, SUMMARIZE, ARCHIVE)

# Steps name records by row key: in a list of keys, or first in each of a list of moves.
_NAMED = """(
    EXISTS (SELECT 1 FROM jsonb_path_query(s.input, 'lax $.keys[*]') AS k WHERE k::text::bigint = ANY(%(keys)s))
    OR EXISTS (SELECT 1 FROM jsonb_path_query(s.input, 'lax $.moves[*][0]') AS k WHERE k::text::bigint = ANY(%(keys)s))
    OR s.answer -> 'summaries' ?| %(names)s OR s.answer -> 'refused' ?| %(names)s
    OR s.receipt -> 'set_aside' ?| %(names)s OR s.receipt -> 'evicted_ids' ?| %(ids)s)"""

# Calls over several sessions name no namespace, and passes over a tenant no bank either.
_OF_SCOPE = """(o.namespace_id = ANY(%(ns)s) OR (o.namespace_id IS NULL AND (o.bank_id IS NULL OR o.bank_id = ANY(%(bank)s))))
  AND s.stage = ANY(%(stages)s)"""

# Operations before steps, as whoever ends a step locks them.
_LOCK = f"""
SELECT o.id FROM operations AS o WHERE o.id IN (
    SELECT s.operation_id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
    WHERE {_OF_SCOPE} AND {_NAMED})
ORDER BY o.id FOR NO KEY UPDATE"""

_SCRUB = f"""
UPDATE operation_steps AS s SET
    input = CASE WHEN s.input ? 'keys' THEN jsonb_set(s.input, '{{keys}}', (
            SELECT coalesce(jsonb_agg(k), '[]') FROM jsonb_array_elements(s.input -> 'keys') AS k
            WHERE k::text::bigint <> ALL(%(keys)s)))
        WHEN s.input ? 'moves' THEN jsonb_set(s.input, '{{moves}}', (
            SELECT coalesce(jsonb_agg(m), '[]') FROM jsonb_array_elements(s.input -> 'moves') AS m
            WHERE (m ->> 0)::bigint <> ALL(%(keys)s)))
        ELSE s.input END,
    answer = s.answer
        || CASE WHEN s.answer ? 'summaries' THEN jsonb_build_object('summaries', (s.answer -> 'summaries') - %(names)s::text[]) ELSE '{{}}' END
        || CASE WHEN s.answer ? 'refused' THEN jsonb_build_object('refused', (s.answer -> 'refused') - %(names)s::text[]) ELSE '{{}}' END,
    receipt = s.receipt
        || CASE WHEN s.receipt ? 'set_aside' THEN jsonb_build_object('set_aside', (s.receipt -> 'set_aside') - %(names)s::text[]) ELSE '{{}}' END
        || CASE WHEN s.receipt ? 'evicted_ids'
           THEN jsonb_build_object('evicted_ids', (s.receipt -> 'evicted_ids') - %(ids)s::text[]) ELSE '{{}}' END,
    input_hash = sha256(s.id::text::bytea),
    token = s.token + (s.state = 'running')::int, attempts = s.attempts - (s.state = 'running')::int,
    owner = CASE WHEN s.state = 'running' THEN NULL ELSE s.owner END,
    lease_until = NULL, nudge_at = CASE WHEN s.state = 'running' THEN now() ELSE s.nudge_at END,
    state = CASE WHEN s.state = 'running' THEN 'pending' ELSE s.state END
FROM operations AS o, (SELECT id, state FROM operation_steps WHERE operation_id = ANY(%(operations)s)) AS before
WHERE o.id = s.operation_id AND before.id = s.id AND {_OF_SCOPE} AND {_NAMED}
RETURNING s.id, s.stage, o.id, o.trace_id, before.state = 'running'"""

# A call that is made again with its key is a new one: its answer would name what is gone, and its hash was made from it.
_UNKEY = (
    "UPDATE operations SET key_hash = NULL, fingerprint = NULL WHERE id = ANY(%(operations)s) AND key_hash IS NOT NULL"
)

_LEFT = f"""
SELECT count(*) FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id WHERE {_OF_SCOPE} AND {_NAMED}"""


def scrub(
    conn: Connection,
    namespace_ids: Sequence[int],
    bank_ids: Sequence[int],
    keys: Sequence[int],
    patience: Patience,
    *,
    ids: Sequence[str] = (),
) -> tuple[int, list[Message]]:
    """Take records out of the steps that name them; returns how many steps, and messages for those that run again.

    Args: keys: of their rows; ids: their own, by which receipts name what was evicted.
    """
    values = _values(namespace_ids, bank_ids, keys, ids)
    values["operations"] = [row[0] for row in conn.execute(_LOCK, values).fetchall()]
    if not values["operations"]:
        return 0, []
    rows = conn.execute(_SCRUB, values).fetchall()
    conn.execute(_UNKEY, values)
    messages = [
        outbox.announce(conn, stage, int(step_id), operation_id=operation, trace_id=trace, delay=patience.grace)
        for step_id, stage, operation, trace, was_running in rows
        if was_running
    ]
    return len(rows), messages


def left(conn: Connection, namespace_ids: Sequence[int], bank_ids: Sequence[int], keys: Sequence[int]) -> int:
    """How many steps name one of the records."""
    row = conn.execute(_LEFT, _values(namespace_ids, bank_ids, keys)).fetchone()
    return int(row[0]) if row else 0


def _values(
    namespace_ids: Sequence[int], bank_ids: Sequence[int], keys: Sequence[int], ids: Sequence[str] = ()
) -> dict[str, Any]:
    return {
        "ns": list(namespace_ids),
        "bank": list(bank_ids),
        "keys": list(keys),
        "names": [str(key) for key in keys],
        "ids": list(ids),
        "stages": list(_STAGES),
    }
