"""The private Redis: an append-only file, one server per data folder, believed only when it answers.

Redis itself lets a second server write the same file. Here each server inherits a lock and holds it until it is dead.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage.embedded_paths import Place
from isotherm.storage.embedded_process import (
    Answer,
    ServerStatus,
    failure,
    listening,
    read_pid,
    rotate,
    run,
    size,
    spawn,
    try_lock,
    wait_for,
)

_START_SECONDS = 120.0  # a large append-only file loads first
_STOP_SECONDS = 60.0
_GRACE_SECONDS = 2.0  # a killed server lets go of its lock at once
_END_SECONDS = 10.0
_SETTINGS = {
    "port": "0",
    "unixsocketperm": "700",
    "appendonly": "yes",
    "appendfsync": "everysec",
    "save": "",  # the append-only file is the one copy
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
}


@dataclass(frozen=True, slots=True)
class RedisServer:
    """One private Redis. `start` and `stop` expect the caller to hold the place's lock."""

    place: Place

    @property
    def socket(self) -> Path:
        """The socket clients reach it by."""
        return self.place.run / "redis.sock"

    @property
    def log(self) -> Path:
        """What the server writes, from the first start on."""
        return self.place.logs / "redis.log"

    def ready(self) -> bool:
        """Tell whether our server runs and has loaded its data."""
        return self._ask() is Answer.OURS

    def status(self) -> ServerStatus:
        """Ask the server; it counts as running only when it says it serves our data folder."""
        info = self._info() if self._ask() is Answer.OURS else {}
        version = info.get("valkey_version") or info.get("redis_version")
        pid = int(info["process_id"]) if "process_id" in info else None
        return ServerStatus("redis", bool(info), pid, version, self.place.redis, self.socket)

    def start(self, program: Path) -> None:
        """Start the server unless it runs, and wait until it has loaded its data.

        Args: program: path of a redis-server or valkey-server.
        Raises: UnavailableError with the log's end when it does not start; RejectedError when another server answers.
        """
        answer = self._ask()
        if answer is Answer.FOREIGN:
            raise RejectedError(f"another Redis answers at {self.socket}; stop it first")
        if answer is Answer.STARTING:
            self._wait_until_loaded(since=size(self.log))
        elif answer is Answer.NOBODY:
            self._start(program)

    def stop(self) -> None:
        """Shut down the server of this data folder, if one runs; its file is written to the disk first.

        Raises: UnavailableError when it does not end in time.
        """
        if not self.place.redis.is_dir() or not self._alive():
            return
        if not self._shutdown():
            self._terminate()
        if wait_for(lambda: None if self._alive() else True, _STOP_SECONDS) is None:
            raise failure("Redis does not stop", self.log)

    def _start(self, program: Path) -> None:
        held = wait_for(self._life, _GRACE_SECONDS)
        if held is None:  # alive and out of reach: its socket file was removed
            self._terminate()
            held = wait_for(self._life, _END_SECONDS)
        if held is None:
            raise failure("an earlier Redis of this data folder does not end", self.log)
        try:
            # As the servers' user: it owns these folders, and could have put links there.
            run(["/bin/rm", "-f", self._pid_file, self.socket], self.place.account)
            rotate(self.log)
            since = size(self.log)
            spawn(self._command(program), self.place.account, log=self.log, pass_fds=[held])
        finally:
            os.close(held)
        self._wait_until_loaded(since=since)

    def _command(self, program: Path) -> list[str | Path]:
        settings = {
            **_SETTINGS,
            "dir": str(self.place.redis),
            "unixsocket": str(self.socket),
            "pidfile": str(self._pid_file),
        }
        return [program, *(part for name, value in settings.items() for part in (f"--{name}", value))]

    def _wait_until_loaded(self, *, since: int) -> None:
        def loaded() -> bool | None:
            if self._ask() is Answer.OURS:
                return True
            return None if self._alive() else False

        if not wait_for(loaded, _START_SECONDS, every=0.02):
            raise failure("Redis does not start", self.log, since=since)

    @property
    def _pid_file(self) -> Path:
        return self.place.redis / "redis.pid"

    def _life(self) -> int | None:
        """Take the lock that a living server holds; None while one lives. The caller holds the place's lock."""
        return try_lock(self.place.data / "redis.lock")

    def _alive(self) -> bool:
        held = self._life()
        if held is not None:
            os.close(held)
        return held is None

    def _shutdown(self) -> bool:
        """Ask our server through its socket to end; False when it cannot be asked."""
        if self._ask() not in (Answer.OURS, Answer.STARTING) or self._folder() != str(self.place.redis):
            return False
        try:
            with self._client() as client:
                client.shutdown()
        except redis.RedisError:
            return False
        return True

    def _terminate(self) -> None:
        """Signal the living server. The pid file is its own: it was removed before this server was started."""
        pid = read_pid(self._pid_file)
        if pid is not None and pid > 1 and self._alive():
            # As the servers' user, so that a forged pid cannot make root signal a stranger.
            run(["/bin/sh", "-c", 'kill -TERM "$1"', "sh", str(pid)], self.place.account)

    def _client(self) -> redis.Redis:
        return redis.Redis(
            unix_socket_path=str(self.socket),
            socket_timeout=5.0,
            socket_connect_timeout=5.0,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
        )

    def _ask(self) -> Answer:
        if not listening(self.socket):
            return Answer.NOBODY
        try:
            if self._folder() != str(self.place.redis):
                return Answer.FOREIGN
            with self._client() as client:
                client.ping()
        except redis.RedisError:  # loading, stuck, or ending
            return Answer.STARTING
        return Answer.OURS

    def _folder(self) -> str | None:
        """Return the data folder the server at our socket names, None when it names none."""
        with self._client() as client:
            try:
                folder = client.config_get("dir").get("dir")
            except redis.ResponseError:
                return None
        return os.path.realpath(folder) if folder else None

    def _info(self) -> dict[str, str]:
        try:
            with self._client() as client:
                return {name: str(value) for name, value in client.info("server").items()}
        except redis.RedisError as error:
            raise UnavailableError(f"Redis at {self.socket} cannot be asked: {error}") from error
