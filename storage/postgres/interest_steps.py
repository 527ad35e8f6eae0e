"""The ledger of an interest run: what its steps answered, and the steps that follow one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isotherm.pipeline import stages
from isotherm.storage.postgres import outbox, steps
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.steps import ClaimedStep, NewStep
from isotherm.storage.postgres.tier_write import Patience

ORDER = (
    stages.EXTRACT,
    stages.S1_FOLD,
    stages.S1_JUDGE,
    stages.S2_CLUSTER,
    stages.V1_2_ADJUDICATE,
    stages.V1_3_PERSIST,
)

_ANSWERS = """
SELECT unit, answer FROM operation_steps
WHERE operation_id = %s AND stage = %s AND answer IS NOT NULL
  AND (state = 'done' OR state IN ('failed', 'dead', 'cancelled') AND answer -> 'ended' = 'true') ORDER BY id"""

# A step that runs again, because an operator had it retried, writes those that follow anew. They all wait for it, so none
# of them is running.
_DROP = """
DELETE FROM operation_steps
WHERE operation_id = %(operation)s AND (stage = ANY(%(later)s) OR (stage = %(stage)s AND %(unit)s = '' AND unit <> ''))"""


def answers(conn: Connection, step: ClaimedStep, stage: str) -> dict[str, dict[str, Any]]:
    """The answers of the ended steps of a stage of the same run, by unit, in the order the steps were written.

    Of failed ones those that say what stands where a model did not answer.
    """
    rows = conn.execute(_ANSWERS, (step.operation_id, stage)).fetchall()
    return {str(unit): answer for unit, answer in rows}


def before(stage: str) -> tuple[str, ...]:
    """The stages that must have ended before a stage begins."""
    return ORDER[: ORDER.index(stage)]


def follow(
    conn: Connection,
    step: ClaimedStep,
    header: Sequence[Sequence[NewStep]],
    body: NewStep,
    patience: Patience,
    *,
    fan_out: str,
) -> list[Message]:
    """Write the steps that follow one, and the message that runs them, in the transaction that settles it.

    Args: header: chains of steps that run side by side before the body, may be empty; fan_out: builder of their canvas.
    """
    drop = {"operation": step.operation_id, "stage": step.stage, "unit": step.unit}
    conn.execute(_DROP, {**drop, "later": list(ORDER[ORDER.index(step.stage) + 1 :])})
    flat = [one for line in header for one in line]
    ids = steps.add(
        conn, step.operation_id, [*flat, body], retry_for=patience.retry_for, nudge_after=patience.nudge_after
    )
    job = {"operation_id": str(step.operation_id), "trace_id": str(step.trace_id)}
    if not flat:
        return [
            outbox.announce(
                conn,
                body.stage,
                ids[-1],
                operation_id=step.operation_id,
                trace_id=step.trace_id,
                delay=patience.grace,
            )
        ]
    numbered = iter(ids)
    lines = [[{"step_id": next(numbered), "stage": one.stage} for one in line] for line in header]
    wanted = {**job, "schema_version": 1, "header": lines, "body": {"step_id": ids[-1], "stage": body.stage}}
    return [outbox.enqueue(conn, fan_out, wanted, operation_id=step.operation_id, delay=patience.grace)]
