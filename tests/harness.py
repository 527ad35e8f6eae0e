"""What tests of several processes share: waiting, and starting and killing workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest


def wait_until(condition: Callable[[], object], timeout: float = 30.0, what: str = "the condition") -> None:
    """Wait for something another process does; fails the test when it does not come about."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout:.0f} s for {what}")
        time.sleep(0.02)


@dataclass
class Process:
    """A worker, beat or other process of a test, in a group of its own."""

    popen: subprocess.Popen[bytes]
    log: Path
    name: str

    @property
    def pid(self) -> int:
        return self.popen.pid

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def children(self) -> list[int]:
        found = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        if found.exists():
            return [int(pid) for pid in found.read_text().split()]
        listed = subprocess.run(["pgrep", "-P", str(self.pid)], capture_output=True, text=True, check=False)
        return [int(pid) for pid in listed.stdout.split()]

    def kill_all(self) -> None:
        """SIGKILL to the process and all its children at once."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.popen.wait(timeout=10)

    def terminate(self, timeout: float = 20.0) -> None:
        self.popen.terminate()
        self.popen.wait(timeout=timeout)


@dataclass
class Processes:
    """Starts processes for a test and ends them with it."""

    environment: dict[str, str]
    folder: Path
    running: list[Process] = field(default_factory=list)

    def start(self, *command: str, name: str, **more: str) -> Process:
        log = self.folder / f"{name}.log"
        with log.open("ab") as out:
            popen = subprocess.Popen(
                [sys.executable, "-m", *command],
                env={**os.environ, **self.environment, **more},
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                cwd=self.folder,
            )
        process = Process(popen, log, name)
        self.running.append(process)
        return process

    def worker(
        self,
        name: str = "worker1",
        *,
        queues: str = "db,llm,graph,maintenance",
        concurrency: int = 2,
        app: str = "isotherm.tasks",
        **more: str,
    ) -> Process:
        """A real prefork worker, ready to work."""
        process = self.start(
            "celery", "-A", app, "worker", "-n", f"{name}@%h", "-Q", queues, "-c", str(concurrency),
            name=name, **more,
        )  # fmt: skip
        wait_until(lambda: " ready." in process.output() or process.popen.poll() is not None, 40, f"{name} to be ready")
        assert process.popen.poll() is None, process.output()[-2000:]
        return process

    def beat(self, name: str = "beat1", **more: str) -> Process:
        schedule = self.folder / f"{name}-schedule"
        process = self.start("celery", "-A", "isotherm.tasks", "beat", "-s", str(schedule), name=name, **more)
        wait_until(lambda: "beat: Starting" in process.output(), 40, f"{name} to start")
        return process

    def stop(self) -> None:
        for process in reversed(self.running):
            process.kill_all()
