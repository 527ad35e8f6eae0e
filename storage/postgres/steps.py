"""Steps of durable work: claimed under a lease, kept by a heartbeat, and ended once by whoever holds the token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from isotherm.pipeline.errors import AlreadyDoneError, LostLeaseError, NotReadyError, RejectedError
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.stages import STAGES
from isotherm.pipeline.work import StepState
from isotherm.storage.postgres import arrays
from isotherm.storage.postgres.arrays import Column
from isotherm.storage.postgres.pool import Connection

# How long a stage without end may wait.
FOR_EVER = timedelta(days=36_500)

# A step waits while any step it names, by stage or by stage and unit, is not final.
READY = """NOT EXISTS (
    SELECT 1 FROM operation_steps AS w
    WHERE w.operation_id = s.operation_id AND w.state IN ('pending', 'running')
      AND (w.stage = ANY(s.waits_for) OR w.stage || '/' || w.unit = ANY(s.waits_for)))"""

_ADD = """
INSERT INTO operation_steps (operation_id, stage, unit, queue, input, input_hash, waits_for, retry_until, nudge_at)
SELECT %(operation)s, n.stage, n.unit, n.queue, n.input::jsonb, n.input_hash,
       ARRAY(SELECT jsonb_array_elements_text(n.waits_for)), now() + %(retry_for)s, now() + %(nudge)s
FROM unnest(%(stages)s::text[], %(units)s::text[], %(queues)s::text[], %(inputs)s::text[], %(hashes)s::bytea[],
            %(waits)s::jsonb[]) WITH ORDINALITY AS n (stage, unit, queue, input, input_hash, waits_for, place)
ORDER BY n.place
RETURNING id, stage, unit"""

_CLAIM = f"""
WITH claimed AS (
    UPDATE operation_steps AS s
    SET state = 'running', token = token + 1, attempts = attempts + 1, owner = %(owner)s,
        lease_until = now() + %(lease)s, started_at = coalesce(started_at, now()),
        last_error = CASE WHEN s.state = 'running' THEN 'runner ' || s.owner || ' was lost' ELSE last_error END
    WHERE s.id = %(id)s AND s.operation_id = %(operation)s AND s.stage = %(stage)s AND s.attempts < %(cap)s
      AND ((s.state = 'pending' AND s.not_before <= now()) OR (s.state = 'running' AND s.lease_until < now()))
      AND {READY}
    RETURNING s.id, s.operation_id, s.stage, s.unit, s.input, s.attempts, s.token, s.answer, s.waits
), begun AS (
    UPDATE operations AS o SET state = 'running', started_at = now()
    FROM claimed WHERE o.id = claimed.operation_id AND o.state = 'accepted'
)
SELECT c.id, c.operation_id, c.stage, c.unit, c.input, c.attempts, c.token, c.answer, c.waits,
       o.bank_id, o.namespace_id, o.trace_id FROM claimed AS c JOIN operations AS o ON o.id = c.operation_id
"""

# Steps that nobody has tried yet, and that may run with another one of their stage. Those that failed once run alone, so
# that one that breaks its runner cannot take others with it.
_CLAIM_MORE = f"""
WITH chosen AS (
    SELECT s.id FROM operation_steps AS s
    WHERE s.queue = %(queue)s AND s.stage = %(stage)s AND s.state = 'pending' AND s.attempts = 0 AND s.not_before <= now()
      AND {READY}
    ORDER BY s.nudge_at, s.id LIMIT %(limit)s FOR NO KEY UPDATE OF s SKIP LOCKED
), claimed AS (
    UPDATE operation_steps AS s
    SET state = 'running', token = token + 1, attempts = 1, owner = %(owner)s, lease_until = now() + %(lease)s,
        started_at = coalesce(started_at, now())
    FROM chosen WHERE s.id = chosen.id
    RETURNING s.id, s.operation_id, s.stage, s.unit, s.input, s.attempts, s.token, s.answer, s.waits
), begun AS (
    UPDATE operations AS o SET state = 'running', started_at = now()
    FROM claimed WHERE o.id = claimed.operation_id AND o.state = 'accepted'
)
SELECT c.id, c.operation_id, c.stage, c.unit, c.input, c.attempts, c.token, c.answer, c.waits,
       o.bank_id, o.namespace_id, o.trace_id
FROM claimed AS c JOIN operations AS o ON o.id = c.operation_id ORDER BY c.id"""

_STATE = "SELECT state, receipt, operation_id, stage FROM operation_steps WHERE id = %s"

_RENEW = """
UPDATE operation_steps SET lease_until = now() + %(lease)s
WHERE id = %(id)s AND token = %(token)s AND state = 'running'"""

# What the states of its steps make of an operation. Mirrors isotherm.pipeline.work.derive_state.
DERIVED = """CASE
        WHEN found && '{pending,running}' THEN 'running'
        WHEN found = '{done}' THEN 'done'
        WHEN found && '{cancelled}' THEN 'cancelled'
        WHEN found && '{done}' THEN 'partial'
        WHEN found && '{dead}' THEN 'dead'
        ELSE 'failed' END"""

# Ends a step and, with it, its operation when it was the last. The caller holds the operation's row lock, so two
# last steps cannot both see the other one open.
_END = f"""
WITH ended AS (
    UPDATE operation_steps
    SET state = %(state)s, receipt = %(receipt)s, last_error = coalesce(%(error)s, last_error),
        lease_until = NULL, finished_at = clock_timestamp()
    WHERE id = %(id)s AND state = 'running' AND token = %(token)s
    RETURNING operation_id
), states AS (
    SELECT array_agg(DISTINCT CASE WHEN s.id = %(id)s THEN %(state)s ELSE s.state END) AS found
    FROM operation_steps AS s WHERE s.operation_id = %(operation)s
), derived AS (
    SELECT {DERIVED} AS state FROM states
), closed AS (
    UPDATE operations AS o
    SET state = d.state, finished_at = CASE WHEN d.state = 'running' THEN NULL ELSE clock_timestamp() END,
        started_at = coalesce(o.started_at, now()),
        error = CASE WHEN d.state NOT IN ('done', 'cancelled') THEN coalesce(o.error, %(named)s) END,
        result = CASE WHEN %(is_result)s THEN %(receipt)s ELSE o.result END
    FROM derived AS d, ended WHERE o.id = ended.operation_id
)
SELECT d.state FROM ended, derived AS d"""

# A step that was claimed more than once has outlived the messages of those that wait for it: the sweeper announces them.
_WAKE = """
UPDATE operation_steps SET nudge_at = now()
WHERE operation_id = %(operation)s AND state = 'pending' AND nudge_at > now()
  AND (%(stage)s = ANY(waits_for) OR %(stage)s || '/' || %(unit)s = ANY(waits_for))"""

_GIVE_BACK = """
UPDATE operation_steps
SET state = 'pending', lease_until = NULL, owner = NULL, attempts = attempts - %(uncount)s,
    waits = waits + %(uncount)s, not_before = now() + %(delay)s, last_error = coalesce(%(error)s, last_error),
    nudge_at = now() + %(delay)s + %(nudge)s
WHERE id = %(id)s AND token = %(token)s AND state = 'running'"""

_LATE = "SELECT now() > retry_until FROM operation_steps WHERE id = %s"


@dataclass(frozen=True, slots=True)
class NewStep:
    """A step to be: stage (and so task and queue), unit within the stage, input (ids and numbers), what it waits for."""

    stage: str
    input: dict[str, Any]
    unit: str = ""
    waits_for: tuple[str, ...] = ()


@dataclass(slots=True)
class ClaimedStep:
    """A step that this runner owns until its lease ends."""

    id: int
    operation_id: UUID
    stage: str
    unit: str
    input: dict[str, Any]
    attempts: int
    token: int
    answer: dict[str, Any] | None
    waits: int
    bank_id: int | None
    namespace_id: int | None
    trace_id: UUID
    receipt: dict[str, Any] = field(default_factory=dict)
    operation_state: str | None = None

    def settle(self, conn: Connection, receipt: dict[str, Any], *, is_result: bool = False) -> None:
        """End the step in the transaction of its effect.

        Args: receipt: ids and counts, repeated to later deliveries; is_result: it is the operation's result too.
        Raises: LostLeaseError, and so rolls the effect back, when the step is not ours any more.
        """
        self.operation_state = end(conn, self, StepState.DONE, receipt, is_result=is_result)
        self.receipt = receipt


_UNCLAIMED = """
SELECT count(*) FROM (
    SELECT 1 FROM operation_steps WHERE stage = %(stage)s AND state = 'pending' LIMIT %(limit)s) AS bounded"""


def input_hash(value: dict[str, Any]) -> bytes:
    """SHA-256 of an input, independent of the order of its keys."""
    return digest(_canonical(value).encode())


def input_columns(values: Sequence[dict[str, Any]]) -> dict[str, Column]:
    """Inputs of steps as the parameters `inputs`, their JSON, and `hashes`, as of `input_hash`."""
    written = [_canonical(value) for value in values]
    return {"inputs": arrays.texts(written), "hashes": arrays.byteas(digest(each.encode()) for each in written)}


def _canonical(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def add(
    conn: Connection, operation_id: UUID, new: list[NewStep], *, retry_for: timedelta, nudge_after: timedelta
) -> list[int]:
    """Write steps of an operation in the caller's transaction; returns their ids in the order given."""
    rows = conn.execute(
        _ADD,
        {
            "operation": operation_id,
            "stages": [n.stage for n in new],
            "units": [n.unit for n in new],
            "queues": [STAGES[n.stage].value for n in new],
            **input_columns([n.input for n in new]),
            "waits": [Jsonb(list(n.waits_for)) for n in new],
            "retry_for": retry_for,
            "nudge": nudge_after,
        },
    ).fetchall()
    ids = {(stage, unit): int(step) for step, stage, unit in rows}
    return [ids[n.stage, n.unit] for n in new]


def claim(
    conn: Connection, step_id: int, operation_id: UUID, stage: str, *, owner: str, lease: timedelta, cap: int
) -> ClaimedStep:
    """Take a step for this runner, in a short transaction before any work.

    Args: operation_id, stage: what the message says of the step; owner: who runs it, for people; lease: how long it is ours
    without a renewal; cap: most attempts.
    Raises: RejectedError when the step is of another operation or stage; AlreadyDoneError with the stored receipt;
    NotReadyError when somebody else runs it, it waits, or it is gone.
    """
    values = {"id": step_id, "operation": operation_id, "stage": stage, "owner": owner, "lease": lease, "cap": cap}
    row = conn.execute(_CLAIM, values).fetchone()
    if row is not None:
        return ClaimedStep(*row)
    known = conn.execute(_STATE, (step_id,)).fetchone()
    if known is None:
        raise NotReadyError(f"step {step_id} is gone")
    state, receipt, *belongs = known
    if belongs != [operation_id, stage]:
        raise RejectedError(f"step {step_id} is not one of stage {stage} of operation {operation_id}")
    if state in {StepState.PENDING, StepState.RUNNING}:
        raise NotReadyError(f"step {step_id} is {state}: owned, waiting or not due")
    raise AlreadyDoneError(step_id, state, receipt)


def claim_more(conn: Connection, stage: str, *, owner: str, lease: timedelta, limit: int) -> list[ClaimedStep]:
    """Take steps of a stage that nobody has tried yet, in the order in which they wait; never one that is locked."""
    values = {"queue": STAGES[stage].value, "stage": stage, "owner": owner, "lease": lease, "limit": limit}
    return [ClaimedStep(*row) for row in conn.execute(_CLAIM_MORE, values).fetchall()]


def open_of(conn: Connection, step_ids: Sequence[int]) -> frozenset[int]:
    """Those of the steps that are not final, or that are not there."""
    sql = "SELECT id FROM operation_steps WHERE id = ANY(%s) AND state NOT IN ('pending', 'running')"
    return frozenset(step_ids) - {int(row[0]) for row in conn.execute(sql, (list(step_ids),)).fetchall()}


def renew(conn: Connection, step: ClaimedStep, lease: timedelta) -> bool:
    """Prolong the lease; False when the step is not ours any more."""
    return conn.execute(_RENEW, {"id": step.id, "token": step.token, "lease": lease}).rowcount == 1


def end(
    conn: Connection,
    step: ClaimedStep,
    state: StepState,
    receipt: dict[str, Any] | None = None,
    *,
    error: str | None = None,
    is_result: bool = False,
) -> str:
    """Give a step its final state; returns the state of its operation.

    Raises: LostLeaseError when the step is not ours any more.
    """
    _hold(conn, step)
    row = conn.execute(
        _END,
        {
            "id": step.id,
            "operation": step.operation_id,
            "token": step.token,
            "state": state.value,
            "receipt": None if receipt is None else Jsonb(receipt),
            "error": error,
            "named": f"{step.stage}/{step.unit}: {error}" if step.unit and error else error,
            "is_result": is_result,
        },
    ).fetchone()
    if row is None:
        raise LostLeaseError(f"step {step.id} has another runner")
    wake(conn, step)
    return str(row[0])


def _hold(conn: Connection, step: ClaimedStep) -> None:
    """Lock the operation before any of its steps, as whoever takes records out of steps does."""
    conn.execute("SELECT 1 FROM operations WHERE id = %s FOR NO KEY UPDATE", (step.operation_id,))


def wake(conn: Connection, step: ClaimedStep) -> None:
    """Have those that waited for an ended step announced, if it was claimed more than once."""
    if step.token > 1:
        conn.execute(_WAKE, {"operation": step.operation_id, "stage": step.stage, "unit": step.unit})


def give_back(
    conn: Connection, step: ClaimedStep, *, delay: timedelta, nudge_after: timedelta, counted: bool, error: str | None
) -> bool:
    """Make a claimed step pending again; False when it is not ours any more.

    Args: delay: when it may be claimed again; counted: whether this claim stays an attempt.
    """
    values = {"id": step.id, "token": step.token, "delay": delay, "nudge": nudge_after, "error": error}
    return conn.execute(_GIVE_BACK, {**values, "uncount": 0 if counted else 1}).rowcount == 1


def is_late(conn: Connection, step_id: int) -> bool:
    """Whether the time in which a step may wait for others is over."""
    row = conn.execute(_LATE, (step_id,)).fetchone()
    return bool(row[0]) if row else True


def unclaimed(conn: Connection, stage: str, limit: int) -> int:
    """How many steps of a stage nobody has claimed yet, up to a limit."""
    row = conn.execute(_UNCLAIMED, {"stage": stage, "limit": limit}).fetchone()
    return int(row[0]) if row else 0


def store_answer(conn: Connection, step: ClaimedStep, answer: dict[str, Any]) -> None:
    """Keep a model's answer before it is applied, so that a killed runner never asks twice.

    Raises: LostLeaseError when the step is not ours any more.
    """
    _hold(conn, step)  # it may end in the same transaction
    sql = "UPDATE operation_steps SET answer = %s WHERE id = %s AND token = %s AND state = 'running'"
    if conn.execute(sql, (Jsonb(answer), step.id, step.token)).rowcount != 1:
        raise LostLeaseError(f"step {step.id} has another runner")


@dataclass(frozen=True, slots=True)
class Answered:
    """What a step left: its stored answer, if any, and why it did not finish, None when it did."""

    answer: dict[str, Any] | None
    error: str | None


def answer_of(conn: Connection, operation_id: UUID, stage: str, unit: str) -> Answered:
    """What another step of the same operation left, which has ended by now."""
    sql = """SELECT answer, CASE WHEN state <> 'done' THEN coalesce(last_error, state) END FROM operation_steps
             WHERE operation_id = %s AND stage = %s AND unit = %s"""
    row = conn.execute(sql, (operation_id, stage, unit)).fetchone()
    return Answered(*row) if row else Answered(None, "its step is gone")


def input_of(conn: Connection, step_id: int) -> dict[str, Any]:
    """The input of a step, empty when the step is gone."""
    row = conn.execute("SELECT input FROM operation_steps WHERE id = %s", (step_id,)).fetchone()
    return row[0] if row else {}


def release_owned(conn: Connection, owner_prefix: str) -> int:
    """Give back, uncounted, every claim of a runner that stops in good order; returns how many."""
    sql = """UPDATE operation_steps
             SET state = 'pending', lease_until = NULL, owner = NULL, attempts = attempts - 1, not_before = now(),
                 nudge_at = now()
             WHERE state = 'running' AND starts_with(owner, %s)"""
    return conn.execute(sql, (owner_prefix,)).rowcount
