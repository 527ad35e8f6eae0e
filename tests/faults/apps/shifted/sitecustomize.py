"""A clock that a file shifts, for processes whose PYTHONPATH leads here: what a machine's clock does when it jumps.

The file that SHIFTED_CLOCK names holds seconds; without one the clock is right. The monotonic clock goes on as it was.
"""

from __future__ import annotations

import ctypes
import gc
import os
import time
from datetime import UTC, datetime, tzinfo
from pathlib import Path

_EVERY_S = 0.05
_file = Path(os.environ.get("SHIFTED_CLOCK", "/nonexistent"))
_time = time.time


class _Shift:
    """Seconds that were read last, and when."""

    seconds, read_at = 0.0, 0.0


def _shifted() -> float:
    if time.monotonic() - _Shift.read_at > _EVERY_S:
        _Shift.read_at = time.monotonic()
        try:
            _Shift.seconds = float(_file.read_text())
        except (OSError, ValueError):
            _Shift.seconds = 0.0
    return _time() + _Shift.seconds


def _now(cls: type[datetime], tz: tzinfo | None = None) -> datetime:
    return cls.fromtimestamp(_shifted(), tz)


def _utcnow(cls: type[datetime]) -> datetime:
    return cls.fromtimestamp(_shifted(), UTC).replace(tzinfo=None)


# A subclass would not do: what the database's driver makes is of the class itself, and modules import its name.
_methods = gc.get_referents(datetime.__dict__)[0]
_methods["now"] = classmethod(_now)
_methods["utcnow"] = classmethod(_utcnow)
ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))
time.time = _shifted
