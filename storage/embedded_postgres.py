"""The private PostgreSQL: made once, started and stopped by its data folder, believed only when it answers."""

import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, LiteralString

import psycopg

from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage.durable import sync_folder
from isotherm.storage.embedded_binaries import major_of
from isotherm.storage.embedded_paths import POSTGRES_SOCKET, Place
from isotherm.storage.embedded_process import (
    Answer,
    ServerStatus,
    failure,
    listening,
    processes_in,
    read_pid,
    rotate,
    run,
    size,
    tail,
    wait_for,
)

DATABASE = "isotherm"
USER = "isotherm"
_PORT = 5432  # names the socket; nothing listens on the network
_START_SECONDS = 120  # recovery after a crash replays the log first
_START = ("start", "-w", "-s", "-t", str(_START_SECONDS))
_STOP = ("stop", "-w", "-s", "-m", "fast", "-t", "60")
_RETRY_SECONDS = 10.0
# A crash leaves locks and shared memory behind until its last backend has noticed.
_PASSING = re.compile(r"lock file|shared memory block|Address already in use", re.IGNORECASE)
_BUILTIN_LOCALE_MAJOR = 17
# These hold whatever the data folder's own configuration says; memory and the like are left to that.
_SETTINGS = {
    "listen_addresses": "",
    "port": str(_PORT),
    "unix_socket_permissions": "0700",
    "fsync": "on",
    "full_page_writes": "on",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # A statement or a row in the log would outlive the call that forgets it.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
}


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """One private PostgreSQL. `start` and `stop` expect the caller to hold the place's lock."""

    place: Place

    @property
    def socket(self) -> Path:
        """The socket clients reach it by; libpq takes its folder as the host."""
        return self.place.run / POSTGRES_SOCKET

    @property
    def log(self) -> Path:
        """What the server writes, from the first start on."""
        return self.place.logs / "postgresql.log"

    def ready(self) -> bool:
        """Tell whether our server runs and has the database."""
        return self._ask(DATABASE) is Answer.OURS

    def running(self) -> bool:
        """Tell whether a server of our data folder is alive, even one that cannot be asked."""
        return self._pid() is not None or self._ask() is Answer.OURS

    def status(self) -> ServerStatus:
        """Ask the server; it counts as running only when it says it serves our data folder."""
        version = self._query("SHOW server_version") if self._ask() is Answer.OURS else None
        pid = read_pid(self.place.postgres / "postmaster.pid") if version else None
        return ServerStatus("postgresql", version is not None, pid, version, self.place.postgres, self.socket)

    def start(self, programs: Path) -> None:
        """Make the data folder if it is the first time, start the server, create the database.

        Args: programs: the folder of `postgres`, `initdb` and `pg_ctl`.
        Raises: UnavailableError with the log's end when it does not start; RejectedError when the data folder or
            the socket is somebody else's.
        """
        self._initialize(programs)
        answer = wait_for(self._settled, _START_SECONDS)
        if answer is Answer.NOBODY and self._pid() is not None:
            self.stop(programs)  # alive and out of reach: its socket file was removed
        if answer is not Answer.OURS:
            self._start(programs)
        if self._query("SELECT 1 FROM pg_database WHERE datname = 'isotherm'") is None:
            self._query("CREATE DATABASE isotherm")

    def stop(self, programs: Path) -> None:
        """Shut down the server of this data folder, which runs; open transactions are rolled back.

        Raises: UnavailableError when it does not end in time.
        """
        done = run([programs / "pg_ctl", *_STOP, "-D", self.place.postgres], self.place.account)
        if done.returncode and self._pid() is not None:
            raise failure("PostgreSQL does not stop", self.log, done.stdout)

    def _start(self, programs: Path) -> None:
        rotate(self.log)

        def attempt() -> bool | None:
            self._drop_stale_locks()
            since = size(self.log)
            output = self._launch(programs)
            answer = self._ask()
            if answer is Answer.FOREIGN:
                raise RejectedError(f"another PostgreSQL answers at {self.socket}; stop it first")
            if answer is Answer.OURS:
                return True
            if answer is Answer.NOBODY and not _PASSING.search(tail(self.log, since=since)):
                raise failure("PostgreSQL does not start", self.log, output, since=since)
            return None

        if wait_for(attempt, _RETRY_SECONDS, every=0.25) is None:
            raise failure("PostgreSQL does not start", self.log)

    def _launch(self, programs: Path) -> str:
        settings = {**_SETTINGS, "unix_socket_directories": str(self.place.run)}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        where: list[str | Path] = ["-D", self.place.postgres, "-l", self.log]
        return run([programs / "pg_ctl", *_START, *where, "-o", options], self.place.account).stdout

    def _initialize(self, programs: Path) -> None:
        for leftover in self.place.data.glob("postgres.new-*"):  # of starters that were killed
            shutil.rmtree(leftover, ignore_errors=True)
        major = major_of(programs, self.place.account)
        version = self.place.postgres / "PG_VERSION"
        if not version.exists():
            self._initdb(programs, major)
            return
        found = version.read_text(encoding="ascii").strip()
        if found != str(major):
            raise UnavailableError(
                f"{self.place.postgres} was made by PostgreSQL {found}, and {programs} holds PostgreSQL {major}; "
                f"install or name (ISOTHERM_PG_BIN) programs of PostgreSQL {found}, or move the data by pg_upgrade"
            )

    def _initdb(self, programs: Path, major: int) -> None:
        """Make the data folder beside its place and rename it, so that a killed initdb leaves nothing half done."""
        pgdata, account = self.place.postgres, self.place.account
        if os.path.lexists(pgdata):
            raise RejectedError(f"{pgdata} exists and holds no PostgreSQL data; choose another data folder")
        fresh = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=pgdata.parent))
        try:
            if account:
                os.chown(fresh, account.uid, account.gid)
            done = run([programs / "initdb", "-D", fresh, *_initdb_options(major)], account)
            if done.returncode:
                raise failure("PostgreSQL cannot make its data folder", self.log, done.stdout, since=size(self.log))
            fresh.rename(pgdata)
            sync_folder(pgdata.parent)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)

    def _pid(self) -> int | None:
        """Return the server's pid when a process of this data folder has it; a stranger may have it after a crash."""
        pid = read_pid(self.place.postgres / "postmaster.pid")
        return pid if pid in (processes_in(self.place.postgres) or ()) else None

    def _drop_stale_locks(self) -> None:
        """Remove lock files of a dead server: their pid may be a stranger's now, and would block every start."""
        if listening(self.socket) or processes_in(self.place.postgres) != frozenset():
            return
        locks = [self.place.postgres / "postmaster.pid", self.socket.with_name(f"{POSTGRES_SOCKET}.lock")]
        if any(os.path.lexists(lock) for lock in locks):
            # As the servers' user: it owns these folders, and could have put links there.
            run(["/bin/rm", "-f", *locks], self.place.account)

    def _settled(self) -> Answer | None:
        """Ask until the server is not between two states, as during the recovery another process started."""
        answer = self._ask()
        return None if answer is Answer.STARTING else answer

    def _ask(self, database: str = "postgres") -> Answer:
        if not listening(self.socket):
            return Answer.NOBODY
        try:
            folder = self._query("SHOW data_directory", database)
        except UnavailableError:
            return Answer.STARTING
        return Answer.OURS if os.path.realpath(str(folder)) == str(self.place.postgres) else Answer.FOREIGN

    def _query(self, statement: LiteralString, database: str = "postgres") -> Any:  # noqa: ANN401 - as the server types it
        """Run one statement on a connection of its own; the first value of its first row, None without rows."""
        try:
            with psycopg.connect(
                host=str(self.place.run), port=_PORT, user=USER, dbname=database, connect_timeout=5, autocommit=True
            ) as connection:
                cursor = connection.execute(statement)
                row = cursor.fetchone() if cursor.description else None
        except psycopg.Error as error:
            raise UnavailableError(f"PostgreSQL at {self.socket} cannot be asked: {error}") from error
        return row[0] if row else None


def _initdb_options(major: int) -> list[str]:
    locale = ["--locale=C"]
    if major >= _BUILTIN_LOCALE_MAJOR:
        # Unicode's own rules, which do not change with the system's libraries as those of other locales do.
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    access = [f"--username={USER}", "--auth-local=trust", "--auth-host=reject"]
    return [*locale, *access, "--encoding=UTF8", "--data-checksums", "--no-instructions"]
