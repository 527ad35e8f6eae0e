"""Records that a pass could not move: left alone for a while, longer each time, so that they never hold up the others."""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from isotherm.pipeline.identity import Namespace

HOLD_BASE = timedelta(minutes=10)
HOLD_CAP = timedelta(days=1)
_MOST_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class SetAside:
    """A record that passes leave alone until a moment. Args: reason: without any of its text; version: what was tried."""

    record_id: str
    reason: str
    failures: int
    until: datetime
    version: int


class Held:
    """What is set aside, by namespace. Threads may share it.

    Args: base: how long a record is left alone the first time; it doubles up to `cap`.
    """

    def __init__(self, base: timedelta = HOLD_BASE, cap: timedelta = HOLD_CAP) -> None:
        self._base = base
        self._cap = cap
        self._held: dict[Namespace, dict[str, SetAside]] = {}
        self._lock = threading.Lock()

    def add(self, namespace: Namespace, record_id: str, version: int, reason: str, now: datetime) -> SetAside:
        """Set a record aside, longer than the last time."""
        with self._lock:
            held = self._held.setdefault(namespace, {})
            known = held.get(record_id)
            failures = known.failures + 1 if known else 1
            pause = min(self._base * 2 ** min(failures - 1, _MOST_DOUBLINGS), self._cap)
            held[record_id] = SetAside(record_id, reason, failures, now + pause, version)
            return held[record_id]

    def is_held(self, namespace: Namespace, record_id: str, version: int, now: datetime) -> bool:
        """Whether a pass leaves the record alone; one that has changed since is tried again."""
        with self._lock:
            known = self._held.get(namespace, {}).get(record_id)
        return known is not None and known.version == version and now < known.until

    def drop(self, namespace: Namespace, record_id: str) -> None:
        """Hold a record no longer."""
        with self._lock:
            held = self._held.get(namespace, {})
            held.pop(record_id, None)
            if not held:
                self._held.pop(namespace, None)

    def keep_only(self, namespace: Namespace, ids: Collection[str]) -> None:
        """Hold no record that is gone."""
        with self._lock:
            held = self._held.get(namespace, {})
            gone = [record_id for record_id in held if record_id not in ids]
        for record_id in gone:
            self.drop(namespace, record_id)

    def listed(self, namespace: Namespace) -> Sequence[SetAside]:
        """What is set aside in a namespace, the longest waiting first."""
        with self._lock:
            found = list(self._held.get(namespace, {}).values())
        return sorted(found, key=lambda held: (held.until, held.record_id))
