"""What follows a step at once: done by the process that ended it while that is quick, else by a message.

The step and its message are written in the transaction before, so nothing depends on this process: should it end in
between, the relay sends the message. A step that is done here is claimed and settled like any other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import structlog

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.payloads import FanOut, StepJob, StepRef
from isotherm.pipeline.stages import STAGES, Queue
from isotherm.storage.postgres import outbox
from isotherm.storage.postgres.outbox import STEP, Message
from isotherm.storage.postgres.pool import statement
from isotherm.storage.postgres.steps import ClaimedStep
from isotherm.tasks.app import app
from isotherm.tasks.canvas import FAN_OUT
from isotherm.tasks.log import log
from isotherm.tasks.publish import after_commit, publish_and_remove

# Between steps of seconds a message costs nothing; after this time a task ends, so that its process serves others too.
_QUICK_S = 1.0

Json = dict[str, Any]
Line = list[tuple[str, Json]]  # stages and their payloads, one after the other


@dataclass(slots=True)
class _Seen:
    """One step as monitors see it."""

    stage: str
    job: Json
    hostname: str | None
    begun: float
    ended: float


@dataclass(slots=True)
class _Delivery:
    queue: Queue
    until: float
    waiting: deque[tuple[Message, Line]] = field(default_factory=deque)


_DELIVERY: ContextVar[_Delivery | None] = ContextVar("delivery", default=None)


def go_on(step: ClaimedStep, messages: Sequence[Message]) -> None:
    """Have done what a step let out with its commit: steps in a row by this process, everything else by its message."""
    here = _DELIVERY.get()
    out: list[Message] = []
    for message in messages:
        line = None if here is None else _line(step, message, here)
        if here is None or line is None:
            out.append(message)
        else:
            here.waiting.append((message, line))
    publish_and_remove(out)


def _line(step: ClaimedStep, message: Message, here: _Delivery) -> Line | None:
    """The steps of a message in their order, None where it is for others: they go side by side, or on another queue."""
    if time.monotonic() > here.until or message.payload.get("job", message.payload)["operation_id"] != str(
        step.operation_id
    ):
        return None
    if message.builder == STEP:
        line = [(str(message.payload["stage"]), message.payload["job"])]
    elif message.builder == FAN_OUT:
        wanted = FanOut.parse(message.payload)
        if [len(one) for one in wanted.header] != [1]:
            return None
        line = [(ref.stage, _job(wanted, ref)) for ref in (wanted.header[0][0], wanted.body)]
    else:
        return None
    return line if all(STAGES[stage] in {Queue.DB, here.queue} for stage, _ in line) else None


def _job(wanted: FanOut, ref: StepRef) -> Json:
    job = StepJob(trace_id=wanted.trace_id, operation_id=wanted.operation_id, step_id=ref.step_id)
    return job.model_dump(mode="json")


@contextmanager
def going_on(stage: str, deliver: Callable[[str, Json], object], hostname: str | None) -> Iterator[None]:
    """Do at the end of the block, one after the other, what the steps in it let out, and what that lets out.

    Args: stage: of the message; deliver: runs a step as if its message had come; hostname: of the worker, for monitors.
    """
    here = _Delivery(STAGES[stage], time.monotonic() + _QUICK_S)
    known = _DELIVERY.set(here)
    done: list[int] = []
    seen: list[_Seen] = []
    try:
        yield
        while here.waiting:
            message, line = here.waiting.popleft()
            seen += [_run(each, job, deliver, hostname) for each, job in line]
            done.append(message.id)
    finally:
        _DELIVERY.reset(known)
        _remove(done)
        if seen:  # not before: in between it would cost the steps their time
            after_commit(_show, seen)


def _run(stage: str, job: Json, deliver: Callable[[str, Json], object], hostname: str | None) -> _Seen:
    begun = time.time()
    with structlog.contextvars.bound_contextvars(task=stage):
        deliver(stage, job)
    return _Seen(stage, job, hostname, begun, time.time())


def _remove(ids: Sequence[int]) -> None:
    if not ids:
        return
    try:
        with statement() as conn:
            outbox.remove(conn, list(ids))
    except TransientError as error:
        log.warning("outbox.message_left", messages=len(ids), reason=str(error))


def _show(runs: Sequence[Sequence[_Seen]]) -> None:
    """Tell monitors such as flower of steps that came without a message of their own."""
    if not app.conf.worker_send_task_events:
        return
    for one in (one for seen in runs for one in seen):
        uuid, shown = str(uuid4()), f"(step {one.job['step_id']} of operation {one.job['operation_id']})"
        with app.events.default_dispatcher(hostname=one.hostname) as dispatcher:
            dispatcher.send(
                "task-received", uuid=uuid, name=one.stage, args=shown, kwargs="{}", retries=0, timestamp=one.begun
            )
            dispatcher.send("task-started", uuid=uuid, timestamp=one.begun)
            dispatcher.send("task-succeeded", uuid=uuid, result="", runtime=one.ended - one.begun, timestamp=one.ended)
