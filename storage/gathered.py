"""Calls of several threads that go to a server as one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from isotherm.pipeline.errors import TransientError

A = TypeVar("A")
R = TypeVar("R")


@dataclass(slots=True)
class _Call(Generic[A, R]):
    value: A
    woken: threading.Event = field(default_factory=threading.Event)
    result: list[R] = field(default_factory=list)
    error: BaseException | None = None

    @property
    def ended(self) -> bool:
        return bool(self.result) or self.error is not None


class Gathered(Generic[A, R]):
    """While one call is under way the next ones gather, and go together. Each returns when it is done, and no earlier.

    A call that finds nobody before it goes at once, so that a single thread never waits.

    Args: together: makes calls in one go, giving a result for each in order. Of several that fail together with an error
        that no other try cures each is made alone, so that none fails for another one.
    """

    def __init__(self, together: Callable[[Sequence[A]], Sequence[R]]) -> None:
        self._together = together
        self._lock = threading.Lock()
        self._waiting: list[_Call[A, R]] = []
        self._busy = False

    def __call__(self, value: A) -> R:
        """Make a call. Raises: as `together`."""
        call: _Call[A, R] = _Call(value)
        with self._lock:
            self._waiting.append(call)
            leads = not self._busy
            self._busy = True
        if not leads:
            call.woken.wait()
        if not call.ended:  # the first one of those that gathered takes the others with it
            self._lead()
        if call.error is not None:
            raise call.error
        return call.result[0]

    def _lead(self) -> None:
        with self._lock:
            calls, self._waiting = self._waiting, []
        try:
            self._make(calls)
        finally:
            with self._lock:
                following = self._waiting[:1]
                self._busy = bool(following)
            for call in (*calls, *following):
                call.woken.set()

    def _make(self, calls: Sequence[_Call[A, R]]) -> None:
        try:
            for call, result in zip(calls, self._together([call.value for call in calls]), strict=True):
                call.result = [result]
        except BaseException as error:  # noqa: BLE001 - raised where each call was made
            if len(calls) == 1 or isinstance(error, TransientError) or not isinstance(error, Exception):
                for call in calls:
                    call.error = error
            else:
                for call in calls:
                    self._make([call])
