"""Publishing after the commit: at once and best effort. What does not get out stays in the outbox for the relay.

A producer answers when its write is durable. What follows, the message to the broker and the copy in the hot tail, is done
by one thread per process, in order; a process that dies before loses nothing, since both are made good by others.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.payloads import StepJob
from isotherm.storage.postgres import outbox
from isotherm.storage.postgres.outbox import STEP, Message
from isotherm.storage.postgres.pool import connection
from isotherm.tasks import broker
from isotherm.tasks.app import app
from isotherm.tasks.canvas import BUILDERS
from isotherm.tasks.log import log

# After a failure nothing is tried for a moment: a caller that stores a thousand records must not wait for a thousand
# refused connections.
_PAUSE_S = 1.0


T = TypeVar("T")

# Most steps of one message, and commits that are followed up at once.
TOGETHER = 20
# Where calls follow each other this fast, a moment's wait lets several leave as one message; a single call never waits.
_BUSY_S = 0.02
_LINGER_S = 0.02
# A caller that is this far ahead does what follows itself, so that the backlog stays bounded.
_AHEAD = 1_000
_EXIT_S = 5.0


class _State:
    paused_until = 0.0
    lock = threading.Lock()
    thread: threading.Thread | None = None
    jobs: SimpleQueue[tuple[Callable[[list[Any]], None], Any]] = SimpleQueue()
    hurry = threading.Event()  # somebody waits: nothing lingers


# Ids of outbox rows that are out; the next write of this process removes them on its way.
_sent: deque[int] = deque(maxlen=10_000)


def publish(messages: Sequence[Message]) -> list[int]:
    """Publish messages; returns the ids of those that are out, and never raises because a broker is away."""
    out: list[int] = []
    if not messages or time.monotonic() < _State.paused_until:
        return out
    try:
        for group in _together(messages):
            _send(group)
            out.extend(message.id for message in group)
    except broker.lost() as error:
        _State.paused_until = time.monotonic() + _PAUSE_S
        log.warning("outbox.publish_postponed", error=type(error).__name__, messages=len(messages) - len(out))
    return out


def _together(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """Neighbors that run steps of one stage travel as one message: it costs a worker and the broker as much as one step."""
    for _, neighbors in groupby(messages, key=lambda m: m.payload["stage"] if m.builder == STEP else m.id):
        group = list(neighbors)
        for start in range(0, len(group), TOGETHER):
            yield group[start : start + TOGETHER]


def _send(group: Sequence[Message]) -> None:
    first = group[0]
    if first.builder != STEP:
        BUILDERS[first.builder](first.payload).apply_async(retry=False)
        return
    # The common case goes around the signature and around what Celery derives from arguments for its events: both cost as
    # much as the rest of the message. Nobody waits for its result, so the sender need not listen for one.
    job, *more = (message.payload["job"] for message in group)
    whole = StepJob.parse({**job, "more": more}).model_dump(mode="json")
    shown = f"(step {job['step_id']} of operation {job['operation_id']}, and {len(more)} more)"
    app.send_task(
        first.payload["stage"], args=(whole,), argsrepr=shown, kwargsrepr="{}", ignore_result=True, retry=False
    )


def publish_after_commit(messages: Sequence[Message]) -> None:
    """Publish what a committed transaction enqueued and remember what is out."""
    _sent.extend(publish(messages))


def publish_and_remove(messages: Sequence[Message]) -> None:
    """Publish what a committed transaction enqueued, and remove what is out at once.

    For canvases: the relay cannot tell that one is out, and would send all its messages again after the grace.
    """
    out = publish(messages)
    if not out:
        return
    try:
        with connection() as conn:
            outbox.remove(conn, out)
    except TransientError as error:
        log.warning("outbox.message_left", messages=len(out), reason=str(error))


def take_sent(most: int = 500) -> list[int]:
    """Outbox ids that were published and may be removed with the next write."""
    return [_sent.popleft() for _ in range(min(most, len(_sent)))]


def put_back(ids: Sequence[int]) -> None:
    """Keep ids whose removal was rolled back."""
    _sent.extend(ids)


def after_commit(follow_up: Callable[[list[T]], None], item: T) -> None:
    """Do what follows a commit soon, in the order of the calls, without holding up the caller.

    Args: follow_up: takes the items that have come together while the one before was busy; item: of this call.
    """
    if _State.jobs.qsize() >= _AHEAD:
        flush()
    _State.jobs.put((follow_up, item))
    if _State.thread is None or not _State.thread.is_alive():
        with _State.lock:
            if _State.thread is None or not _State.thread.is_alive():
                _State.thread = threading.Thread(target=_work, name="after-commit", daemon=True)
                _State.thread.start()


def flush(timeout: float = 30.0) -> bool:
    """Wait until what followed the commits before this call is done; False when it took longer than `timeout` seconds."""
    if _State.thread is None or not _State.thread.is_alive():
        return True
    done = threading.Event()
    _State.jobs.put((lambda _: done.set(), None))
    _State.hurry.set()
    return done.wait(timeout)


def _work() -> None:
    jobs = _State.jobs
    last = 0.0
    while True:
        taken = [jobs.get()]
        if time.monotonic() - last < _BUSY_S and jobs.qsize() < TOGETHER:
            _State.hurry.wait(_LINGER_S)
        _State.hurry.clear()
        last = time.monotonic()
        with suppress(Empty):
            while len(taken) < TOGETHER:
                taken.append(jobs.get_nowait())
        for follow_up, items in groupby(taken, key=lambda job: job[0]):
            try:
                follow_up([item for _, item in items])
            except Exception as error:  # noqa: BLE001 - one fault must not end the thread; others make the rest good
                log.warning("outbox.follow_up_failed", error=type(error).__name__)


def _forget_after_fork() -> None:
    _State.lock = threading.Lock()
    _State.thread = None
    _State.jobs = SimpleQueue()
    _State.hurry = threading.Event()


os.register_at_fork(after_in_child=_forget_after_fork)
atexit.register(flush, _EXIT_S)
