"""The index of a folder of records: who has which file, in which order, and the chores that files wait for.

SQLite, in the folder itself; its writers wait for each other, across threads and processes of one machine.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from isotherm.pipeline.errors import UnavailableError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.store import Position, StoredRecord
from isotherm.storage.tier_stores.codec import name_of, namespace_of

_FIRST = datetime.min.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_WAIT_S = 30.0
_COMPLETE = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS namespaces (
    namespace BLOB PRIMARY KEY, name TEXT NOT NULL, records INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS records (
    namespace BLOB NOT NULL, id TEXT NOT NULL, file TEXT NOT NULL, version INTEGER NOT NULL, accessed INTEGER NOT NULL,
    PRIMARY KEY (namespace, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS records_by_access ON records (namespace, accessed DESC, id);
CREATE TABLE IF NOT EXISTS chores (file TEXT PRIMARY KEY, target TEXT) WITHOUT ROWID;
"""
_UPSERT = """
INSERT INTO records (namespace, id, file, version, accessed) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (namespace, id) DO UPDATE SET file = excluded.file, version = excluded.version, accessed = excluded.accessed"""
_COUNT = """
INSERT INTO namespaces (namespace, name, records) VALUES (?, ?, ?)
ON CONFLICT (namespace) DO UPDATE SET records = records + excluded.records"""
_PAGE = """
SELECT id, file, version FROM records WHERE namespace = ? AND accessed <= ? AND (accessed < ? OR id > ?)
ORDER BY accessed DESC, id LIMIT ?"""


class Row(NamedTuple):
    """A record as the index knows it; `file` is another one after each write."""

    id: str
    file: str
    version: int


class Chore(NamedTuple):
    """A file, named below the folder, that is to move to `target`, or to go."""

    file: str
    target: str | None


class NoIndexError(UnavailableError):
    """What stands where the index should be is none."""


class FolderIndex:
    """The index in one file; `complete` tells whether it has once named all the files there were.

    Every method raises UnavailableError when the index cannot be read or written; opening raises NoIndexError too.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._local = threading.local()
        self._lock = threading.Lock()
        self._opened: list[sqlite3.Connection] = []
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        try:
            conn = self._connection()
            conn.executescript(_SCHEMA)
            self.complete = conn.execute("PRAGMA user_version").fetchone() == (_COMPLETE,)
        except sqlite3.OperationalError as error:
            raise UnavailableError("the index of the records cannot be used") from error
        except sqlite3.DatabaseError as error:
            self.close()
            raise NoIndexError("the index of the records cannot be read") from error

    def close(self) -> None:
        """Close the connections of all threads; a thread that calls again opens one anew."""
        with self._lock:
            for conn in self._opened:
                conn.close()
            self._opened.clear()
            self._local = threading.local()

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        """The one writer of this moment; what it did is on the disk afterwards, or undone when it fails."""
        conn = self._connection()
        with _translated():
            conn.execute("BEGIN IMMEDIATE")
        try:
            yield Writer(conn)
        except BaseException:
            conn.execute("ROLLBACK")
            raise
        with _translated():
            conn.execute("COMMIT")

    def find(self, namespace: Namespace, record_id: str) -> Row | None:
        """The row of a record."""
        with _translated():
            return _find(self._connection(), namespace, record_id)

    def page(self, namespace: Namespace, limit: int, after: Position | None) -> Sequence[Row]:
        """Rows in the order of the lists."""
        accessed = 2**62 if after is None else _microseconds(after.last_access_at)
        values = (namespace.key, accessed, accessed, "" if after is None else after.id, limit)
        with _translated():
            return [Row(*row) for row in self._connection().execute(_PAGE, values)]

    def count(self, namespace: Namespace) -> int:
        """How many records a namespace has, in constant time."""
        sql = "SELECT records FROM namespaces WHERE namespace = ?"
        with _translated():
            row = self._connection().execute(sql, (namespace.key,)).fetchone()
        return int(row[0]) if row else 0

    def namespaces(self) -> Sequence[Namespace]:
        """Every namespace that has records."""
        with _translated():
            rows = self._connection().execute("SELECT name FROM namespaces ORDER BY name").fetchall()
        return [namespace_of(row[0]) for row in rows]

    def _connection(self) -> sqlite3.Connection:
        # A connection must not cross a fork.
        if getattr(self._local, "owner", None) != os.getpid():
            conn = sqlite3.connect(self._path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
                conn.execute(f"PRAGMA {pragma}")
            with self._lock:
                self._opened.append(conn)
            self._local.conn, self._local.owner = conn, os.getpid()
        found: sqlite3.Connection = self._local.conn
        return found


class Writer:
    """Changes of one transaction."""

    def __init__(self, conn: sqlite3.Connection) -> None:
        self._conn = conn

    def find(self, namespace: Namespace, record_id: str) -> Row | None:
        """The row of a record."""
        with _translated():
            return _find(self._conn, namespace, record_id)

    def name(self, namespace: Namespace, record: StoredRecord, file: str, *, new: bool) -> None:
        """Say that a record is in a file."""
        row = (namespace.key, record.id, file, record.version, _microseconds(record.last_access_at))
        with _translated():
            self._conn.execute(_UPSERT, row)
            if new:
                self._conn.execute(_COUNT, (namespace.key, name_of(namespace), 1))

    def drop(self, namespace: Namespace, record_id: str) -> None:
        """Take out a record that is there."""
        with _translated():
            self._conn.execute("DELETE FROM records WHERE namespace = ? AND id = ?", (namespace.key, record_id))
            self._conn.execute(_COUNT, (namespace.key, name_of(namespace), -1))
            self._conn.execute("DELETE FROM namespaces WHERE namespace = ? AND records = 0", (namespace.key,))

    def drop_all(self, namespace: Namespace) -> Sequence[str]:
        """Take out all records of a namespace; returns their files."""
        with _translated():
            sql = "DELETE FROM records WHERE namespace = ? RETURNING file"
            found = [str(row[0]) for row in self._conn.execute(sql, (namespace.key,)).fetchall()]
            self._conn.execute("DELETE FROM namespaces WHERE namespace = ?", (namespace.key,))
        return found

    def add_chores(self, *chores: Chore) -> None:
        """Note what is to be done with files once the transaction is committed."""
        with _translated():
            self._conn.executemany("INSERT OR REPLACE INTO chores (file, target) VALUES (?, ?)", chores)

    def chores(self) -> Sequence[Chore]:
        """What earlier writers noted; most of it is done."""
        with _translated():
            return [Chore(*row) for row in self._conn.execute("SELECT file, target FROM chores")]

    def forget_chores(self) -> None:
        """Say that all is done."""
        with _translated():
            self._conn.execute("DELETE FROM chores")

    def complete(self) -> None:
        """Say that all files are named."""
        with _translated():
            self._conn.execute(f"PRAGMA user_version = {_COMPLETE}")


def _find(conn: sqlite3.Connection, namespace: Namespace, record_id: str) -> Row | None:
    sql = "SELECT id, file, version FROM records WHERE namespace = ? AND id = ?"
    row = conn.execute(sql, (namespace.key, record_id)).fetchone()
    return Row(*row) if row else None


def _microseconds(moment: datetime) -> int:
    return (moment - _FIRST) // _MICROSECOND


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise UnavailableError("the index of the records cannot be used") from error
