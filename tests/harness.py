"""What tests of several processes share: waiting, starting and killing workers, and what durable work must leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from isotherm.pipeline import text
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.postgres import operations
from isotherm.storage.postgres.operations import StepRow
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import produce_records, producers, ticks


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

    def wait_ready(self) -> None:
        """Wait until a worker takes messages."""
        wait_until(lambda: " ready." in self.output() or self.popen.poll() is not None, 40, f"{self.name} to be ready")
        assert self.popen.poll() is None, self.output()[-2000:]

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
                env={"OPENBLAS_NUM_THREADS": "1", **os.environ, **self.environment, **more},
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
        ready: bool = True,
        **more: str,
    ) -> Process:
        """A real prefork worker, ready to work unless the test waits for that itself."""
        process = self.start(
            "celery", "-A", app, "worker", "-n", f"{name}@%h", "-Q", queues, "-c", str(concurrency),
            name=name, **more,
        )  # fmt: skip
        if ready:
            process.wait_ready()
        return process

    def beat(self, name: str = "beat1", **more: str) -> Process:
        """A real beat; it is on its way when this returns."""
        schedule = self.folder / f"{name}-schedule"
        return self.start("celery", "-A", "isotherm.tasks", "beat", "-s", str(schedule), name=name, **more)

    def stop(self) -> None:
        for process in reversed(self.running):
            process.kill_all()


def tick_until(condition: Callable[[], object], timeout: float = 30.0, what: str = "the condition") -> None:
    """Wait while relay and sweeper run in this process, as beat would have a worker run them."""
    due = 0.0

    def ticked() -> object:
        nonlocal due
        if time.monotonic() >= due:
            ticks.relay()
            ticks.sweep_operations()
            due = time.monotonic() + 0.2
        return condition()

    wait_until(ticked, timeout, what)


def conversation(count: int, words: Mapping[int, str] | None = None) -> list[TranscriptLine]:
    """Messages of one session, all different. Args: words: by position, a word that one of them holds besides."""
    begun = datetime.now(UTC) - timedelta(hours=1)
    return [
        TranscriptLine(
            number=n + 1,
            agent="atlas",
            session="s1",
            tenant=None,
            role="user",
            content=f"note {n} on kelp depth{n} {(words or {}).get(n, '')}".strip(),
            time=begun + timedelta(seconds=n),
        )
        for n in range(count)
    ]


def ingest(lines: Sequence[TranscriptLine], size: int = 20) -> list[UUID]:
    """Remember messages in batches; returns their operations.

    Each batch is let out before the next, so that each has a message of its own, however fast the machine is.
    """
    operation_ids = []
    for n in range(0, len(lines), size):
        operation_ids.append(producers.remember_messages(lines[n : n + size]).operation_id)
        producers.flush()
    return operation_ids


def steps_of(operation_id: UUID) -> list[StepRow]:
    with connection() as conn:
        return operations.steps_of(conn, operation_id)


def step_of(operation_id: UUID) -> StepRow:
    """The only step of an operation."""
    [step] = steps_of(operation_id)
    return step


def all_final() -> bool:
    return not fetch_all("SELECT 1 FROM operations WHERE finished_at IS NULL LIMIT 1")


def outbox_is_empty() -> bool:
    return not fetch_all("SELECT 1 FROM outbox LIMIT 1")


def assert_whole(lines: Sequence[TranscriptLine]) -> None:
    """Every message is stored once and found by its words and no others; no work is open and no lease stays."""
    rows = fetch_all("SELECT key, content, indexed, terms FROM tier_records ORDER BY created_at")
    assert [content for _, content, _, _ in rows] == [line.content for line in lines]
    assert all(indexed for _, _, indexed, _ in rows)
    wanted = [(key, term) for key, content, _, _ in rows for term in text.terms(content)]
    assert sorted((key, term) for key, _, _, terms in rows for term in terms) == sorted(wanted)
    assert fetch_all("SELECT record_key, term FROM tier_postings ORDER BY 1, 2") == sorted(wanted)
    assert fetch_all("SELECT DISTINCT state FROM operations") == [("done",)]
    assert fetch_all("SELECT DISTINCT state, lease_until IS NULL FROM operation_steps") == [("done", True)]
    assert outbox_is_empty()


def leave_to_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers of this process publish nothing themselves; what they wrote waits in the outbox."""
    for module in (producers, produce_records):
        monkeypatch.setattr(module, "publish_after_commit", lambda _: None)
