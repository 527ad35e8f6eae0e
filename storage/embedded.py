"""Private PostgreSQL and Redis for one machine: `Embedded(folder).start()` and everything has an address."""

from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from isotherm.pipeline.errors import RejectedError
from isotherm.storage import embedded_binaries as binaries
from isotherm.storage.embedded_paths import SYSTEM_DIR, Place, create, locate, private_dir
from isotherm.storage.embedded_postgres import DATABASE, USER, PostgresServer
from isotherm.storage.embedded_process import ServerStatus, disk_errors, locked
from isotherm.storage.embedded_redis import RedisServer

__all__ = ["Embedded", "Endpoints", "ServerStatus"]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where the servers are: a libpq URI and a redis-py URL, both over Unix sockets."""

    postgres_dsn: str
    redis_url: str

    @property
    def broker_url(self) -> str:
        """The Redis URL as Celery spells it, for the broker and the result backend."""
        path, _, database = self.redis_url.removeprefix("unix://").partition("?db=")
        return f"redis+socket://{path}?virtual_host={database}"


@dataclass(frozen=True, slots=True)
class Embedded:
    """The private servers of one data folder; any number of processes may hold one for the same folder.

    Args: data_dir: holds everything, or names it when root's servers cannot live there; postgres_bin: a folder of
        PostgreSQL's programs, by default the wheel's; redis_bin: a redis-server or valkey-server, likewise;
        system_dir: where root's relocated data and copied programs go.
    Attributes: notes: lines worth showing to a person, such as where the data went; filled by `start`.
    """

    data_dir: Path
    postgres_bin: Path | None = None
    redis_bin: Path | None = None
    system_dir: Path = field(default=SYSTEM_DIR, kw_only=True)
    notes: list[str] = field(default_factory=list, init=False, compare=False)

    def endpoints(self) -> Endpoints:
        """Tell where the servers are or would be; starts and creates nothing.

        Raises: RejectedError when the data folder cannot be used; UnavailableError when root has no user for servers.
        """
        return _endpoints(self._place())

    def start(self) -> Endpoints:
        """Start what does not run, and return when both servers answer. Safe to call from many processes at once.

        Raises: UnavailableError when programs are missing or do not fit, the disk is full, or a server does not
            start (with the end of its log); RejectedError when the data folder belongs to somebody else.
        """
        place = self._place()
        self._note(place)
        postgres, cache = PostgresServer(place), RedisServer(place)
        with disk_errors(place.data):
            create(place)
            if postgres.ready() and cache.ready():
                return _endpoints(place)
            with locked(place.lock):
                private_dir(place.run, place.account)  # whoever stopped last may have removed it
                if not postgres.ready():
                    postgres.start(self._postgres_bin(place))
                if not cache.ready():
                    cache.start(binaries.redis_server(self.redis_bin, place.account, self.system_dir))
        return _endpoints(place)

    def stop(self) -> None:
        """Stop the servers of this data folder, and no others; nothing happens when none runs.

        Raises: UnavailableError when one does not end in time.
        """
        place = self._place()
        if not place.asked.is_dir():
            return
        with disk_errors(place.data), locked(place.lock):
            RedisServer(place).stop()
            if (postgres := PostgresServer(place)).running():
                postgres.stop(self._postgres_bin(place))
            if not place.run.is_relative_to(place.data):
                with suppress(OSError):
                    place.run.rmdir()

    def status(self) -> list[ServerStatus]:
        """Ask both servers what they are; PostgreSQL first."""
        place = self._place()
        return [PostgresServer(place).status(), RedisServer(place).status()]

    def _place(self) -> Place:
        return locate(self.data_dir, self.system_dir)

    def _postgres_bin(self, place: Place) -> Path:
        folder = binaries.postgres_bin(self.postgres_bin, place.account, self.system_dir)
        if '"' in str(folder) or "$" in str(folder):
            raise RejectedError(f"{folder} holds a quote or dollar, which pg_ctl cannot pass on; install elsewhere")
        return folder

    def _note(self, place: Place) -> None:
        if place.account and place.relocated:
            note = f"root's servers run as user {place.account.name}, who cannot use {place.asked}: data is in {place.data}"
            if note not in self.notes:
                self.notes.append(note)


def _endpoints(place: Place) -> Endpoints:
    host = quote(str(place.run), safe="")
    return Endpoints(
        postgres_dsn=f"postgresql://{USER}@{host}/{DATABASE}",
        redis_url=f"unix://{RedisServer(place).socket}?db=0",
    )
