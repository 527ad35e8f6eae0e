"""What the stages of an interest run share: who reads, how work is cut, and how the next steps are let out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.events import Event, StepFailed
from isotherm.pipeline.interest.budget import Spent, StoodIn
from isotherm.pipeline.work import StepState
from isotherm.storage.postgres import interest_steps, interest_usage, steps
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.steps import ClaimedStep, NewStep
from isotherm.tasks.canvas import FAN_OUT
from isotherm.tasks.interest_models import Readers
from isotherm.tasks.observe import emit
from isotherm.tasks.side_by_side import side_by_side
from isotherm.tasks.stage import tell

T = TypeVar("T")
Json = dict[str, Any]

MAX_PARTS = 64


def readers(step: ClaimedStep) -> Readers:
    """The models of this process, for the bank of a step. Raises: RejectedError naming the settings that are missing."""
    return Readers.of(storage.open().settings, step)


def batches(items: Sequence[T], size: int) -> list[list[T]]:
    """Cut work into at most `MAX_PARTS` batches that are worth a task each."""
    size = max(size, -(-len(items) // MAX_PARTS))
    return [list(items[n : n + size]) for n in range(0, len(items), size)]


def next_step(stage: str, unit: str = "", value: Json | None = None, *after: str) -> NewStep:
    """A step of a later stage: it waits for all stages before its own, and for the steps in `after`."""
    return NewStep(stage, value or {}, unit, (*interest_steps.before(stage), *after))


def follow(conn: Connection, step: ClaimedStep, body: NewStep, *header: Sequence[NewStep]) -> list[Message]:
    """Write the steps that follow one: chains side by side, then the body; returns the message to publish."""
    return interest_steps.follow(conn, step, header, body, storage.open().patience, fan_out=FAN_OUT)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a step was answered. Args: said: by part; stood_in: parts in which something else stands for the answer, and why."""

    said: Json
    stood_in: dict[str, StoodIn]

    @classmethod
    def of(cls, answer: Json | None) -> Asked:
        """As it is stored."""
        found = answer or {}
        return cls(found.get("said", {}), {part: StoodIn(why) for part, why in found.get("stood_in", {}).items()})

    def stored(self) -> Json:
        """As it is stored."""
        return {"said": self.said, "stood_in": {part: why.value for part, why in self.stood_in.items()}}

    def left(self, *for_good: StoodIn) -> dict[str, StoodIn]:
        """The parts that are to be asked again. Args: for_good: reasons with which what stands there stays."""
        return {part: why for part, why in self.stood_in.items() if why not in for_good}


def ask_each(
    step: ClaimedStep, who: Readers, asks: Mapping[str, Callable[[], tuple[Any, StoodIn | None]]], *for_good: StoodIn
) -> Asked:
    """Ask for each part of a step what the step does not know yet, and keep the answers in it.

    A model is asked several questions side by side, and remembers each of its answers at once; that it had none is kept
    here. So a killed runner asks again only what was under way. Parts without an answer are asked again when the step is
    retried.
    Args: asks: by part, returns a JSON value and why it stands in for a model's; for_good: as for `end`.
    """
    answer = Asked.of(step.answer)
    if step.answer is not None and step.answer.get("ended"):
        again = answer.left(*for_good)
        answer = Asked(_without(answer.said, again), _without(answer.stood_in, again))
    missing = {part: ask for part, ask in asks.items() if part not in answer.said}
    # Twice as many as the model answers at a time: while it thinks, others are prepared, and kept.
    for part, (value, why) in side_by_side(missing, 2 * who.parallel if who.parallel > 1 else 1):
        stood_in = answer.stood_in if why is None else {**answer.stood_in, part: why}
        answer = Asked({**answer.said, part: value}, stood_in)
        if why is not None:
            keep(step, answer.stored())
    return Asked({part: answer.said[part] for part in asks}, answer.stood_in)


def _without(values: Mapping[str, T], names: Collection[str]) -> dict[str, T]:
    return {name: value for name, value in values.items() if name not in names}


def end(
    conn: Connection, step: ClaimedStep, asked: Asked, counts: Json, found: Json | None = None, *for_good: StoodIn
) -> None:
    """Store what a step was answered and end it in the transaction of its effect.

    With a part that was not answered it has failed, so that it can be retried; those that follow work with what stands in.
    Args: found: what was made of the answers; for_good: reasons for which a part is not asked again.
    Raises: LostLeaseError.
    """
    left = asked.left(*for_good)
    answer = {**asked.stored(), **(found or {}), "ended": bool(left)}
    steps.store_answer(conn, step, answer)
    step.answer = answer
    counts = {**counts, **cost_of(interest_usage.of_step(conn, step.operation_id, step.stage, step.unit))}
    if not left:
        step.settle(conn, counts)
        return
    why = StoodIn.BUDGET_SPENT if StoodIn.BUDGET_SPENT in left.values() else StoodIn.REFUSED
    step.receipt = {**counts, "unanswered": len(left), "reason": why.value}
    step.operation_state = steps.end(conn, step, StepState.FAILED, step.receipt, error=_REASONS[why])


_REASONS = {
    StoodIn.BUDGET_SPENT: "budget_spent: the run may spend no more on models",
    StoodIn.REFUSED: "refused: the model gave no usable answer",
}


def report(step: ClaimedStep, event: Event) -> None:
    """Emit what a step did after its commit and, where it ended without some of its answers, that it failed."""
    tell(step, event)
    if "reason" in step.receipt:
        failed = StepFailed(step.stage, step.id, StepState.FAILED.value, step.attempts, str(step.receipt["reason"]))
        emit(failed)


def cost_of(spent: Spent) -> Json:
    """What models cost, for receipts; blank where none was asked."""
    if not spent.calls and not spent.failures:
        return {}
    return {
        "model_calls": spent.calls,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
        "model_ms": spent.model_ms,
    }


def only(conn: Connection, step: ClaimedStep, stage: str) -> Json:
    """The answer of the only step of a stage. Raises: RejectedError when it is gone, as after something was forgotten."""
    found = interest_steps.answers(conn, step, stage)
    if "" not in found:
        raise RejectedError(f"what {stage} found is gone: the session has to be read anew")
    return found[""]


def keep(step: ClaimedStep, answer: Json) -> None:
    """Store the answer of a step. Raises: LostLeaseError when the step is not ours any more."""
    with connection() as conn:
        steps.store_answer(conn, step, answer)
    step.answer = answer
