"""Locks by key in bounded memory: two keys may share a lock, which costs waiting and never correctness."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Namespace

_STRIPES = 64
# A call that loses this many races in a row meets something that is wrong rather than busy.
_MOST_TRIES = 1_000


def tries() -> Iterator[int]:
    """Numbers of the tries of a call that may lose races. Raises: TransientError when the last of them was lost too."""
    yield from range(_MOST_TRIES)
    raise TransientError("the record is changed by others all the time")


class Stripes:
    """A fixed number of locks."""

    def __init__(self) -> None:
        self._locks = [threading.Lock() for _ in range(_STRIPES)]

    def of(self, namespace: Namespace, record_id: str) -> threading.Lock:
        """The lock of a record."""
        return self._locks[digest("stripe", namespace.key, record_id)[0] % _STRIPES]

    @contextmanager
    def all(self) -> Iterator[None]:
        """Hold every lock; they are taken in one order, and nobody who holds one of them waits for another."""
        with ExitStack() as held:
            for lock in self._locks:
                held.enter_context(lock)
            yield
