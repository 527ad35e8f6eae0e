"""Changes of single records as compare-and-swap, under a lock that spares threads of this process the second try."""

from __future__ import annotations

from collections.abc import Callable

from isotherm.pipeline.errors import NotFoundError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.store import Store, StoredRecord
from isotherm.pipeline.tier.stripes import Stripes, tries

Rule = Callable[[StoredRecord | None], StoredRecord]


class Writer:
    """Writes records of a store. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stripes = Stripes()

    def change(self, owner: Namespace, record_id: str, rule: Rule) -> tuple[StoredRecord | None, StoredRecord]:
        """Read, apply a rule, write if nobody wrote meanwhile, else again; a rule that changes nothing writes nothing.

        Returns: the record before and after. Raises: what the rule or the store raises.
        """
        for _ in tries():
            with self._stripes.of(owner, record_id):
                known = self._store.get(owner, record_id)
                wanted = rule(known)
                if wanted == known:
                    return known, wanted
                done = self._store.swap(owner, known, wanted)
            if done is not None:
                return known, done
        raise AssertionError("the tries end with an error")

    def replace(self, owner: Namespace, old: StoredRecord, new: StoredRecord) -> bool:
        """Write a record only if it still is the old one."""
        with self._stripes.of(owner, old.id):
            return self._store.swap(owner, old, new) is not None

    def remove(self, owner: Namespace, record_id: str, *, only: StoredRecord | None = None) -> bool:
        """Remove a record; False when there is none. Args: only: remove it only if it still is this one."""
        with self._stripes.of(owner, record_id):
            return self._store.delete(owner, record_id) if only is None else self._store.evict(owner, only)


def existing(record: StoredRecord | None) -> StoredRecord:
    """Return the record. Raises: NotFoundError when there is none."""
    if record is None:
        raise NotFoundError("no such record in this namespace")
    return record
