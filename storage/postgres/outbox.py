"""Messages to the broker as rows: written with their cause, published after the commit, removed when they are out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from isotherm.storage.postgres.pool import Connection

STEP = "step"  # builder of a message that runs one step

_ENQUEUE = """
INSERT INTO outbox (operation_id, step_id, builder, payload, not_before)
VALUES (%(operation)s, %(step)s, %(builder)s, %(payload)s, now() + %(delay)s)
RETURNING id"""

# A step that somebody claimed needs no message any more, and neither does an operation that is final or gone.
_PRUNE = """
DELETE FROM outbox AS o
USING (
    SELECT m.id FROM outbox AS m
    LEFT JOIN operation_steps AS s ON s.id = m.step_id
    LEFT JOIN operations AS p ON p.id = m.operation_id
    WHERE m.not_before <= now() AND (s.state <> 'pending' OR p.finished_at IS NOT NULL
         OR (m.operation_id IS NOT NULL AND p.id IS NULL) OR (m.step_id IS NOT NULL AND s.id IS NULL))
    ORDER BY m.id LIMIT %(limit)s FOR UPDATE OF m SKIP LOCKED
) AS gone
WHERE o.id = gone.id"""

_DUE = """
SELECT id, builder, payload FROM outbox
WHERE not_before <= now() ORDER BY not_before, id LIMIT %(limit)s FOR UPDATE SKIP LOCKED"""

_DEPTH = "SELECT count(*), extract(epoch FROM now() - min(created_at)) FROM outbox WHERE not_before <= now()"


@dataclass(frozen=True, slots=True)
class Message:
    """A row of the outbox: its id, the builder of its canvas and the builder's argument."""

    id: int
    builder: str
    payload: dict[str, Any]


def enqueue(
    conn: Connection,
    builder: str,
    payload: dict[str, Any],
    *,
    operation_id: UUID | None = None,
    step_id: int | None = None,
    delay: timedelta = timedelta(0),
) -> Message:
    """Write a message in the caller's transaction; the relay publishes it after `delay` unless it is gone by then."""
    row = conn.execute(
        _ENQUEUE,
        {
            "operation": operation_id,
            "step": step_id,
            "builder": builder,
            "payload": Jsonb(payload),
            "delay": delay,
        },
    ).fetchone()
    assert row is not None  # noqa: S101 - INSERT RETURNING answers with one row
    return Message(int(row[0]), builder, payload)


def step_payload(stage: str, step_id: int, operation_id: UUID, trace_id: UUID) -> dict[str, Any]:
    """The payload of a message that runs one step."""
    return {"stage": stage, "job": {"step_id": step_id, "operation_id": str(operation_id), "trace_id": str(trace_id)}}


def announce(
    conn: Connection, stage: str, step_id: int, *, operation_id: UUID, trace_id: UUID, delay: timedelta
) -> Message:
    """Write the message that runs one step, in the caller's transaction; `delay` as for `enqueue`."""
    payload = step_payload(stage, step_id, operation_id, trace_id)
    return enqueue(conn, STEP, payload, operation_id=operation_id, step_id=step_id, delay=delay)


def prune(conn: Connection, limit: int = 5_000) -> int:
    """Drop messages that nobody needs any more; returns how many."""
    return conn.execute(_PRUNE, {"limit": limit}).rowcount


def due(conn: Connection, limit: int = 200) -> list[Message]:
    """Messages whose time has come, locked until the transaction ends; other relays skip them."""
    return [Message(int(i), b, p) for i, b, p in conn.execute(_DUE, {"limit": limit}).fetchall()]


def remove(conn: Connection, ids: list[int]) -> None:
    """Remove messages that were published."""
    conn.execute("DELETE FROM outbox WHERE id = ANY(%s)", (ids,))


def depth(conn: Connection) -> tuple[int, float]:
    """How many messages are due, and the age of the oldest in seconds (0 when there is none)."""
    row = conn.execute(_DEPTH).fetchone()
    return (int(row[0]), float(row[1] or 0.0)) if row else (0, 0.0)
