"""Cold records in an S3-compatible bucket: one object per record, and empty objects whose names are its index.

A write puts a name first, then the record on condition that it still is the one that was read, then removes the name of
the record before. So each record has its name at every moment; a name whose record is another by now counts for nothing
and goes when it is old. Names sort as the lists do, and counting reads names of records only.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import NamedTuple

from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import Position, StoredRecord, checked, checked_id, checked_limit, placed
from isotherm.storage.s3 import Listed, Objects, TooLongError
from isotherm.storage.tier_stores.codec import MAX_FRAME_BYTES, DamagedError, encode, name_of, named, namespace_of
from isotherm.storage.tier_stores.faults import Damaged, Faults

_LAST = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DIGITS = 18
_SORTED_ID_BYTES = 64
_MARK_CHARS = 16
_HASH_CHARS = 64
# A writer is done with its names by then, or dead.
_STALE = timedelta(hours=1)
_READERS = 8
_PER_REQUEST = 1_000
_NAMESPACES = "namespaces/"


class _Found(NamedTuple):
    """What stands under a record's key. `etag` is None when nothing does; `record` is None for a void object too."""

    record: StoredRecord | None
    mark: str
    etag: str | None


_NOTHING = _Found(None, "", None)


class S3Store:
    """A store of one tier in a bucket, for any number of machines.

    Records with one last access come by id as far as their first 64 bytes differ, then in an order of their own.

    Args: objects: of a bucket, or a folder of one, that holds nothing else; level: the tier it keeps; report: told of each
        damaged record, whose bytes are set aside.
    """

    def __init__(
        self, objects: Objects, *, level: Tier = Tier.COLD, report: Callable[[Damaged], None] | None = None
    ) -> None:
        self._objects = objects
        self._level = level
        self._faults = Faults(report)

    @property
    def levels(self) -> frozenset[Tier]:
        """The one tier."""
        return frozenset({self._level})

    def damaged(self) -> tuple[Damaged, ...]:
        """Records that this process found damaged and set aside."""
        return self._faults.found()

    def put(self, namespace: Namespace, record: StoredRecord) -> StoredRecord:
        """Store a record over whatever has its id."""
        namespace, record = checked(namespace), placed(record.cleaned(), self.levels)
        while True:
            found = self._find(namespace, record.id)
            stored = replace(record, version=found.record.version + 1 if found.record else 1)
            if self._write(namespace, stored, found):
                return stored

    def swap(self, namespace: Namespace, old: StoredRecord | None, new: StoredRecord) -> StoredRecord | None:
        """Store a record over one that was read, None when that has changed."""
        namespace, new = checked(namespace), placed(new.cleaned(), self.levels)
        found = self._find(namespace, new.id)
        stored = replace(new, version=old.version + 1 if old else 1)
        return stored if found.record == old and self._write(namespace, stored, found) else None

    def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
        """The record of an id."""
        return self._find(checked(namespace), checked_id(record_id)).record

    def list(
        self, namespace: Namespace, tier: Tier, limit: int = 100, after: Position | None = None
    ) -> Sequence[StoredRecord]:
        """A page: its names in one request as a rule, then its records, eight at a time."""
        namespace, wanted = checked(namespace), checked_limit(limit)
        if tier is not self._level:
            return []
        found: list[StoredRecord] = []
        names = self._names(namespace, after)
        with ThreadPoolExecutor(min(_READERS, wanted)) as readers:
            while len(found) < wanted and (batch := list(islice(names, wanted - len(found)))):
                found += [r for r in readers.map(lambda name: self._named(namespace, name), batch) if r is not None]
        return found

    def count(self, namespace: Namespace, tier: Tier) -> int:
        """How many records there are, by their names: a request per thousand."""
        listed = self._objects.list(_records(checked(namespace)))
        return sum(row.size > 0 for row in listed) if tier is self._level else 0

    def delete(self, namespace: Namespace, record_id: str) -> bool:
        """Remove a record, then its name; and what was set aside of it."""
        namespace, record_id = checked(namespace), checked_id(record_id)
        hashed = _hash(namespace, record_id)
        found = self._find(namespace, record_id)  # which sets a damaged one aside
        aside = [row.key for row in self._objects.list(_aside(namespace, hashed))]
        if aside:  # its names are not known, and hold its id
            aside += [row.key for row in self._objects.list(_names(namespace)) if f"{hashed}." in row.key]
        self._objects.delete([key for key in aside if found.record is None or not key.endswith(f".{found.mark}")])
        if found.record is None:
            return False
        self._objects.delete([_key(namespace, record_id)])
        self._unname(namespace, found.record, found.mark)
        return True

    def evict(self, namespace: Namespace, old: StoredRecord) -> bool:
        """Remove a record that was read, False when that has changed.

        Not every server deletes on a condition, but all that this store works with write on one: a void object stays.
        """
        namespace = checked(namespace)
        found = self._find(namespace, old.id)
        if found.record is None or found.etag is None or found.record != old:
            return False
        if self._objects.replace(_key(namespace, old.id), b"", found.etag) is None:
            return False
        self._unname(namespace, found.record, found.mark)
        return True

    def forget_all(self, namespace: Namespace) -> int:
        """Remove every object of a namespace: records, their names, and what was set aside."""
        namespace = checked(namespace)
        rows = list(self._objects.list(_folder(namespace)))
        keys = [row.key for row in rows]
        for at in range(0, len(keys), _PER_REQUEST):
            self._objects.delete(keys[at : at + _PER_REQUEST])
        self._forget_empty(namespace)
        return sum(row.size > 0 and row.key.startswith(_records(namespace)) for row in rows)

    def _unname(self, namespace: Namespace, record: StoredRecord, mark: str) -> None:
        """Remove the name of a record that is gone, and after the last one the namespace."""
        self._objects.delete([_name(namespace, record, mark)])
        self._forget_empty(namespace)

    def _forget_empty(self, namespace: Namespace) -> None:
        """Name a namespace no more that has no records."""
        if not self._has_records(namespace):
            self._objects.delete([_NAMESPACES + namespace.key.hex()])
            if self._has_records(namespace):  # a writer came between
                self._note(namespace)

    def namespaces(self) -> Sequence[Namespace]:
        """Every namespace that has records; an object is read for each."""
        listed = [row.key for row in self._objects.list(_NAMESPACES)]
        read = (self._objects.get(key, max_bytes=MAX_FRAME_BYTES) for key in listed)
        known = [namespace_of(found.body.decode()) for found in read if found is not None]
        return [namespace for namespace in known if self._has_records(namespace)]

    def _has_records(self, namespace: Namespace) -> bool:
        return any(row.size for row in self._objects.list(_records(namespace)))

    def _note(self, namespace: Namespace) -> None:
        self._objects.create(_NAMESPACES + namespace.key.hex(), name_of(namespace).encode())

    def _find(self, namespace: Namespace, record_id: str) -> _Found:
        return self._fetch(namespace, _hash(namespace, record_id), record_id)

    def _named(self, namespace: Namespace, listed: Listed) -> StoredRecord | None:
        """The record of a name, None when the name is not its own; an old name of that kind is removed."""
        hashed, mark = listed.key[-_HASH_CHARS - _MARK_CHARS - 1 :].split(".")
        found = self._fetch(namespace, hashed, None)
        if found.record is not None and found.mark == mark:
            return found.record
        if datetime.now(UTC) - listed.written_at > _STALE:
            self._objects.delete([listed.key])
        return None

    def _names(self, namespace: Namespace, after: Position | None) -> Iterator[Listed]:
        start = None if after is None else f"{_names(namespace)}{_sorted(after)}{_hash(namespace, after.id)}~"
        return self._objects.list(_names(namespace), after=start)

    def _fetch(self, namespace: Namespace, hashed: str, record_id: str | None) -> _Found:
        key = f"{_records(namespace)}{hashed}"
        try:
            fetched = self._objects.get(key, max_bytes=MAX_FRAME_BYTES + _MARK_CHARS)
        except TooLongError as error:
            return self._set_aside(namespace, record_id, hashed, error.etag, "larger than any record")
        if fetched is None:
            return _NOTHING
        if not fetched.body:
            return _Found(None, "", fetched.etag)
        try:
            record = _read(namespace, hashed, fetched.body[_MARK_CHARS:])
        except DamagedError as error:
            return self._set_aside(namespace, record_id, hashed, fetched.etag, str(error))
        return _Found(record, fetched.body[:_MARK_CHARS].decode("ascii", "replace"), fetched.etag)

    def _write(self, namespace: Namespace, record: StoredRecord, found: _Found) -> bool:
        mark = secrets.token_hex(_MARK_CHARS // 2)
        name, key = _name(namespace, record, mark), _key(namespace, record.id)
        body = mark.encode() + encode(namespace, record)
        if found.record is None:  # so that no record is without its namespace
            self._note(namespace)
        self._objects.put(name, b"")
        written = (
            self._objects.create(key, body) if found.etag is None else self._objects.replace(key, body, found.etag)
        )
        # A try whose answer was lost makes the next one fail.
        if written is None and self._find(namespace, record.id).mark != mark:
            self._objects.delete([name])
            return False
        if found.record is None:  # once more, since the last record may have gone meanwhile
            self._note(namespace)
        else:
            self._objects.delete([_name(namespace, found.record, found.mark)])
        return True

    def _set_aside(self, namespace: Namespace, record_id: str | None, hashed: str, etag: str, why: str) -> _Found:
        """Copy the bytes away and leave a void object, on condition that nobody has written meanwhile."""
        key = f"{_records(namespace)}{hashed}"
        aside = f"{_aside(namespace, hashed)}{secrets.token_hex(_MARK_CHARS // 2)}"
        self._objects.copy(key, aside)
        void = self._objects.replace(key, b"", etag)
        if void is None:
            self._objects.delete([aside])
            return self._fetch(namespace, hashed, record_id)
        self._faults.add(Damaged(namespace, record_id, aside, why))
        return _Found(None, "", void)


def _read(namespace: Namespace, hashed: str, body: bytes) -> StoredRecord:
    owner, record = named(body)
    if owner != namespace or _hash(namespace, record.id) != hashed:
        raise DamagedError("a record of another name")
    return record


def _hash(namespace: Namespace, record_id: str) -> str:
    return digest("record", namespace.key, record_id).hex()


def _folder(namespace: Namespace) -> str:
    return f"{namespace.key.hex()}/"


def _records(namespace: Namespace) -> str:
    return f"{_folder(namespace)}records/"


def _key(namespace: Namespace, record_id: str) -> str:
    return _records(namespace) + _hash(namespace, record_id)


def _aside(namespace: Namespace, hashed: str) -> str:
    return f"{_folder(namespace)}aside/{hashed}/"


def _names(namespace: Namespace) -> str:
    return f"{_folder(namespace)}names/"


def _name(namespace: Namespace, record: StoredRecord, mark: str) -> str:
    return f"{_names(namespace)}{_sorted(record.position)}{_hash(namespace, record.id)}.{mark}"


def _sorted(position: Position) -> str:
    """Sorts as the lists do: the time that is left until the end of time, then the id; ids hold no NUL."""
    left = (_LAST - position.last_access_at) // _MICROSECOND
    head = position.id.encode()[:_SORTED_ID_BYTES].ljust(_SORTED_ID_BYTES, b"\0")
    return f"{left:0{_DIGITS}d}{base64.b32hexencode(head).decode().rstrip('=')}"
