"""Operations: one row per call of a producer, with a state that tells the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.stages import ENDLESS
from isotherm.storage.postgres import tier_index
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.steps import FOR_EVER, READY

_COLUMNS = """o.id, o.kind, o.state, o.bank_id, o.namespace_id, o.trace_id, o.result, o.error,
              o.created_at, o.started_at, o.finished_at"""

_CREATE = f"""
INSERT INTO operations AS o (id, kind, bank_id, namespace_id, key_hash, fingerprint, trace_id)
VALUES (%(id)s, %(kind)s, coalesce(%(bank)s, (SELECT n.bank_id FROM namespaces AS n WHERE n.id = %(namespace)s)), %(namespace)s, %(key)s, %(fingerprint)s, %(trace)s)
ON CONFLICT DO NOTHING
RETURNING {_COLUMNS}"""

_BY_KEY = f"SELECT {_COLUMNS}, o.fingerprint FROM operations AS o WHERE o.kind = %s AND o.key_hash = %s"
_BY_ID = f"SELECT {_COLUMNS} FROM operations AS o WHERE o.id = %s"
_WAITING_PASS = f"""SELECT {_COLUMNS} FROM operations AS o
WHERE o.kind = 'tier.reconcile' AND o.state = 'accepted' AND o.namespace_id = %s"""
# Ids are UUIDv7: they ascend with time.
_LIST = f"""
SELECT {_COLUMNS} FROM operations AS o
WHERE (%(states)s::text[] IS NULL OR o.state = ANY(%(states)s)) AND (%(kind)s::text IS NULL OR o.kind = %(kind)s)
ORDER BY o.id DESC LIMIT %(limit)s"""

_STEPS = """
SELECT id, stage, unit, queue, state, attempts, waits, owner, last_error, receipt, created_at, started_at, finished_at
FROM operation_steps WHERE operation_id = %s ORDER BY id"""

_CANCEL = """
WITH stopped AS (
    UPDATE operation_steps SET state = 'cancelled', lease_until = NULL, finished_at = now()
    WHERE operation_id = %(id)s AND state IN ('pending', 'running')
)
UPDATE operations SET state = 'cancelled', finished_at = now() WHERE id = %(id)s AND finished_at IS NULL"""

_RETRY = """
WITH again AS (
    UPDATE operation_steps AS s
    SET state = 'pending', attempts = 0, waits = 0, not_before = now(), nudges = 0, nudge_at = now() + %(nudge)s,
        retry_until = now() + CASE WHEN stage = ANY(%(endless)s) THEN %(for_ever)s ELSE %(retry_for)s END,
        lease_until = NULL, finished_at = NULL
    WHERE operation_id = %(id)s AND state IN ('failed', 'dead', 'cancelled')
    RETURNING s.id, s.stage, s.operation_id
), opened AS (
    UPDATE operations SET state = 'running', finished_at = NULL, error = NULL
    WHERE id = %(id)s AND EXISTS (SELECT 1 FROM again)
)
SELECT id, stage FROM again ORDER BY id"""

# What follows a retried part must be counted again: its report is opened with it.
_REOPEN = f"""
UPDATE operation_steps AS s
SET state = 'pending', attempts = 0, waits = 0, not_before = now(), nudges = 0, nudge_at = now() + %(nudge)s,
    retry_until = now() + CASE WHEN stage = ANY(%(endless)s) THEN %(for_ever)s ELSE %(retry_for)s END, finished_at = NULL
WHERE s.operation_id = %(id)s AND s.state = 'done' AND NOT ({READY})
RETURNING s.id, s.stage"""

_BACKLOG = """
SELECT queue, count(*), extract(epoch FROM now() - min(created_at)), count(*) FILTER (WHERE state = 'running')
FROM operation_steps WHERE state IN ('pending', 'running') GROUP BY queue ORDER BY queue"""

_COUNTS = "SELECT kind, state, count(*) FROM operations GROUP BY kind, state ORDER BY kind, state"


@dataclass(frozen=True, slots=True)
class Operation:
    """What a producer's call became. Times are UTC; `result` holds ids and counts once the operation is final."""

    id: UUID
    kind: str
    state: str
    bank_id: int | None
    namespace_id: int | None
    trace_id: UUID
    result: dict[str, Any] | None
    error: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None

    @property
    def final(self) -> bool:
        """Whether nothing will change any more."""
        return self.finished_at is not None


@dataclass(frozen=True, slots=True)
class StepRow:
    """A step as people see it."""

    id: int
    stage: str
    unit: str
    queue: str
    state: str
    attempts: int
    waits: int
    owner: str | None
    last_error: str | None
    receipt: dict[str, Any] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewOperation:
    """An operation to be. `key` and `fingerprint` are SHA-256 digests; the same key with another fingerprint is refused."""

    id: UUID
    kind: str
    trace_id: UUID
    bank_id: int | None = None
    namespace_id: int | None = None
    key: bytes | None = None
    fingerprint: bytes | None = None


def create(conn: Connection, new: NewOperation) -> tuple[Operation, bool]:
    """Write an operation, or find the one that this call repeats.

    Returns: the operation and whether it is new. A pass over a namespace that already has one waiting joins that one.
    Raises: RejectedError when the key was used with another body.
    """
    values = {
        "id": new.id,
        "kind": new.kind,
        "bank": new.bank_id,
        "namespace": new.namespace_id,
        "key": new.key,
        "fingerprint": new.fingerprint,
        "trace": new.trace_id,
    }
    for _ in range(3):  # a waiting pass may begin between the two looks
        row = conn.execute(_CREATE, values).fetchone()
        if row is not None:
            return Operation(*row), True
        known = by_key(conn, new) if new.key is not None else _waiting(conn, new.namespace_id)
        if known is not None:
            return known, False
    raise RejectedError(f"operation {new.id} exists already")


def by_key(conn: Connection, new: NewOperation) -> Operation | None:
    """The operation that has this kind and key.

    Raises: RejectedError when it was called with another body.
    """
    row = conn.execute(_BY_KEY, (new.kind, new.key)).fetchone()
    if row is None:
        return None
    if row[-1] != new.fingerprint:
        raise RejectedError(f"this idempotency key was used with another body, by operation {row[0]}")
    return Operation(*row[:-1])


def _waiting(conn: Connection, namespace_id: int | None) -> Operation | None:
    row = conn.execute(_WAITING_PASS, (namespace_id,)).fetchone()
    return Operation(*row) if row else None


def get(conn: Connection, operation_id: UUID) -> Operation:
    """Raises: RejectedError when there is no such operation."""
    row = conn.execute(_BY_ID, (operation_id,)).fetchone()
    if row is None:
        raise RejectedError(f"no operation {operation_id}")
    return Operation(*row)


def newest(
    conn: Connection, *, states: Sequence[str] | None = None, kind: str | None = None, limit: int = 20
) -> list[Operation]:
    """The newest operations, newest first."""
    values = {"states": None if states is None else list(states), "kind": kind, "limit": limit}
    return [Operation(*row) for row in conn.execute(_LIST, values).fetchall()]


def unfinished(conn: Connection, ids: Sequence[UUID]) -> int:
    """How many of these operations are not final."""
    row = conn.execute(
        "SELECT count(*) FROM operations WHERE id = ANY(%s) AND finished_at IS NULL", (list(ids),)
    ).fetchone()
    return int(row[0]) if row else 0


def steps_of(conn: Connection, operation_id: UUID) -> list[StepRow]:
    """The steps of an operation, in the order they were written."""
    return [StepRow(*row) for row in conn.execute(_STEPS, (operation_id,)).fetchall()]


def cancel(conn: Connection, operation_id: UUID) -> Operation:
    """Stop what has not ended; a runner in the middle of a step loses it, and its effect rolls back.

    What a pass would have moved is due as it was before.
    Raises: RejectedError when there is no such operation or it is final.
    """
    before = get(conn, operation_id)
    if (
        before.kind == "tier.reconcile" and before.namespace_id is not None
    ):  # before the operation, as a plan locks them
        tier_index.mark_due(conn, [before.namespace_id])
    conn.execute("SELECT 1 FROM operations WHERE id = %s FOR NO KEY UPDATE", (operation_id,))
    known = get(conn, operation_id)
    if known.final:
        raise RejectedError(f"operation {operation_id} is {known.state} already")
    conn.execute(_CANCEL, {"id": operation_id})
    return get(conn, operation_id)


def reopen(
    conn: Connection, operation_id: UUID, *, retry_for: timedelta, nudge_after: timedelta
) -> list[tuple[int, str]]:
    """Make the failed, dead and cancelled steps pending again, and what waits for them; returns (id, stage) of each.

    Raises: RejectedError when there is no such operation or nothing of it failed.
    """
    conn.execute("SELECT 1 FROM operations WHERE id = %s FOR NO KEY UPDATE", (operation_id,))
    known = get(conn, operation_id)
    values = {
        "id": operation_id,
        "nudge": nudge_after,
        "retry_for": retry_for,
        "endless": list(ENDLESS),
        "for_ever": FOR_EVER,
    }
    rows = conn.execute(_RETRY, values).fetchall()
    if not rows:
        raise RejectedError(f"operation {operation_id} is {known.state}: it has no failed, dead or cancelled step")
    rows += conn.execute(_REOPEN, values).fetchall()
    return [(int(i), str(stage)) for i, stage in rows]


@dataclass(frozen=True, slots=True)
class Backlog:
    """Open steps of one queue: how many, the age of the oldest in seconds, how many are running."""

    queue: str
    steps: int
    oldest_s: float
    running: int


def backlog(conn: Connection) -> list[Backlog]:
    """Open steps by queue; a queue without any is left out."""
    return [Backlog(q, int(n), float(age or 0), int(r)) for q, n, age, r in conn.execute(_BACKLOG).fetchall()]


def counts(conn: Connection) -> list[tuple[str, str, int]]:
    """How many operations there are by kind and state."""
    return [(str(kind), str(state), int(n)) for kind, state, n in conn.execute(_COUNTS).fetchall()]
