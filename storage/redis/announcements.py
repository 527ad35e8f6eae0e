"""Announcements of writes to the hot tails. Writes of one process that overlap share one, so that a stream pays for few.

From the answer to an announcement until it is concluded no reader is given a tail of its namespace that misses what was
committed meanwhile, whoever committed it: whatever a write needs, as long as it begins and ends in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

from isotherm.pipeline.errors import UnavailableError
from isotherm.storage.redis.tail import Concluded, Tail, TailRecord

# An announcement this old is joined by nobody, so that a stream of writes concludes now and then.
_JOINED_S = 0.1

# What a write adds to the tail of a namespace; None when it changed something in place, or may have.
Copies = Sequence[TailRecord] | None


class _Open:
    """An announcement that Redis answered; `writes` have not ended yet, and `copies` is what the others added."""

    __slots__ = ("copies", "generation", "namespace_id", "since", "writes")

    def __init__(self, namespace_id: int, generation: str, since: float) -> None:
        self.namespace_id = namespace_id
        self.generation = generation
        self.since = since
        self.writes = 1
        self.copies: list[TailRecord] | None = []

    def end(self, copies: Copies) -> None:
        self.writes -= 1
        if copies is None or self.copies is None:
            self.copies = None
        else:
            self.copies.extend(copies)


class Announced:
    """A write that the tails of its namespaces know of, until it is ended by `Announcements.end`.

    Args: untold: ids of the namespaces that Redis could not be told about.
    """

    __slots__ = ("opened", "untold")

    def __init__(self, opened: Sequence[_Open] = (), untold: Sequence[int] = ()) -> None:
        self.opened = opened
        self.untold = untold

    @property
    def namespace_ids(self) -> list[int]:
        """The namespaces whose tails were told."""
        return [shared.namespace_id for shared in self.opened]


class Announcements:
    """The open announcements of this process. Its methods may be called from any thread."""

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self._lock = threading.Lock()
        self._open: dict[int, _Open] = {}

    def begin(self, namespace_ids: Collection[int], *, alone: bool = False) -> Callable[[], Announced]:
        """Announce a write before its commit, or join an announcement that is open.

        Args: alone: joined to none and by none, so that the tails are rid of it by the end of the write itself.
        Returns: what waits for the answers, to be called once; in between Redis works, and so can the caller.
        """
        joined = [] if alone else self._joined(namespace_ids)
        known = {shared.namespace_id for shared in joined}
        ordered = sorted(namespace_id for namespace_id in namespace_ids if namespace_id not in known)
        begun = time.monotonic()
        try:
            answers = self._tail.announce(ordered)
        except UnavailableError:
            return lambda: Announced(joined, ordered)

        def announced() -> Announced:
            try:
                opened = [_Open(n, g, begun) for n, g in zip(ordered, answers(), strict=True)]
            except UnavailableError:
                return Announced(joined, ordered)
            if not alone:
                with self._lock:
                    self._open.update((shared.namespace_id, shared) for shared in opened)
            return Announced([*joined, *opened])

        return announced

    def end(self, ended: Sequence[tuple[Announced, Mapping[int, Copies]]]) -> None:
        """End writes in their order, in at most one round trip. A tail is told when the last write of its announcement ends.

        Args: ended: each with what it adds, by namespace; a tail that is left out is dropped.
        """
        last = self._last(ended)
        # Where Redis is away, the raised generation keeps readers off the tail.
        with suppress(UnavailableError):
            self._tail.conclude(last)

    def _joined(self, namespace_ids: Collection[int]) -> list[_Open]:
        oldest = time.monotonic() - _JOINED_S
        with self._lock:
            found = [shared for n in namespace_ids if (shared := self._open.get(n)) and shared.since >= oldest]
            for shared in found:
                shared.writes += 1
        return found

    def _last(self, ended: Sequence[tuple[Announced, Mapping[int, Copies]]]) -> list[Concluded]:
        found = []
        with self._lock:
            for announced, copies in ended:
                for shared in announced.opened:
                    shared.end(copies.get(shared.namespace_id))
                    if shared.writes == 0:
                        found.append(Concluded(shared.namespace_id, shared.generation, shared.copies))
                        if self._open.get(shared.namespace_id) is shared:
                            del self._open[shared.namespace_id]
        return found
