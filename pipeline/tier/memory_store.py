"""Records in the memory of this process: for a program of its own, and as the twin of every other store in tests."""

from __future__ import annotations

import copy
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.heat import EPOCH
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import Position, StoredRecord, checked, checked_id, checked_limit, placed

_Key = tuple[int, str]


@dataclass(slots=True)
class _Shelf:
    """The records of one namespace, and for each tier their order."""

    rows: dict[str, StoredRecord] = field(default_factory=dict)
    order: dict[Tier, list[_Key]] = field(default_factory=lambda: {tier: [] for tier in Tier})

    def write(self, record: StoredRecord) -> None:
        self.remove(record.id)
        self.rows[record.id] = record
        insort(self.order[record.tier], _key(record.position))

    def remove(self, record_id: str) -> bool:
        known = self.rows.pop(record_id, None)
        if known is None:
            return False
        order = self.order[known.tier]
        del order[bisect_left(order, _key(known.position))]
        return True


class MemoryStore:
    """A store in memory; what it returns is a copy, so that nobody changes what it keeps.

    Args: levels: the tiers it keeps; all by default.
    """

    def __init__(self, levels: Iterable[Tier] = tuple(Tier)) -> None:
        self._levels = frozenset(levels)
        self._shelves: dict[Namespace, _Shelf] = {}
        self._lock = threading.Lock()

    @property
    def levels(self) -> frozenset[Tier]:
        """The tiers this store keeps."""
        return self._levels

    def put(self, namespace: Namespace, record: StoredRecord) -> StoredRecord:
        """Store a record over whatever has its id."""
        namespace, new = checked(namespace), placed(record.cleaned(), self._levels)
        with self._lock:
            shelf = self._shelves.setdefault(namespace, _Shelf())
            known = shelf.rows.get(new.id)
            stored = replace(new, version=known.version + 1 if known else 1)
            shelf.write(stored)
        return _copied(stored)

    def swap(self, namespace: Namespace, old: StoredRecord | None, new: StoredRecord) -> StoredRecord | None:
        """Store a record over one that was read, None when that has changed."""
        namespace, new = checked(namespace), placed(new.cleaned(), self._levels)
        with self._lock:
            shelf = self._shelves.get(namespace, _Shelf())
            if shelf.rows.get(new.id) != old:
                return None
            stored = replace(new, version=old.version + 1 if old else 1)
            shelf.write(stored)
            self._shelves[namespace] = shelf
        return _copied(stored)

    def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
        """The record of an id."""
        namespace, wanted = checked(namespace), checked_id(record_id)
        with self._lock:
            shelf = self._shelves.get(namespace)
            found = None if shelf is None else shelf.rows.get(wanted)
        return None if found is None else _copied(found)

    def list(
        self, namespace: Namespace, tier: Tier, limit: int = 100, after: Position | None = None
    ) -> Sequence[StoredRecord]:
        """A page of a tier, the newest access first."""
        namespace, most = checked(namespace), checked_limit(limit)
        with self._lock:
            shelf = self._shelves.get(namespace)
            if shelf is None:
                return []
            order = shelf.order[tier]
            start = 0 if after is None else bisect_right(order, _key(after))
            found = [shelf.rows[record_id] for _, record_id in order[start : start + most]]
        return [_copied(record) for record in found]

    def count(self, namespace: Namespace, tier: Tier) -> int:
        """How many records a tier has."""
        namespace = checked(namespace)
        with self._lock:
            shelf = self._shelves.get(namespace)
            return 0 if shelf is None else len(shelf.order[tier])

    def delete(self, namespace: Namespace, record_id: str) -> bool:
        """Remove a record; with its last one the namespace is gone too."""
        namespace, wanted = checked(namespace), checked_id(record_id)
        with self._lock:
            return self._remove(namespace, wanted)

    def evict(self, namespace: Namespace, old: StoredRecord) -> bool:
        """Remove a record that was read, False when that has changed."""
        namespace = checked(namespace)
        with self._lock:
            shelf = self._shelves.get(namespace)
            known = None if shelf is None else shelf.rows.get(old.id)
            return known == old and self._remove(namespace, old.id)

    def forget_all(self, namespace: Namespace) -> int:
        """Remove all records of a namespace."""
        namespace = checked(namespace)
        with self._lock:
            shelf = self._shelves.pop(namespace, None)
        return 0 if shelf is None else len(shelf.rows)

    def _remove(self, namespace: Namespace, record_id: str) -> bool:
        shelf = self._shelves.get(namespace)
        if shelf is None or not shelf.remove(record_id):
            return False
        if not shelf.rows:
            del self._shelves[namespace]
        return True

    def namespaces(self) -> Sequence[Namespace]:
        """Every namespace that has records, in the order in which they got their first."""
        with self._lock:
            return list(self._shelves)


def _key(position: Position) -> _Key:
    return -_microseconds(position.last_access_at), position.id


def _microseconds(moment: datetime) -> int:
    since = moment - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def _copied(record: StoredRecord) -> StoredRecord:
    return replace(record, metadata=copy.deepcopy(dict(record.metadata))) if record.metadata else record
