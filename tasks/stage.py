"""How a stage runs: claim, heartbeat, work, settle; and what each kind of error makes of the step. It stands only here."""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any
from uuid import uuid4

import structlog
from celery import Task

from isotherm import storage
from isotherm.pipeline.errors import (
    AlreadyDoneError,
    LostLeaseError,
    NotReadyError,
    RejectedError,
    TransientError,
)
from isotherm.pipeline.events import DeliveryRefused, Event, StepErrored, StepFailed, StepPostponed
from isotherm.pipeline.payloads import StepJob
from isotherm.pipeline.work import StepState, backoff
from isotherm.storage.postgres import outbox, steps, steps_together
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import system, working
from isotherm.storage.postgres.steps import ClaimedStep
from isotherm.storage.postgres.steps_together import Done
from isotherm.storage.settings import Settings
from isotherm.tasks.app import app
from isotherm.tasks.log import log
from isotherm.tasks.observe import TASK_SECONDS, emit
from isotherm.tasks.onward import going_on

# While PostgreSQL is away a worker has nothing else to do; past this the lease runs out and the sweeper takes over.
_GIVE_BACK_FOR_S = 60.0
_GIVE_BACK_PAUSE_S = 0.5
_REASON_CHARS = 300
# Steps that go as one with another of their stage: what changed in several of them is done once.
TOGETHER = 200


# The stage whose message is being run: a step of another one is not taken for it.
_STAGE: ContextVar[str] = ContextVar("stage")


class _Runner:
    """This worker as owners name it. Made before the fork, so that all its children share it."""

    worker = f"{socket.gethostname()}#{uuid4().hex[:8]}"


def runner_name() -> str:
    """Host, worker and process that own a claim."""
    return f"{_Runner.worker}:{os.getpid()}"


def worker_prefix() -> str:
    """What the names of all runners of this worker start with."""
    return f"{_Runner.worker}:"


class StageTask(Task):  # type: ignore[misc]  # celery ships no types
    """Base of all stages: a delivery that has nothing to do ends quietly, with the first one's receipt if there is one."""

    abstract = True
    typing = False

    def __call__(self, *arguments: Any, **more: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever somebody sent
        """Run the stage for one delivery of its message; answers with the receipt of its step, a few ids and counts.

        Steps that ride along are run one after the other, each as if it had come alone; then what they let out and is quick.
        A message that is none of ours is refused and told.
        """
        if len(arguments) != 1 or more or not isinstance(arguments[0], dict):
            return self._refuse("a message has one payload")
        payload: dict[str, Any] = arguments[0]
        if self.request.called_directly:
            return self._all_of(payload)
        with going_on(self.name, _deliver_to, self.request.hostname):
            return self._all_of(payload)

    def _all_of(self, payload: dict[str, Any]) -> dict[str, Any]:
        receipt = self.deliver(payload)
        if receipt.get("state") == "refused":
            return receipt
        riding = StepJob.parse(payload).more
        open_ids = _still_open([job.step_id for job in riding])
        for job in riding:
            if job.step_id in open_ids:
                self.deliver(job.model_dump(mode="json"))
        return {**receipt, "more": len(riding)} if riding else receipt

    def deliver(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Run the stage for one step; answers with its receipt, or why there is nothing to do."""
        begun = time.perf_counter()
        known = _STAGE.set(self.name)
        try:
            receipt: dict[str, Any] = self.run(payload)
        except AlreadyDoneError as error:
            return error.receipt or {"state": error.state}
        except (NotReadyError, LostLeaseError) as error:
            log.info("operations.delivery_skipped", stage=self.name, reason=str(error))
            return {"state": "skipped"}
        except TransientError as error:
            # Nothing was claimed. The message ends here, and the sweeper announces the step once its row can be read.
            log.warning("operations.delivery_postponed", stage=self.name, reason=str(error))
            return {"state": "postponed"}
        except RejectedError as error:
            return self._refuse(str(error))
        finally:
            _STAGE.reset(known)
            TASK_SECONDS.labels(task=self.name).observe(time.perf_counter() - begun)
        return receipt

    def _refuse(self, reason: str) -> dict[str, Any]:
        emit(DeliveryRefused(self.name, reason[:_REASON_CHARS]))
        return {"state": "refused"}


def _still_open(step_ids: Sequence[int]) -> frozenset[int]:
    """Those of the steps that are not final: what rode with another step is done by the time its own turn comes."""
    if not step_ids:
        return frozenset()
    try:
        with system(), connection() as conn:
            return steps.open_of(conn, step_ids)
    except TransientError:
        return frozenset(step_ids)  # each delivery says so for itself


def _deliver_to(stage: str, payload: dict[str, Any]) -> None:
    app.tasks[stage].deliver(payload)


Body = Callable[[dict[str, Any]], dict[str, Any]]


def stage_task(name: str) -> Callable[[Body], Body]:
    """Register a function as the task of a stage; the name is also its route."""
    register: Callable[[Body], Body] = app.task(name=name, base=StageTask)
    return register


@contextmanager
def claimed(payload: dict[str, Any]) -> Iterator[ClaimedStep]:
    """Own the step of a message while the block runs; the block settles it in the transaction of its effect.

    An error in the block ends here: it is written to the step by its kind, and the block's receipt says so.
    Raises: RejectedError for a payload that cannot be read; AlreadyDoneError and NotReadyError when there is nothing to
    do; LostLeaseError when somebody else took the step.
    """
    job = StepJob.parse(payload)
    chosen = storage.open().settings
    with system(), connection() as conn:
        step = steps.claim(
            conn,
            job.step_id,
            job.operation_id,
            _STAGE.get(),
            owner=runner_name(),
            lease=chosen.lease,
            cap=chosen.max_attempts,
        )
    structlog.contextvars.bind_contextvars(
        operation_id=str(step.operation_id), namespace_id=step.namespace_id, trace_id=str(step.trace_id)
    )
    try:
        with _Heartbeat.kept(step, chosen), working(step):
            yield step
    except LostLeaseError:
        raise
    except RejectedError as error:
        _end(step, StepState.FAILED, str(error))
    except TransientError as error:
        _postpone(step, chosen, str(error))
    except Exception as error:  # noqa: BLE001 - a bug in the stage must become a state, or it would be lost
        _count_error(step, chosen, error)
    except (SystemExit, KeyboardInterrupt):
        _patiently(step, lambda: _give_back(step, chosen, timedelta(0), counted=False, error=None))
        raise


@contextmanager
def together(step: ClaimedStep, limit: int) -> Iterator[list[ClaimedStep]]:
    """Own more steps of the same stage, whose work is done in one go with this one's.

    Only with a step that is tried for the first time, and only those that never were: when the work of all fails, each is
    tried by itself, so that none fails for another one. While a server is away all of them wait, as one would alone.
    Args: limit: how many at most; 0 when the step runs alone.
    Raises: what the block raises, for the step itself.
    """
    chosen = storage.open().settings
    more: list[ClaimedStep] = []
    if step.attempts == 1 and limit > 0:
        with system(), connection() as conn:
            more = steps.claim_more(conn, step.stage, owner=runner_name(), lease=chosen.lease, limit=limit)
    try:
        with ExitStack() as beating:
            for each in more:
                beating.enter_context(_Heartbeat.kept(each, chosen))
            beating.enter_context(working(step, *more))
            yield more
    except LostLeaseError:
        raise
    except BaseException as error:
        for each in more:
            _leave(each, chosen, error)
        if more and isinstance(error, RejectedError):
            raise RuntimeError("refused together with others") from error
        raise


def settle_together(step: ClaimedStep, every: Sequence[ClaimedStep], receipt: dict[str, Any]) -> None:
    """End the steps that went together, with one receipt. One that somebody else took meanwhile is theirs, but the message's own must be ours.

    Raises: LostLeaseError, and nothing is settled, when `step` is not ours any more.
    """
    with connection() as conn:
        # One that is the only step of its stage says what its operation came to.
        lost = steps_together.settle(conn, [Done(each, receipt, is_result=not each.unit) for each in every])
        if any(each is step for each in lost):
            raise LostLeaseError(f"step {step.id} has another runner")


def _leave(step: ClaimedStep, chosen: Settings, error: BaseException) -> None:
    """Give back a step whose work failed together with that of others; one that was settled all the same stays so."""
    if isinstance(error, TransientError):
        _postpone(step, chosen, str(error))
    elif isinstance(error, Exception):
        _count_error(step, chosen, error)
    else:
        _patiently(step, lambda: _give_back(step, chosen, timedelta(0), counted=False, error=None))


def tell(step: ClaimedStep, event: Event) -> None:
    """Emit an event with the ids of its step, which need not be the one whose message is being run."""
    ids = {"operation_id": str(step.operation_id), "trace_id": str(step.trace_id), "namespace_id": step.namespace_id}
    emit(event, **ids, step_id=step.id, unit=step.unit)


def _end(step: ClaimedStep, state: StepState, reason: str) -> None:
    def end() -> None:
        with system(), connection() as conn:
            steps.end(conn, step, state, error=reason[:_REASON_CHARS])

    if _patiently(step, end):
        step.receipt = {"state": state.value, "reason": reason[:_REASON_CHARS]}
        emit(StepFailed(step.stage, step.id, state.value, step.attempts, reason[:_REASON_CHARS]))


def _postpone(step: ClaimedStep, chosen: Settings, reason: str) -> None:
    """Give the step back until later; waiting for others is not an attempt, but it ends after `retry_for`."""
    over: list[bool] = []

    def postpone() -> None:
        with system(), connection() as conn:
            late = steps.is_late(conn, step.id)
            over.append(late)
        delay = backoff(step.waits, chosen.retry_base, chosen.retry_cap, (step.id % 16) / 16)
        if not late:
            _give_back(step, chosen, delay, counted=False, error=reason)
            emit(StepPostponed(step.stage, step.id, int(delay.total_seconds() * 1000), reason))

    if _patiently(step, postpone):
        step.receipt = {"state": "postponed", "reason": reason}
        if over[-1]:
            _end(step, StepState.FAILED, f"gave up waiting: {reason}")


def _count_error(step: ClaimedStep, chosen: Settings, error: Exception) -> None:
    """A bug: the attempt counts, and the last one makes the step dead."""
    reason = describe(error)
    frames = traceback.format_tb(error.__traceback__)
    log.error("operations.step_raised", stage=step.stage, step_id=step.id, reason=reason, traceback="".join(frames))
    if step.attempts >= chosen.max_attempts:
        _end(step, StepState.DEAD, reason)
        return
    delay = backoff(step.attempts - 1, chosen.retry_base, chosen.retry_cap)
    if _patiently(step, lambda: _give_back(step, chosen, delay, counted=True, error=reason)):
        step.receipt = {"state": "errored", "reason": reason}
        emit(StepErrored(step.stage, step.id, step.attempts, reason))


def describe(error: Exception) -> str:
    """Type and place of an error. Its message is left out: it may hold stored text."""
    frame = traceback.extract_tb(error.__traceback__)[-1] if error.__traceback__ else None
    place = f" in {os.path.basename(frame.filename)}:{frame.lineno}" if frame else ""  # noqa: PTH119 - a name, not a file
    return f"{type(error).__name__}{place}"


def _give_back(step: ClaimedStep, chosen: Settings, delay: timedelta, *, counted: bool, error: str | None) -> None:
    """Raises: LostLeaseError when the step is not ours any more, as after a commit whose answer was lost."""
    with system(), connection() as conn:
        outbox.announce(conn, step.stage, step.id, operation_id=step.operation_id, trace_id=step.trace_id, delay=delay)
        if not steps.give_back(conn, step, delay=delay, nudge_after=chosen.nudge_after, counted=counted, error=error):
            raise LostLeaseError(f"step {step.id} has another runner")


def _patiently(step: ClaimedStep, action: Callable[[], None]) -> bool:
    """Repeat a write to the step's row while PostgreSQL is away; False when the step is not ours any more."""
    deadline = time.monotonic() + _GIVE_BACK_FOR_S
    while True:
        try:
            action()
        except LostLeaseError:
            return False
        except TransientError:
            if time.monotonic() > deadline:
                log.warning("operations.step_left_to_its_lease", step_id=step.id)
                return False
            time.sleep(_GIVE_BACK_PAUSE_S)
        else:
            return True


class _Heartbeat:
    """One thread per process renews the leases of the steps that run in it."""

    _lock = threading.Lock()
    _running: dict[int, ClaimedStep] = {}  # noqa: RUF012 - one per process
    _thread: threading.Thread | None = None

    @classmethod
    @contextmanager
    def kept(cls, step: ClaimedStep, chosen: Settings) -> Iterator[None]:
        with cls._lock:
            cls._running[step.id] = step
            if cls._thread is None or not cls._thread.is_alive():
                cls._thread = threading.Thread(target=cls._beat, args=(chosen.lease,), name="heartbeat", daemon=True)
                cls._thread.start()
        try:
            yield
        finally:
            with cls._lock:
                cls._running.pop(step.id, None)

    @classmethod
    def _beat(cls, lease: timedelta) -> None:
        while True:
            time.sleep(lease.total_seconds() / 3)
            with cls._lock:
                running = list(cls._running.values())
            for step in running:
                cls._renew(step, lease)

    @classmethod
    def _renew(cls, step: ClaimedStep, lease: timedelta) -> None:
        try:
            with system(), connection() as conn:
                kept = steps.renew(conn, step, lease)
        except (TransientError, RuntimeError) as error:
            log.warning("operations.heartbeat_missed", step_id=step.id, error=type(error).__name__)
            return
        with cls._lock:
            still = step.id in cls._running
        # A step that was settled or given back a moment ago has no lease to lose.
        if still and not kept and step.operation_state is None and not step.receipt:
            log.warning("operations.lease_lost", step_id=step.id, stage=step.stage)

    @classmethod
    def forget_after_fork(cls) -> None:
        cls._lock = threading.Lock()
        cls._running = {}
        cls._thread = None


os.register_at_fork(after_in_child=_Heartbeat.forget_after_fork)
