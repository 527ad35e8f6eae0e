"""Whose turn it is in a bank: runs decide and write one after the other, and hand over when they are done."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from isotherm.pipeline.stages import S2_CLUSTER
from isotherm.storage.postgres import outbox
from isotherm.storage.postgres.interest_steps import ORDER
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection

_PATIENCE = timedelta(minutes=10)

# The turn of a run that ended, however it did, is free. Sessions decide in the order in which they came, since what is said
# first names a point; one that is late for longer than that is not waited for. The row is locked even if nothing changes.
_TAKE = """
INSERT INTO interest_banks AS b (bank_id, turn_of, taken_at) VALUES (%(bank)s, %(operation)s, now())
ON CONFLICT (bank_id) DO UPDATE SET turn_of = excluded.turn_of, taken_at = now()
WHERE b.turn_of IS NOT DISTINCT FROM excluded.turn_of OR (
    NOT EXISTS (SELECT 1 FROM operations AS o WHERE o.id = b.turn_of AND o.finished_at IS NULL)
    AND NOT EXISTS (
        SELECT 1 FROM operations AS mine JOIN operations AS o
          ON o.bank_id = mine.bank_id AND (o.created_at, o.id) < (mine.created_at, mine.id)
        WHERE mine.id = excluded.turn_of AND o.finished_at IS NULL AND o.created_at > now() - %(patience)s
          AND EXISTS (SELECT 1 FROM operation_steps AS s WHERE s.operation_id = o.id AND s.stage = ANY(%(stages)s)
                      AND s.state IN ('pending', 'running'))))
RETURNING b.version"""

_RELEASE = """
UPDATE interest_banks SET turn_of = NULL, taken_at = NULL, version = version + %(raise)s
WHERE bank_id = %(bank)s AND turn_of = %(operation)s RETURNING version"""

# The oldest run that came too early and waits. It need not wait for its next try.
_NEXT = """
UPDATE operation_steps SET not_before = now()
WHERE id = (
    SELECT s.id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
    WHERE o.bank_id = %(bank)s AND o.finished_at IS NULL AND s.stage = %(stage)s AND s.state = 'pending' AND s.waits > 0
    ORDER BY o.created_at, o.id LIMIT 1 FOR UPDATE OF s SKIP LOCKED)
RETURNING id, operation_id, (SELECT trace_id FROM operations WHERE id = operation_id)"""


def take(conn: Connection, bank_id: int, operation_id: UUID) -> int | None:
    """Take the turn of a bank for a run; returns the bank's version, None while it is another run's turn.

    The bank is locked until the transaction ends, so nobody hands a turn over meanwhile: a run that gives its step back in
    the same transaction cannot miss its call.
    """
    conn.execute("INSERT INTO interest_banks (bank_id) VALUES (%s) ON CONFLICT DO NOTHING", (bank_id,))
    values = {"bank": bank_id, "operation": operation_id, "patience": _PATIENCE, "stages": list(ORDER)}
    row = conn.execute(_TAKE, values).fetchone()
    return None if row is None else int(row[0])


def release(conn: Connection, bank_id: int, operation_id: UUID, *, changed: bool) -> list[Message]:
    """End a run's turn and call the next one; returns the message to publish after the commit."""
    conn.execute(_RELEASE, {"bank": bank_id, "operation": operation_id, "raise": int(changed)})
    row = conn.execute(_NEXT, {"bank": bank_id, "stage": S2_CLUSTER}).fetchone()
    if row is None:
        return []
    step_id, waiting, trace_id = row
    called = outbox.announce(
        conn, S2_CLUSTER, int(step_id), operation_id=waiting, trace_id=trace_id, delay=timedelta(0)
    )
    return [called]


def version(conn: Connection, bank_id: int) -> int:
    """How often a bank's interests have changed; part of the key of any cache over them."""
    row = conn.execute("SELECT version FROM interest_banks WHERE bank_id = %s", (bank_id,)).fetchone()
    return int(row[0]) if row else 0
