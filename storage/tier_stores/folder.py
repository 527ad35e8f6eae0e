"""Cold records in a folder of a local file system: one file per record, found and ordered by an index beside them.

A write is one transaction of the index, whose writers wait for each other. The record's bytes go to `incoming`, to the
disk, then the index names the file, then it moves to its place, and the file it replaces goes. What a crash leaves undone
is noted in the index as a chore that the next writer does. So a record that was answered is there, one that was deleted
is not, and no file outlives its record. An index that is lost is made again from the files, which say whose they are.
"""

from __future__ import annotations

import fcntl
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from isotherm.pipeline.hashing import digest
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import Position, StoredRecord, checked, checked_id, checked_limit, placed
from isotherm.storage.durable import named_folder
from isotherm.storage.tier_stores import files
from isotherm.storage.tier_stores.codec import MAX_FRAME_BYTES, DamagedError, decode, encode, named
from isotherm.storage.tier_stores.faults import Damaged, Faults
from isotherm.storage.tier_stores.folder_index import Chore, FolderIndex, NoIndexError, Row, Writer

_INDEX = "index.sqlite"
_PARTS = ("incoming", "records", "aside")
# A file may move between a look at its old and at its new place.
_LOOKS = 3


class FolderStore:
    """A store of one tier in a folder, for the threads and processes of one machine.

    Args: folder: made when it is not there; level: the tier it keeps; report: told of each damaged record, whose file is
        set aside.
    Raises: RejectedError when the folder has no name; UnavailableError when it cannot be used.
    """

    def __init__(
        self, folder: Path, *, level: Tier = Tier.COLD, report: Callable[[Damaged], None] | None = None
    ) -> None:
        self._folder = named_folder(folder)
        self._level = level
        self._faults = Faults(report)
        with files.translated():
            for part in ("", *_PARTS):
                files.make_folder(folder / part)
            with (folder / "lock").open("wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                self._index = self._open_index()

    @property
    def levels(self) -> frozenset[Tier]:
        """The one tier."""
        return frozenset({self._level})

    def damaged(self) -> tuple[Damaged, ...]:
        """Records that this process found damaged and set aside."""
        return self._faults.found()

    def close(self) -> None:
        """Close the index; the next call opens it again."""
        self._index.close()

    def put(self, namespace: Namespace, record: StoredRecord) -> StoredRecord:
        """Store a record over whatever has its id."""
        namespace, record = checked(namespace), placed(record.cleaned(), self.levels)
        with files.translated(), self._index.writing() as writer:
            known = self._begin(writer).find(namespace, record.id)
            stored = replace(record, version=known.version + 1 if known else 1)
            chores = self._write(writer, namespace, stored, known)
        self._do(chores)
        return stored

    def swap(self, namespace: Namespace, old: StoredRecord | None, new: StoredRecord) -> StoredRecord | None:
        """Store a record over one that was read, None when that has changed."""
        namespace, new = checked(namespace), placed(new.cleaned(), self.levels)
        if old is None:
            self.get(namespace, new.id)  # which sets a damaged one aside
        with files.translated(), self._index.writing() as writer:
            known = self._begin(writer).find(namespace, new.id)
            if not self._is(namespace, known, old):
                return None
            stored = replace(new, version=old.version + 1 if old else 1)
            chores = self._write(writer, namespace, stored, known)
        self._do(chores)
        return stored

    def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
        """The record of an id."""
        namespace, record_id = checked(namespace), checked_id(record_id)
        row = self._index.find(namespace, record_id)
        return self._read(namespace, row) if row else None

    def list(
        self, namespace: Namespace, tier: Tier, limit: int = 100, after: Position | None = None
    ) -> Sequence[StoredRecord]:
        """A page; no more files are read than it has records."""
        namespace, wanted = checked(namespace), checked_limit(limit)
        found: list[StoredRecord] = []
        while tier is self._level and len(found) < wanted:
            rows = self._index.page(namespace, wanted - len(found), after)
            read = [self._read(namespace, row) for row in rows]
            found += [record for record in read if record is not None]
            if None not in read:
                break
            after = found[-1].position if found else after
        return found

    def count(self, namespace: Namespace, tier: Tier) -> int:
        """How many records there are, in constant time."""
        found = self._index.count(checked(namespace))
        return found if tier is self._level else 0

    def namespaces(self) -> Sequence[Namespace]:
        """Every namespace that has records."""
        return self._index.namespaces()

    def delete(self, namespace: Namespace, record_id: str) -> bool:
        """Remove a record and its file, and what was set aside of it."""
        namespace, record_id = checked(namespace), checked_id(record_id)
        with files.translated(), self._index.writing() as writer:
            known = self._begin(writer).find(namespace, record_id)
            for damaged in (self._folder / "aside").glob(f"{_hash(namespace, record_id)}.*"):
                files.remove(damaged)
            if known is None:
                return False
            chores = self._drop(writer, namespace, known)
        self._finish(chores)
        return True

    def forget_all(self, namespace: Namespace) -> int:
        """Remove all records of a namespace with their files, and what was set aside of it."""
        namespace = checked(namespace)
        with files.translated(), self._index.writing() as writer:
            known = self._begin(writer).drop_all(namespace)
            for damaged in (self._folder / "aside").glob(f"*.{namespace.key.hex()}.*"):
                files.remove(damaged)
            chores = [Chore(_place(file), None) for file in known]
            writer.add_chores(*chores)
        self._finish(chores)
        return len(known)

    def evict(self, namespace: Namespace, old: StoredRecord) -> bool:
        """Remove a record that was read, False when that has changed; other processes wait for the index."""
        namespace, record_id = checked(namespace), checked_id(old.id)
        with files.translated(), self._index.writing() as writer:
            known = self._begin(writer).find(namespace, record_id)
            if known is None or not self._is(namespace, known, old):
                return False
            chores = self._drop(writer, namespace, known)
        self._do(chores)
        return True

    def _drop(self, writer: Writer, namespace: Namespace, known: Row) -> Sequence[Chore]:
        writer.drop(namespace, known.id)
        chores = [Chore(_place(known.file), None)]
        writer.add_chores(*chores)
        return chores

    def _write(self, writer: Writer, namespace: Namespace, record: StoredRecord, known: Row | None) -> Sequence[Chore]:
        file = _file(namespace, record.id)
        files.write_new(self._folder / _incoming(file), encode(namespace, record))
        writer.name(namespace, record, file, new=known is None)
        chores = [Chore(_incoming(file), _place(file))]
        if known is not None:
            chores.append(Chore(_place(known.file), None))
        writer.add_chores(*chores)
        return chores

    def _begin(self, writer: Writer) -> Writer:
        """Do what an earlier writer may have left undone; then whatever is still incoming was never named."""
        for chore in writer.chores():
            self._chore(chore)
        writer.forget_chores()
        for path in (self._folder / "incoming").iterdir():
            files.remove(path)
        return writer

    def _do(self, chores: Sequence[Chore]) -> None:
        """Do the chores of a write that is committed; what fails is left to the next writer."""
        for chore in chores:
            with suppress(OSError):
                self._chore(chore)

    def _finish(self, chores: Sequence[Chore]) -> None:
        """Do the chores of a removal that is committed; its caller is not told that all is gone while a file is left."""
        with files.translated():
            for chore in chores:
                self._chore(chore)

    def _chore(self, chore: Chore) -> None:
        path = self._folder / chore.file
        if chore.target is None:
            files.remove(path)
        else:
            files.move(path, self._folder / chore.target)

    def _is(self, namespace: Namespace, row: Row | None, record: StoredRecord | None) -> bool:
        if row is None or record is None:
            return row is None and record is None
        try:
            return row.version == record.version and self._load(namespace, row) == record
        except DamagedError:
            return False  # a read sets it aside

    def _read(self, namespace: Namespace, row: Row) -> StoredRecord | None:
        """The record of a row, or of the row that has taken its place by now."""
        for _ in range(_LOOKS):
            try:
                return self._load(namespace, row)
            except DamagedError as error:
                why = str(error)
            now = self._index.find(namespace, row.id)
            if now is None:
                return None
            row = now
        self._set_aside(namespace, row, why)
        return None

    def _load(self, namespace: Namespace, row: Row) -> StoredRecord:
        with files.translated():
            for place in (_place(row.file), _incoming(row.file)):
                body = files.read_bounded(self._folder / place, MAX_FRAME_BYTES)
                if body is not None:
                    return decode(body, namespace, row.id)
        raise DamagedError("its file is gone")

    def _set_aside(self, namespace: Namespace, row: Row, why: str) -> None:
        with files.translated(), self._index.writing() as writer:
            if self._begin(writer).find(namespace, row.id) != row:
                return
            writer.drop(namespace, row.id)
            aside = _aside(_file(namespace, row.id))
            chores = [Chore(_place(row.file), aside)]
            writer.add_chores(*chores)
        self._do(chores)
        self._faults.add(Damaged(namespace, row.id, aside, why))

    def _open_index(self) -> FolderIndex:
        path = self._folder / _INDEX
        try:
            index = FolderIndex(path)
        except NoIndexError:
            for lost in self._folder.glob(f"{_INDEX}*"):
                files.move(lost, self._folder / _aside(f"{lost.name}.{secrets.token_hex(8)}"))
            index = FolderIndex(path)
        if not index.complete:
            self._rebuild(index)
        return index

    def _rebuild(self, index: FolderIndex) -> None:
        """Name every file again; of two versions of a record the later one counts."""
        chores: list[Chore] = []
        with index.writing() as writer:
            for path in sorted(self._folder.glob("incoming/*")) + sorted(self._folder.glob("records/*/*")):
                chores += self._named_again(writer, path)
            writer.add_chores(*chores)
            writer.complete()
        self._do(chores)

    def _named_again(self, writer: Writer, path: Path) -> Sequence[Chore]:
        here = path.relative_to(self._folder).as_posix()
        try:
            namespace, record = named(files.read_bounded(path, MAX_FRAME_BYTES) or b"")
        except DamagedError as error:
            self._faults.add(Damaged(None, None, _aside(path.name), str(error)))
            return [Chore(here, _aside(path.name))]
        known = writer.find(namespace, record.id)
        if known is not None and known.version >= record.version:
            return [Chore(here, None)]
        writer.name(namespace, record, path.name, new=known is None)
        stale = [] if known is None else [Chore(_place(known.file), None), Chore(_incoming(known.file), None)]
        return [*stale, Chore(here, _place(path.name))]


def _file(namespace: Namespace, record_id: str) -> str:
    """A new name of a file; it tells whose the file is when its bytes do not."""
    return f"{_hash(namespace, record_id)}.{namespace.key.hex()}.{secrets.token_hex(8)}"


def _hash(namespace: Namespace, record_id: str) -> str:
    return digest("record", namespace.key, record_id).hex()


def _incoming(file: str) -> str:
    return f"incoming/{file}"


def _place(file: str) -> str:
    return f"records/{file[:2]}/{file}"


def _aside(file: str) -> str:
    return f"aside/{file}"
