"""The app as a worker runs it, with faults that a test switches on: by words in a text, and by files in a folder."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isotherm.pipeline import text
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.storage.postgres import tier_move
from isotherm.tasks import app

__all__ = ["app"]

FOLDER = Path(os.environ["FAULTS"])
_LONGEST_S = 60.0


def _is_set(name: str) -> bool:
    return (FOLDER / name).exists()


def _first(name: str) -> bool:
    """Whether this is the first process ever to ask."""
    try:
        (FOLDER / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _same(name: str, value: str) -> bool:
    """Whether a value is the one that was first asked about, in whatever process."""
    if _first(name):
        (FOLDER / f"{name}-value").write_text(value)
    known = FOLDER / f"{name}-value"
    return known.exists() and known.read_text() == value


def _gate() -> None:
    """Stand still, visibly, until the test opens the gate for everybody or for this process."""
    mark = FOLDER / f"inside-{os.getpid()}"
    mark.touch()
    deadline = time.monotonic() + _LONGEST_S
    try:
        while not (_is_set("open") or _is_set(f"open-{os.getpid()}")) and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        mark.unlink()


def _die() -> None:
    if not _is_set("harmless"):
        os._exit(1)


def _raise_once() -> None:
    if _first("raised"):
        raise ValueError("a bug that shows once")


def _wait_for_server() -> None:
    if _is_set("busy"):
        raise TransientError("the server is busy")


def _refuse() -> None:
    raise RejectedError("a record that can never be indexed")


WORDS: dict[str, Callable[[], None]] = {
    "gateword": _gate,
    "deadlyword": _die,
    "onceword": _raise_once,
    "busyword": _wait_for_server,
    "refusedword": _refuse,
}

_terms = text.terms
_shift = tier_move.shift_together
_archive = tier_move.archive


def _faulty_terms(content: str, limit: int = text.TERM_LIMIT) -> list[int]:
    for word, fault in WORDS.items():
        if word in content:
            fault()
    return _terms(content, limit)


def _faulty_shift(*args: Any, **more: Any) -> Any:
    if _is_set("shift-gate"):
        _gate()
    if _is_set("shift-busy-once") and _first("shift-was-busy"):
        raise TransientError("the server is busy")
    if _is_set("shift-broken-for-one") and _same("shift-broken-for", repr([*args[1].values()])):
        raise ValueError("a bug that stays")
    return _shift(*args, **more)


def _faulty_archive(*args: Any, **more: Any) -> Any:
    """The flip of a batch, after its uploads."""
    if _is_set("archive-gate"):
        _gate()
    return _archive(*args, **more)


# A broker that takes every task for lost after a moment, and a result backend that keeps nothing.
if "FAULT_VISIBILITY" in os.environ:
    app.conf.broker_transport_options = {
        **app.conf.broker_transport_options,
        "visibility_timeout": float(os.environ["FAULT_VISIBILITY"]),
        "unacked_restore_interval": 0.5,
    }
if "FAULT_RESULT_EXPIRES" in os.environ:
    app.conf.result_expires = int(os.environ["FAULT_RESULT_EXPIRES"])

text.terms = _faulty_terms
tier_move.shift_together = _faulty_shift
tier_move.archive = _faulty_archive
