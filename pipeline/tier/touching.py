"""Accesses counted beside the read path and added to records in batches."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.store import StoredRecord

# Records whose accesses wait at most; beyond it a new one is not counted, which loses a count and never a record.
MOST_WAITING = 100_000


class TouchMode(StrEnum):
    """What a recall with a query does about the records it found."""

    OFF = "off"
    BATCHED = "batched"  # counted in memory, added by the next `apply_touches` or pass
    NOW = "now"  # added before the answer is returned; one that fails leaves the answer standing


@dataclass(frozen=True, slots=True)
class Touch:
    """Accesses of one record that wait: how many, their sum of heat (see `heat`), and the last moment."""

    count: int
    deposit: float
    at: datetime

    def __add__(self, other: Touch) -> Touch:
        together = heat.combine(self.deposit, other.deposit)
        return Touch(self.count + other.count, together or 0.0, max(self.at, other.at))

    @classmethod
    def once(cls, at: datetime) -> Touch:
        """One access at a moment (aware)."""
        return cls(1, heat.heat_log_of(at), at)

    def applied_to(self, record: StoredRecord) -> StoredRecord:
        """The record with these accesses added; the order of touches does not matter."""
        return replace(
            record,
            access_count=record.access_count + self.count,
            last_access_at=max(record.last_access_at, self.at),
            heat_log=heat.combine(record.heat_log, self.deposit),
            value_log=heat.combine(record.value_log, self.deposit),
        )


class TouchBuffer:
    """Touches by namespace and record. Threads may share it."""

    def __init__(self) -> None:
        self._waiting: dict[Namespace, dict[str, Touch]] = {}
        self._size = 0
        self._lock = threading.Lock()

    def add(self, namespace: Namespace, touches: dict[str, Touch]) -> bool:
        """Count accesses; False when the buffer is full and some were left out."""
        with self._lock:
            waiting = self._waiting.setdefault(namespace, {})
            for record_id, touch in touches.items():
                known = waiting.get(record_id)
                if known is not None:
                    waiting[record_id] = known + touch
                elif self._size < MOST_WAITING:
                    waiting[record_id] = touch
                    self._size += 1
                else:
                    return False
        return True

    def take(self, namespace: Namespace) -> dict[str, Touch]:
        """Remove and return what waits for a namespace."""
        with self._lock:
            taken = self._waiting.pop(namespace, {})
            self._size -= len(taken)
        return taken

    def drop(self, namespace: Namespace, ids: Iterable[str]) -> None:
        """Forget what waits for records."""
        with self._lock:
            waiting = self._waiting.get(namespace, {})
            for record_id in ids:
                if waiting.pop(record_id, None) is not None:
                    self._size -= 1
            if not waiting:
                self._waiting.pop(namespace, None)

    def namespaces(self) -> list[Namespace]:
        """Those that have touches waiting."""
        with self._lock:
            return list(self._waiting)
