"""Workers, beat and flower of one machine as ordinary processes: started detached, found again, stopped by name.

Each process holds the lock of a file while it lives, so a pid that was given to a stranger is never mistaken for it.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from isotherm.pipeline import stages
from isotherm.pipeline.errors import UnavailableError
from isotherm.storage.embedded_process import rotate, tail, try_lock, wait_for
from isotherm.storage.settings import Settings
from isotherm.tasks import broker

_START_S = 40.0
_STOP_S = 30.0
# SIGTERM lets a worker wait for its tasks without a limit; remapped, it waits for `soft_shutdown` and gives them back.
_SOFT = {"REMAP_SIGTERM": "SIGQUIT"}
# A worker has a process for each processor. Threads of numpy's library besides keep one busy for 80 ms after every product.
_SINGLE = {"OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """A process of this data folder: its name, whether it lives, its pid and its log."""

    name: str
    running: bool
    pid: int | None
    log: Path


@dataclass(frozen=True, slots=True)
class Flower:
    """Where flower listens, on the loopback address, and how to get in."""

    port: int
    user: str
    password: str

    @property
    def url(self) -> str:
        """The page for people; the password is not in it."""
        return f"http://127.0.0.1:{self.port}"


class Processes:
    """The processes of one data folder.

    Args: settings: passed on to every process through the environment this one has.
    """

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.data_dir / "processes"
        self._logs = settings.data_dir / "process-logs"
        self._graph_alone = settings.graph == "helix" and settings.helix_url is None

    def start_workers(self, count: int, concurrency: int) -> list[str]:
        """Start workers of all queues that do not run yet; returns the names of the new ones.

        A graph engine that one process must have to itself gets a worker of its own.

        Args: count: how many are to run; concurrency: processes of each.
        Raises: UnavailableError when one does not come up, with the end of its log.
        """
        queues = [queue.value for queue in stages.Queue if not (self._graph_alone and queue is stages.Queue.GRAPH)]
        wanted = {f"worker-{n}": ["-Q", ",".join(queues), "-c", str(concurrency)] for n in range(1, count + 1)}
        if self._graph_alone:
            wanted["worker-graph"] = ["-Q", stages.Queue.GRAPH.value, "-P", "solo"]
        host = socket.gethostname()
        started = [
            name for name, options in wanted.items() if self._start(name, ["worker", "-n", f"{name}@{host}", *options])
        ]
        nodes = {f"{name}@{host}" for name in started}
        self._wait(started, lambda: nodes <= {w for ws in broker.consumers(0.5).values() for w in ws})
        return started

    def start_beat(self) -> bool:
        """Start beat unless it runs; False when it did."""
        schedule = self._folder / "beat-schedule"
        return self._start("beat", ["beat", "-s", str(schedule)])

    def start_flower(self) -> Flower:
        """Start flower unless it runs, on a free loopback port with a password of its own.

        Raises: UnavailableError when flower is not installed or does not come up.
        """
        noted = self._folder / "flower.json"
        if self._alive("flower") and noted.exists():
            return Flower(**json.loads(noted.read_text()))
        flower = Flower(_free_port(), "isotherm", secrets.token_urlsafe(16))
        self._write(noted, json.dumps({"port": flower.port, "user": flower.user, "password": flower.password}))
        # By the environment: a command line can be read by every user of the machine.
        environment = {
            "FLOWER_BASIC_AUTH": f"{flower.user}:{flower.password}",
            "FLOWER_ADDRESS": "127.0.0.1",
            "FLOWER_PORT": str(flower.port),
        }
        self._start("flower", ["flower"], environment)
        self._wait(["flower"], lambda: _listens(flower.port))
        return flower

    def stop(self) -> list[str]:
        """Stop every process of this folder, flower and beat first, workers last and in good order; returns their names.

        Raises: UnavailableError when one does not end.
        """
        names = [status.name for status in self.status() if status.running]
        for name in sorted(names, key=lambda n: (n.startswith("worker"), n)):
            self._signal(name, signal.SIGTERM)
        for name in names:
            if not wait_for(lambda: True if not self._alive(name) else None, _STOP_S):  # noqa: B023 - asked at once
                self._signal(name, signal.SIGKILL)
                if not wait_for(lambda: True if not self._alive(name) else None, _STOP_S):  # noqa: B023
                    raise UnavailableError(f"{name} does not end; log: {self._log(name)}")
        return names

    def status(self) -> list[ProcessStatus]:
        """Every process that was ever started here, by name."""
        names = sorted(file.stem for file in self._folder.glob("*.pid"))
        return [
            ProcessStatus(name, alive := self._alive(name), self._pid(name) if alive else None, self._log(name))
            for name in names
        ]

    def _start(self, name: str, arguments: list[str], environment: dict[str, str] | None = None) -> bool:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = try_lock(self._folder / f"{name}.lock")
        if lock is None:
            return False
        try:
            log = self._log(name)
            rotate(log)
            with log.open("ab") as out:
                started = subprocess.Popen(  # noqa: S603 - our own program and arguments
                    [sys.executable, "-m", "celery", "-A", "isotherm.tasks", *arguments],
                    env={**_SINGLE, **os.environ, **_SOFT, **(environment or {})},
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    cwd=self._folder,
                    pass_fds=[lock],
                )
            self._write(self._folder / f"{name}.pid", str(started.pid))
        finally:
            os.close(lock)
        return True

    def _wait(self, names: list[str], ready: Callable[[], bool]) -> None:
        def settled() -> bool | None:
            if dead := [name for name in names if not self._alive(name)]:
                raise UnavailableError(
                    f"{dead[0]} ended at once; log: {self._log(dead[0])}\n{tail(self._log(dead[0]))}"
                )
            with suppress(UnavailableError):
                return True if ready() else None
            return None

        if names and not wait_for(settled, _START_S, every=0.2):
            log = self._log(names[0])
            raise UnavailableError(f"{', '.join(names)} did not come up in {_START_S:.0f} s; log: {log}\n{tail(log)}")

    def _alive(self, name: str) -> bool:
        file = self._folder / f"{name}.lock"
        if not file.exists():
            return False
        lock = try_lock(file)
        if lock is None:
            return True
        os.close(lock)
        return False

    def _pid(self, name: str) -> int | None:
        with suppress(OSError, ValueError):
            return int((self._folder / f"{name}.pid").read_text())
        return None

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self._pid(name)
        if pid is None or not self._alive(name):
            return
        with suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(pid, number)  # its children hold the lock too
            else:
                os.kill(pid, number)

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    @staticmethod
    def _write(file: Path, text: str) -> None:
        temporary = file.with_suffix(".new")
        temporary.touch(mode=0o600)
        temporary.write_text(text)
        temporary.replace(file)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
