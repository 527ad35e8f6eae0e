"""Records in PostgreSQL, in the rows that producers and passes write too: one table, one way of writing, one hot tail.

A write is one transaction: the text by the statement of `remember`, the tier by the moves that passes make, the rest as
given. The words of a new text are indexed by the step that `remember` writes, as for any producer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar
from uuid import uuid4

from uuid_utils.compat import uuid7

from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.blobs import BlobStore
from isotherm.pipeline.tier.outline import Outline
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import Position, StoredRecord, checked, checked_id, checked_limit, placed
from isotherm.storage import cold
from isotherm.storage.postgres import cold_blobs, namespaces, tier_rows
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.reach import of_owner, over_all
from isotherm.storage.postgres.tier_rows import ChangedError, Row, Writing
from isotherm.storage.postgres.tier_write import Patience
from isotherm.storage.tier import TierMemory
from isotherm.storage.tier_stores.faults import Damaged, Faults

T = TypeVar("T")
# Records in a transaction that removes several, and objects in a turn.
_SOME = 500


class PostgresStore:
    """A store of all tiers, or of one, over the open pool.

    A cold body that is written here stays in the database, whatever its size; one in the blob store is read from there.

    Args: memory: keeps the hot tails honest; patience: of the steps that follow a write; blobs: where passes put large
        bodies; level: the one tier it keeps, None for all three; embeds: whether new texts get a vector, by a step; report:
        told of each record whose body is missing or damaged; its row stays, and reads leave it out.
    """

    def __init__(
        self,
        memory: TierMemory,
        patience: Patience,
        blobs: BlobStore,
        *,
        level: Tier | None = None,
        embeds: bool = False,
        report: Callable[[Damaged], None] | None = None,
    ) -> None:
        self._memory = memory
        self._patience = patience
        self._blobs = blobs
        self._levels = frozenset(Tier) if level is None else frozenset({level})
        self._embeds = embeds
        self._faults = Faults(report)

    @property
    def levels(self) -> frozenset[Tier]:
        """All three tiers, or the one."""
        return self._levels

    def damaged(self) -> tuple[Damaged, ...]:
        """Records whose bodies this process found missing or damaged."""
        return self._faults.found()

    @of_owner
    def put(self, namespace: Namespace, record: StoredRecord) -> StoredRecord:
        """Store a record over whatever has its id."""
        namespace, record = checked(namespace), placed(record.cleaned(), self._levels)
        lost = self._lost(namespace, record.id) if record.tier is Tier.COLD else None

        def write(conn: Connection, place: Place) -> StoredRecord:
            row = tier_rows.lock(conn, place, record.id)
            return self._write(conn, place, row, record, anew=row is not None and row.version == lost)

        while True:
            try:
                return self._change(namespace, write)
            except ChangedError:
                continue  # another writer made the row first

    @of_owner
    def swap(self, namespace: Namespace, old: StoredRecord | None, new: StoredRecord) -> StoredRecord | None:
        """Store a record over one that was read, None when that has changed."""
        namespace, new = checked(namespace), placed(new.cleaned(), self._levels)
        done = self._swapped(namespace, old, new)
        if done is None and old is None and (lost := self._lost(namespace, new.id)) is not None:
            return self._swapped(namespace, None, new, over=lost)
        return done

    def _swapped(
        self, namespace: Namespace, old: StoredRecord | None, new: StoredRecord, *, over: int | None = None
    ) -> StoredRecord | None:
        def write(conn: Connection, place: Place) -> StoredRecord | None:
            row = tier_rows.lock(conn, place, new.id)
            if row is None:
                return self._write(conn, place, None, new, anew=True) if old is None else None
            same = row.version == over if old is None else row.equals(old)
            return self._write(conn, place, row, new, anew=old is None) if same else None

        try:
            return self._change(namespace, write)
        except ChangedError:
            return None

    def _lost(self, namespace: Namespace, record_id: str) -> int | None:
        """The version of a row whose body is missing or damaged, None of any other."""
        place = namespaces.find(namespace)
        if place is None:
            return None
        with connection() as conn:
            row = tier_rows.get(conn, place, record_id)
        return row.version if row is not None and self._whole(namespace, row) is None else None

    @of_owner
    def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
        """The record of an id."""
        namespace, record_id = checked(namespace), checked_id(record_id)
        place = namespaces.find(namespace)
        if place is None:
            return None
        with connection() as conn:
            row = tier_rows.get(conn, place, record_id)
        return None if row is None else self._whole(namespace, row)

    @of_owner
    def list(
        self, namespace: Namespace, tier: Tier, limit: int = 100, after: Position | None = None
    ) -> Sequence[StoredRecord]:
        """A page, from indexes."""
        namespace, wanted = checked(namespace), checked_limit(limit)
        place = namespaces.find(namespace)
        found: list[StoredRecord] = []
        while place is not None and tier in self._levels and len(found) < wanted:
            with connection() as conn:
                rows = tier_rows.page(conn, place, tier, wanted - len(found), after)
            read = [self._whole(namespace, row) for row in rows]
            found += [record for record in read if record is not None]
            if None not in read:
                break
            after = rows[-1].position
        return found

    @of_owner
    def outline(
        self, namespace: Namespace, tier: Tier, limit: int = 100, after: Position | None = None
    ) -> Sequence[Outline]:
        """A page without texts: nothing is decompressed or fetched."""
        place, most = namespaces.find(checked(namespace)), checked_limit(limit)
        if place is None or tier not in self._levels:
            return []
        with connection() as conn:
            return tier_rows.outline(conn, place, tier, most, after)

    @of_owner
    def count(self, namespace: Namespace, tier: Tier) -> int:
        """How many records a tier has, from an index."""
        place = namespaces.find(checked(namespace))
        if place is None or tier not in self._levels:
            return 0
        with connection() as conn:
            return tier_rows.count(conn, place, tier)

    @of_owner
    def delete(self, namespace: Namespace, record_id: str) -> bool:
        """Remove a record with all that hangs on it, and its object in the blob store."""
        namespace = checked(namespace)
        gone = self._remove(namespace, checked_id(record_id), lambda _: True, erased=True)
        self._collect(namespace)
        return gone

    @of_owner
    def forget_all(self, namespace: Namespace) -> int:
        """Remove all records of a namespace, so many in a transaction, and their objects in the blob store."""
        namespace, gone = checked(namespace), 0
        while namespaces.find(namespace) is not None:
            some = self._change(namespace, lambda conn, place: tier_rows.erase_some(conn, place, _SOME, self._patience))
            gone += some
            if not some:
                self._change(namespace, tier_rows.erase_answers)
                break
        self._collect(namespace)
        return gone

    @of_owner
    def evict(self, namespace: Namespace, old: StoredRecord) -> bool:
        """Remove a record that was read, False when that has changed; its row is locked in between."""
        return self._remove(checked(namespace), checked_id(old.id), lambda row: row.equals(old))

    def _remove(
        self, namespace: Namespace, record_id: str, wanted: Callable[[Row], bool], *, erased: bool = False
    ) -> bool:
        if namespaces.find(namespace) is None:
            return False

        def remove(conn: Connection, place: Place) -> bool:
            row = tier_rows.lock(conn, place, record_id)
            if row is None or not wanted(row) or not tier_rows.delete(conn, row):
                return False
            if erased:
                tier_rows.erase(conn, place, [row.key], self._patience)
            return True

        return self._change(namespace, remove)

    def _collect(self, namespace: Namespace) -> None:
        """Remove objects that no body of the namespace refers to. Raises: TransientError while some are left."""
        place = namespaces.find(namespace)
        if place is None:
            return
        while self._has_objects_left(place):
            with connection() as conn:
                dead = cold_blobs.condemn_of(conn, place.namespace_id, _SOME)
            if not dead:
                raise TransientError("objects of what was removed stay while a backup copies them")
            gone = cold.collect(self._blobs, dead)
            with connection() as conn:
                cold_blobs.remove(conn, gone)

    def _has_objects_left(self, place: Place) -> bool:
        with connection() as conn:
            return cold_blobs.are_left(conn, place.namespace_id)

    @over_all
    def namespaces(self) -> Sequence[Namespace]:
        """Every namespace that has records."""
        with connection() as conn:
            return tier_rows.namespaces(conn)

    def _change(self, namespace: Namespace, write: Callable[[Connection, Place], T]) -> T:
        def changed() -> T:
            place = namespaces.resolve(namespace)
            return self._memory.change([place.namespace_id], uuid4(), lambda conn: (write(conn, place), []))[0]

        return namespaces.again_if_erased(changed)

    def _write(
        self, conn: Connection, place: Place, row: Row | None, record: StoredRecord, *, anew: bool
    ) -> StoredRecord:
        writing = Writing(uuid7(), place, self._patience, embeds=self._embeds, anew=anew)
        return tier_rows.write(conn, writing, row, replace(record, version=row.version + 1 if row else 1))

    def _whole(self, namespace: Namespace, row: Row) -> StoredRecord | None:
        fetched = None
        if row.object_key is not None:
            with suppress(RejectedError):  # longer than any body: not what was put there
                fetched = self._blobs.get(row.object_key)
        record = row.record(fetched)
        if record is None:
            self._faults.add(Damaged(namespace, row.id, "tier_records", "the stored body is missing or damaged"))
        return record
