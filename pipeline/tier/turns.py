"""One pass over a namespace at a time: another one waits for it, and those that are asked for meanwhile join the one that waits."""

from __future__ import annotations

import threading
from datetime import datetime

from isotherm.pipeline.identity import Namespace


class Turns:
    """Who runs and who waits, by namespace. Threads may share it."""

    def __init__(self) -> None:
        self._running: dict[Namespace, int] = {}
        self._waiting: dict[Namespace, datetime] = {}
        self._changed = threading.Condition()

    def begin(self, owner: Namespace, moment: datetime) -> datetime | None:
        """Wait for the turn of a pass as of a moment; whoever gets it calls `end`.

        Returns: the latest moment that this pass was asked for; None when one that waits already will do, or when the
        running pass itself asks, as an observer of it may.
        """
        with self._changed:
            if owner in self._waiting:
                self._waiting[owner] = max(self._waiting[owner], moment)
                return None
            if self._running.get(owner) == threading.get_ident():
                return None
            if owner in self._running:
                self._waiting[owner] = moment
                try:
                    self._changed.wait_for(lambda: owner not in self._running)
                finally:
                    moment = self._waiting.pop(owner)
            self._running[owner] = threading.get_ident()
        return moment

    def end(self, owner: Namespace) -> None:
        """Let the next one begin."""
        with self._changed:
            del self._running[owner]
            self._changed.notify_all()
