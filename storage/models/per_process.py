"""What a process makes for itself at first use. A forked child starts without it."""

import os
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class PerProcess(Generic[T]):
    """A value made once per process, at first use, by whichever thread comes first.

    A child forgets its parent's value, and keeps it from being destroyed there: connections of a parent are not the
    child's to close, and threads that a destructor waits for do not exist in a child.

    Args: make: makes the value; what it raises reaches the caller, and the next call tries again.
    """

    _all: ClassVar["WeakSet[PerProcess[Any]]"] = WeakSet()
    _left_behind: ClassVar[list[object]] = []

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: list[T] = []
        PerProcess._all.add(self)

    def get(self) -> T:
        """Return this process's value, made now if it is the first time."""
        made = self._made
        if not made:
            with self._lock:
                if not self._made:
                    self._made = [self._make()]
                made = self._made
        return made[0]

    def forget(self) -> T | None:
        """Return the value, if there is one, and start without."""
        with self._lock:
            made, self._made = self._made, []
        return made[0] if made else None

    @classmethod
    def forget_all_after_fork(cls) -> None:
        """Start without any value, in a child; its locks may have been held by threads that are gone."""
        for one in cls._all:
            cls._left_behind.append(one._made)  # noqa: SLF001 - the class's own
            one._made, one._lock = [], threading.Lock()  # noqa: SLF001


os.register_at_fork(after_in_child=PerProcess.forget_all_after_fork)
