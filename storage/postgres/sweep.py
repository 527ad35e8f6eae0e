"""What the sweeper mends: lost leases, lost messages, and rows whose time is over. Every call is idempotent."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from psycopg.types.json import Jsonb

from isotherm.pipeline.work import StepState
from isotherm.storage.postgres import outbox, steps
from isotherm.storage.postgres.pool import Connection

# The operation is locked too, as whoever ends a step does first: the sweeper passes by instead of waiting for that one.
_EXPIRED = """
SELECT s.id, s.operation_id, s.stage, s.unit, s.input, s.attempts, s.token, s.answer, s.waits,
       o.bank_id, o.namespace_id, o.trace_id, s.owner
FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
WHERE s.state = 'running' AND s.lease_until < now()
ORDER BY s.lease_until LIMIT %(limit)s FOR NO KEY UPDATE OF o, s SKIP LOCKED"""

# Steps that are ready, were announced long enough ago and were claimed by nobody.
_QUIET = f"""
WITH quiet AS (
    SELECT s.id FROM operation_steps AS s
    WHERE s.state = 'pending' AND s.queue = %(queue)s AND s.nudge_at <= now() AND s.not_before <= now() AND {steps.READY}
    ORDER BY s.nudge_at LIMIT %(limit)s FOR UPDATE OF s SKIP LOCKED
)
UPDATE operation_steps AS s
SET nudges = s.nudges + 1, nudge_at = now() + least(%(base)s * power(2, least(s.nudges, 10)), %(cap)s)
FROM quiet, operations AS o
WHERE s.id = quiet.id AND o.id = s.operation_id
RETURNING s.id, s.operation_id, o.trace_id, s.stage"""

_WAITING = """
SELECT s.queue, count(*) FROM operation_steps AS s
WHERE s.state = 'pending' AND s.nudge_at <= now() AND s.not_before <= now() GROUP BY s.queue"""

# Oldest first and by their keys: how many are that old is not known to a plan that was made for any age.
_OLD_STEPS = """
DELETE FROM operation_steps WHERE id = ANY(ARRAY(
    SELECT s.id FROM operations AS o CROSS JOIN LATERAL (
        SELECT id FROM operation_steps AS s WHERE s.operation_id = o.id LIMIT %(limit)s) AS s
    WHERE o.finished_at < now() - %(keep)s ORDER BY o.finished_at LIMIT %(limit)s))"""

_OLD_OPERATIONS = """
DELETE FROM operations WHERE id = ANY(ARRAY(
    SELECT id FROM operations WHERE finished_at < now() - %(keep)s ORDER BY finished_at LIMIT %(limit)s))"""

_OLD_TOUCHES = "DELETE FROM touch_batches WHERE applied_at < now() - interval '1 day'"


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep did: steps taken from lost runners, steps that reached their last attempt, and (id, stage) of both."""

    requeued: tuple[tuple[int, str], ...] = ()
    dead: tuple[tuple[int, str], ...] = ()


def expired(conn: Connection, *, cap: int, delay: timedelta, nudge_after: timedelta, limit: int = 200) -> Swept:
    """Take back the steps whose runner has not renewed its lease.

    Args: cap: attempts after which a step is dead; delay: wait before the next attempt.
    """
    requeued, dead = [], []
    for *columns, owner in conn.execute(_EXPIRED, {"limit": limit}).fetchall():
        step = steps.ClaimedStep(*columns)
        if step.attempts >= cap:
            reason = f"its runner was lost {step.attempts} times; the last was {owner}"
            steps.end(conn, step, StepState.DEAD, error=reason)
            dead.append((step.id, step.stage))
        else:
            outbox.announce(
                conn, step.stage, step.id, operation_id=step.operation_id, trace_id=step.trace_id, delay=delay
            )
            error = f"runner {owner} was lost"
            steps.give_back(conn, step, delay=delay, nudge_after=nudge_after, counted=True, error=error)
            requeued.append((step.id, step.stage))
    return Swept(tuple(requeued), tuple(dead))


def waiting(conn: Connection) -> dict[str, int]:
    """By queue, how many steps should have been claimed by now."""
    return {str(queue): int(n) for queue, n in conn.execute(_WAITING).fetchall()}


def nudge(conn: Connection, queue: str, *, base: timedelta, limit: int) -> int:
    """Announce again the steps of a queue that nobody claimed; returns how many.

    Args: base: the wait before the next announcement; doubles with each, up to 10 minutes.
    """
    values = {"queue": queue, "base": base, "cap": timedelta(minutes=10), "limit": limit}
    rows = conn.execute(_QUIET, values).fetchall()
    if rows:
        conn.cursor().executemany(
            "INSERT INTO outbox (operation_id, step_id, builder, payload) VALUES (%s, %s, %s, %s)",
            [
                (op, step, outbox.STEP, Jsonb(outbox.step_payload(stage, step, op, trace)))
                for step, op, trace, stage in rows
            ],
        )
    return len(rows)


def purge(
    conn: Connection, *, keep_steps: timedelta, keep_operations: timedelta, limit: int = 5_000
) -> tuple[int, int]:
    """Delete old steps and operations that are final; returns how many of each."""
    gone_steps = conn.execute(_OLD_STEPS, {"keep": keep_steps, "limit": limit}).rowcount
    gone_operations = conn.execute(_OLD_OPERATIONS, {"keep": keep_operations, "limit": limit}).rowcount
    conn.execute(_OLD_TOUCHES)
    return gone_steps, gone_operations
