"""What the stages of an interest run share: who reads, how work is cut, and how the next steps are let out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.storage.models.usage import Usage, collected
from isotherm.storage.postgres import interest_steps, steps
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.steps import ClaimedStep, NewStep
from isotherm.tasks.canvas import FAN_OUT
from isotherm.tasks.interest_models import Readers

T = TypeVar("T")
Json = dict[str, Any]

# Windows, groups or units of a step: the rules need milliseconds for one, a model needs seconds.
_PER_STEP = {True: 1, False: 20}
MAX_PARTS = 64


def readers(step: ClaimedStep) -> Readers:
    """The models of this process, for the bank of a step. Raises: RejectedError naming the settings that are missing."""
    return Readers.of(storage.open().settings, step.bank_id)


def batches(items: Sequence[T], who: Readers) -> list[list[T]]:
    """Cut work into at most `MAX_PARTS` batches that are worth a task each."""
    size = max(_PER_STEP[who.chat is not None], -(-len(items) // MAX_PARTS))
    return [list(items[n : n + size]) for n in range(0, len(items), size)]


def next_step(stage: str, unit: str = "", value: Json | None = None, *after: str) -> NewStep:
    """A step of a later stage: it waits for all stages before its own, and for the steps in `after`."""
    return NewStep(stage, value or {}, unit, (*interest_steps.before(stage), *after))


def follow(conn: Connection, step: ClaimedStep, body: NewStep, *header: Sequence[NewStep]) -> list[Message]:
    """Write the steps that follow one: chains side by side, then the body; returns the message to publish."""
    return interest_steps.follow(conn, step, header, body, storage.open().patience, fan_out=FAN_OUT)


def ask_each(step: ClaimedStep, who: Readers, asks: Mapping[str, Callable[[], tuple[Any, bool]]]) -> Json:
    """Ask for each part of a step what the step does not know yet, and keep the answers in it.

    A model's answers are kept one by one, so that a killed runner asks for at most one of them again.
    Args: asks: by part, returns a JSON value and whether it stands in for a model that could not answer.
    Returns: {"said": {part: value}, "fallbacks": count, "spent": calls and tokens}, as stored.
    """
    answer = step.answer or {"said": {}, "fallbacks": 0}
    for part, ask in asks.items():
        if part not in answer["said"]:
            with collected() as used:
                value, failed = ask()
            answer = {
                "said": {**answer["said"], part: value},
                "fallbacks": answer["fallbacks"] + failed,
                "spent": added(answer.get("spent", {}), used),
            }
            if who.chat is not None:
                keep(step, answer)
    if step.answer is not answer:
        keep(step, answer)
    return answer


def added(spent: Json, used: Sequence[Usage]) -> Json:
    """What was spent, with what a few more calls cost; blank while no model was asked."""
    if not used:
        return spent
    more = {
        "model_calls": len(used),
        "input_tokens": sum(one.input_tokens or 0 for one in used),
        "output_tokens": sum(one.output_tokens or 0 for one in used),
        "model_ms": sum(one.duration_ms for one in used),
    }
    return {name: spent.get(name, 0) + n for name, n in more.items()}


def spent(conn: Connection, step: ClaimedStep) -> Json:
    """What the models of a run cost, over all of its steps that were answered; blank for a run by rules."""
    total: Json = {}
    for stage in (stages.EXTRACT, stages.S1_JUDGE, stages.V1_2_ADJUDICATE):
        for answer in interest_steps.answers(conn, step, stage).values():
            total = {name: total.get(name, 0) + n for name, n in answer.get("spent", {}).items()} or total
    return total


def keep(step: ClaimedStep, answer: Json) -> None:
    """Store the answer of a step. Raises: LostLeaseError when the step is not ours any more."""
    with connection() as conn:
        steps.store_answer(conn, step, answer)
    step.answer = answer
