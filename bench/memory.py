"""How much memory this process takes while it does something."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


class Grown:
    """The most that the resident set grew in any of several stretches of work, each against its own beginning, in bytes."""

    def __init__(self) -> None:
        self.most = 0.0
        self._before = 0.0

    def __enter__(self) -> None:
        gc.collect()
        self._before = _resident()
        _forget_peak()

    def __exit__(self, *_: object) -> None:
        self.most = max(self.most, _peak() - self._before)


def _resident() -> float:
    return _field("VmRSS")


def _peak() -> float:
    return _field("VmHWM")


def _forget_peak() -> None:
    """Have the system's peak begin anew; where it cannot, the peak of the whole life stands for it, which is never less."""
    if _RESET.exists():
        _RESET.write_text("5", encoding="ascii")


def _field(name: str) -> float:
    if _STATUS.exists():
        found = next(line for line in _STATUS.read_text(encoding="utf-8").splitlines() if line.startswith(f"{name}:"))
        return float(found.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
