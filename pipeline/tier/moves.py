"""The moves that one process has made, the newest of them, and who is told of each."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from datetime import datetime

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.observers import MigrationObserver, RecordMove, chain_observers, tell
from isotherm.pipeline.tier.plan import Move

_KEPT = 10_000


class Moves:
    """A log in memory. Threads may share it. Args: observer: told of each move; what it raises disturbs nobody."""

    def __init__(self, observer: MigrationObserver | None = None) -> None:
        self._observer = chain_observers(observer)
        self._made: deque[RecordMove] = deque(maxlen=_KEPT)

    def add(self, owner: Namespace, move: Move, now: datetime) -> None:
        """Log a move that was made, and tell."""
        made = RecordMove(owner, move.id, move.source, move.target, move.reason, now)
        self._made.append(made)
        tell(self._observer, made)

    def of(self, owner: Namespace, record_id: str) -> list[RecordMove]:
        """Those of a record, oldest first."""
        return [move for move in self._made.copy() if move.namespace == owner and move.record_id == record_id]

    def drop(self, owner: Namespace, ids: Collection[str] | None = None) -> None:
        """Forget those of records. Args: ids: None means all of the namespace."""
        kept = [m for m in self._made.copy() if m.namespace != owner or (ids is not None and m.record_id not in ids)]
        self._made.clear()
        self._made.extend(kept)
