from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from harness import Process, Processes, wait_until

APPS = Path(__file__).parent / "apps"


@dataclass(frozen=True)
class Faults:
    """Workers of the faulty app, and the files that steer it."""

    folder: Path
    processes: Processes

    def worker(self, name: str = "worker1", **more: object) -> Process:
        path = os.pathsep.join(filter(None, [str(APPS), os.environ.get("PYTHONPATH")]))
        values = {"PYTHONPATH": path, "FAULTS": str(self.folder), **more}
        return self.processes.worker(name, app="faulty", **values)  # type: ignore[arg-type]

    def set(self, name: str) -> None:
        (self.folder / name).touch()

    def clear(self, name: str) -> None:
        (self.folder / name).unlink()

    def inside(self) -> list[int]:
        """Processes that stand at the gate, or stood there when they were killed."""
        return sorted(int(mark.name.removeprefix("inside-")) for mark in self.folder.glob("inside-*"))

    def wait_inside(self, count: int = 1) -> list[int]:
        wait_until(lambda: len(self.inside()) >= count, what=f"{count} processes at the gate")
        return self.inside()


@pytest.fixture
def faults(processes: Processes, tmp_path: Path) -> Faults:
    folder = tmp_path / "faults"
    folder.mkdir()
    return Faults(folder, processes)
