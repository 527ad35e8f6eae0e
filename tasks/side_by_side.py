"""Calls of one step that go side by side, as many at a time as the settings let a step ask a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from typing import TypeVar

T = TypeVar("T")


def side_by_side(calls: Mapping[str, Callable[[], T]], most: int) -> Iterator[tuple[str, T]]:
    """Make calls, at most so many at a time; gives (name, what came of it) as they end.

    After one has failed no other begins; what those under way come to is given before the error is raised. Each call sees
    the context variables of the caller.
    Raises: what the first call raised that failed.
    """
    if most == 1 or len(calls) <= 1:
        for name, call in calls.items():
            yield name, call()
        return
    stopped = threading.Event()
    pool = ThreadPoolExecutor(min(most, len(calls)), thread_name_prefix="asking")
    try:
        futures = [pool.submit(copy_context().run, _unless, stopped, name, call) for name, call in calls.items()]
        failed: BaseException | None = None
        for future in as_completed(futures):
            error = future.exception()
            if error is None:
                yield from future.result()
            else:
                failed = failed or error
        if failed is not None:
            raise failed
    finally:
        # A runner that is told to stop does not wait for answers; without a runner nobody could use them.
        stopped.set()
        pool.shutdown(wait=False)


def _unless(stopped: threading.Event, name: str, call: Callable[[], T]) -> list[tuple[str, T]]:
    if stopped.is_set():
        return []
    try:
        return [(name, call())]
    except BaseException:
        stopped.set()
        raise
