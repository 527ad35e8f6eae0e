"""The stage that erases what was forgotten: a part of it per step, the next part by a step of its own, a receipt at the end."""

from __future__ import annotations

from typing import Any

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.events import MemoryForgotten
from isotherm.storage import forget as forgetting
from isotherm.storage.forget import Mirror
from isotherm.storage.postgres import operations, outbox, steps, tier_forget
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.steps import ClaimedStep, NewStep
from isotherm.tasks.publish import publish_and_remove
from isotherm.tasks.stage import claimed, stage_task, tell

# Batches of one step: some seconds of work.
BATCHES = 40


@stage_task(stages.FORGET)
def forget(payload: dict[str, Any]) -> dict[str, Any]:
    """Erase a part of what is left of a scope; the last part ends when a look everywhere finds nothing more."""
    with claimed(payload) as step:
        opened = storage.open()
        erased = forgetting.erase_some(opened, step.operation_id, BATCHES)
        publish_and_remove(erased.messages)
        if not erased.done:
            with connection() as conn:
                messages = [_next(conn, step)]
                step.settle(conn, {"continued": True})
            publish_and_remove(messages)
            return step.receipt
        if left := forgetting.verify_forgotten(opened, step.operation_id):
            # Whoever was in the middle of something when the erasure began may have added to it since.
            raise TransientError(f"left: {', '.join(f'{n} in {where}' for where, n in sorted(left.items()))}")
        with connection() as conn:
            erasure = tier_forget.get(conn, step.operation_id)
            counts = dict(sorted(erasure.counts.items())) if erasure else {}
            if erasure is not None:
                tier_forget.finish(conn, erasure)
            messages = [message for mirror in erased.mirrors for message in _start(conn, mirror)]
            step.settle(conn, {**counts, "left": 0}, is_result=True)
        publish_and_remove(messages)
        found = {name: counts.get(name, 0) for name in ("records", "objects", "interests")}
        tell(step, MemoryForgotten(erasure.level.value if erasure else "", **found))
    return step.receipt


def _next(conn: Connection, step: ClaimedStep) -> Message:
    patience = storage.open().patience
    following = NewStep(stages.FORGET, {}, str(int(step.unit or 0) + 1))
    [step_id] = steps.add(
        conn, step.operation_id, [following], retry_for=patience.retry_for, nudge_after=patience.nudge_after
    )
    return outbox.announce(
        conn,
        stages.FORGET,
        step_id,
        operation_id=step.operation_id,
        trace_id=step.trace_id,
        delay=patience.grace,
    )


def _start(conn: Connection, mirror: Mirror) -> list[Message]:
    patience = storage.open().patience
    operations.create(conn, mirror.operation)
    ids = steps.add(
        conn, mirror.operation.id, mirror.steps, retry_for=patience.retry_for, nudge_after=patience.nudge_after
    )
    return [
        outbox.announce(
            conn,
            one.stage,
            step_id,
            operation_id=mirror.operation.id,
            trace_id=mirror.operation.trace_id,
            delay=patience.grace,
        )
        for step_id, one in zip(ids, mirror.steps, strict=True)
    ]
