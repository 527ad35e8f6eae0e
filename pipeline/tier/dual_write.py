"""A manager whose records are mirrored into an index of another kind: the store is the truth, the index a copy.

What the index missed is remembered and made good by the next write, pass or `catch_up`; `rebuild_index` compares all.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from isotherm.pipeline.errors import NotFoundError, TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.answers import Recall
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.cognitive import CognitiveIndex, CognitiveRecord, cognitive
from isotherm.pipeline.tier.edits import RecordEdit
from isotherm.pipeline.tier.manager import Manager, Receipt
from isotherm.pipeline.tier.passing import PassReport
from isotherm.pipeline.tier.records import NewRecord, Record, searchable_text
from isotherm.pipeline.tier.stripes import Stripes


class MirrorError(TransientError):
    """The record is stored, but the index could not be told; `rebuild_index` or the next write makes it good.

    Args: record_id: which one.
    """

    def __init__(self, record_id: str) -> None:
        super().__init__(f"record {record_id} is stored, but its mirror failed")
        self.record_id = record_id


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """How many entries of an index were missing, different, and of records that are gone."""

    added: int = 0
    updated: int = 0
    removed: int = 0


class DualWriteManager:
    """A manager and its mirror. Verbs that are not here are the inner manager's.

    Args: inner: the truth; index: the mirror, None for none.
    """

    def __init__(self, inner: Manager, index: CognitiveIndex | None) -> None:
        self.inner = inner
        self._index = index
        self._behind: set[tuple[Namespace, str]] = set()
        self._lock = threading.Lock()
        self._stripes = Stripes()

    @property
    def lag(self) -> int:
        """How many records the index has not been told of."""
        return len(self._behind)

    def remember(self, namespace: Namespace, record: NewRecord) -> Record:
        """Store, then mirror what was stored, with the id it got.

        Raises: MirrorError when only the mirror failed; otherwise as `Manager.remember`.
        """
        stored = self.inner.remember(namespace, record)
        self._sync_all(namespace, [stored.id])
        return stored

    def update(
        self, namespace: Namespace, record_id: str, edit: RecordEdit, *, expected_version: int | None = None
    ) -> Record:
        """Change, then mirror. Raises: as `remember` and `Manager.update`."""
        stored = self.inner.update(namespace, record_id, edit, expected_version=expected_version)
        self._sync_all(namespace, [stored.id])
        return stored

    def forget(self, namespace: Namespace, ids: Sequence[str] | None = None) -> Receipt:
        """Remove from the store and the index, of a whole namespace also entries of records that went long ago.

        Raises: MirrorError when the index still has one of them; what the index raises when it cannot say what it has.
        """
        receipt = self.inner.forget(namespace, ids)
        if ids is None:
            mirrored = () if self._index is None else self._index.fingerprints(namespace)
            ids = sorted({*receipt.ids, *mirrored})
        self._sync_all(namespace, ids)
        return receipt

    def recall(self, namespace: Namespace, query: str, budget: RecallBudget | None = None) -> Recall:
        """As the inner manager; the index is not asked."""
        return self.inner.recall(namespace, query, budget)

    def reconcile(self, namespace: Namespace, now: datetime | None = None) -> PassReport:
        """As the inner manager; what it evicted leaves the index, at the latest with the next write that succeeds."""
        report = self.inner.reconcile(namespace, now)
        with self._lock:
            self._behind.update((namespace, record_id) for record_id in report.evicted)
        self.catch_up()
        return report

    def list_all(self, namespace: Namespace) -> Iterator[Record]:
        """As the inner manager."""
        return self.inner.list_all(namespace)

    def catch_up(self) -> int:
        """Tell the index of what it missed; returns how many records it still misses."""
        with self._lock:
            late = sorted(self._behind, key=lambda one: (one[0].key, one[1]))
        for namespace, record_id in late:
            if not self._sync(namespace, record_id):
                break
        return self.lag

    def rebuild_index(self, namespace: Namespace) -> RebuildReport:
        """Compare the index with the store and write what differs: records that are missing, changed, or gone.

        Raises: what the index raises; what was written stays, and the next call goes on from there.
        """
        if self._index is None:
            return RebuildReport()
        # Before anything is compared: what a writer adds from now on is behind afterwards too.
        with self._lock:
            late = {one for one in self._behind if one[0] == namespace}
            self._behind -= late
        try:
            return self._rebuilt(self._index, namespace)
        except BaseException:
            with self._lock:
                self._behind |= late
            raise

    def _rebuilt(self, index: CognitiveIndex, namespace: Namespace) -> RebuildReport:
        known = dict(index.fingerprints(namespace))
        found: Counter[str] = Counter()
        for record in self.inner.list_all(namespace):
            fingerprint = known.pop(record.id, None)
            if fingerprint != mirror_of(record).fingerprint:
                # Read again: a writer may have changed it since its page was read.
                is_there = self._renew(index, namespace, record.id)
                found["updated" if fingerprint else "added"] += is_there
                found["removed"] += not is_there and fingerprint is not None
        for record_id in sorted(known):
            found["removed"] += not self._renew(index, namespace, record_id)
        return RebuildReport(found["added"], found["updated"], found["removed"])

    def _renew(self, index: CognitiveIndex, namespace: Namespace, record_id: str) -> bool:
        with self._stripes.of(namespace, record_id):
            return self._bring(index, namespace, record_id)

    def _sync_all(self, namespace: Namespace, ids: Sequence[str]) -> None:
        failed = [record_id for record_id in ids if not self._sync(namespace, record_id)]
        if failed:
            raise MirrorError(failed[0])
        self.catch_up()

    def _sync(self, namespace: Namespace, record_id: str) -> bool:
        """Bring one entry of the index to what the store has now; False when it could not be told."""
        if self._index is None:
            return True
        # Two writers of one record: the index must end with what the later one stored, and so must what is noted of it.
        with self._stripes.of(namespace, record_id):
            try:
                self._bring(self._index, namespace, record_id)
            except Exception:  # noqa: BLE001 - the record is stored, whatever befell its mirror
                with self._lock:
                    self._behind.add((namespace, record_id))
                return False
            with self._lock:
                self._behind.discard((namespace, record_id))
            return True

    def _bring(self, index: CognitiveIndex, namespace: Namespace, record_id: str) -> bool:
        """Bring an entry to what the store has; False when that is nothing."""
        try:
            record = self.inner.get(namespace, record_id)
        except NotFoundError:
            index.forget(namespace, record_id)
            return False
        index.remember(namespace, mirror_of(record))
        return True


def mirror_of(record: Record) -> CognitiveRecord:
    """What an index keeps of a record: the text it is found by, in place of its content."""
    return replace(cognitive(record), content=searchable_text(record.text, record.metadata).strip())
