"""Lines that were refused when they came in, kept on this machine until they are repaired, forgotten or too old."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.tier.erasure import ErasureScope
from isotherm.pipeline.tier.refused import concerns
from isotherm.pipeline.transcript import BadLine
from isotherm.storage.settings import Settings

_LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Kept:
    """What there is: files, their bytes, and the seconds since the oldest of them got its last line."""

    files: int = 0
    bytes: int = 0
    oldest_s: float = 0.0


def folder_of(settings: Settings) -> Path:
    """Where they are."""
    return settings.data_dir / "set-aside"


def keep(folder: Path, name: str, line: BadLine, *, agent: str | None = None, tenant: str | None = None) -> Path:
    """Add a line to the file of this name; returns the file.

    Args: line: redacted; agent, tenant: names that were given for lines without any.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = folder / f"{name}.jsonl"
    given = {key: value for key, value in (("agent", agent), ("tenant", tenant)) if value is not None}
    text = json.dumps({"line": line.number, "reason": line.reason, "raw": line.raw, **given})
    with _alone(folder), file.open("a", encoding="utf-8", errors="surrogateescape") as kept:
        kept.write(f"{text}\n")
    return file


def forget(folder: Path, scope: ErasureScope) -> int:
    """Drop the lines that are of a scope; returns how many. Raises: TransientError when a file cannot be read or written."""
    try:
        with _alone(folder):
            return sum(_without(file, scope) for file in _files(folder))
    except OSError as error:
        raise TransientError(f"lines that were set aside cannot be looked through: {error.strerror}") from error


def purge(folder: Path, age: timedelta) -> int:
    """Remove files that got no line for so long; returns how many."""
    gone = 0
    for file in _files(folder):
        try:
            if _seconds_since(file) > age.total_seconds():
                file.unlink()
                gone += 1
        except OSError:  # another process removed it, or this one may not: `doctor` tells of what stays
            continue
    return gone


def status(folder: Path) -> Kept:
    """What is kept now."""
    found = []
    for file in _files(folder):
        try:
            found.append((file.stat().st_size, _seconds_since(file)))
        except OSError:
            continue
    return Kept(len(found), sum(size for size, _ in found), max((age for _, age in found), default=0.0))


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def _seconds_since(file: Path) -> float:
    return time.time() - file.stat().st_mtime


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Whoever adds lines and whoever drops some do not meet in a file."""
    if not folder.is_dir():
        yield
        return
    with (folder / _LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _without(file: Path, scope: ErasureScope) -> int:
    """Write a file anew without the lines of a scope, as old as it was; one without lines goes."""
    with file.open(encoding="utf-8", errors="surrogateescape", newline="\n") as kept:
        lines = list(kept)
    left = [line for line in lines if not _concerns(scope, line)]
    if len(left) == len(lines):
        return 0
    if not left:
        file.unlink()
        return len(lines)
    before = file.stat()
    anew = file.with_suffix(".new")
    anew.write_text("".join(left), encoding="utf-8", errors="surrogateescape", newline="\n")
    os.utime(anew, (before.st_atime, before.st_mtime))
    anew.replace(file)
    return len(lines) - len(left)


def _concerns(scope: ErasureScope, line: str) -> bool:
    try:
        kept = json.loads(line)
    except ValueError:
        kept = {"raw": line}  # half of a line, whose writer was stopped
    return concerns(scope, kept if isinstance(kept, dict) else {"raw": line})
