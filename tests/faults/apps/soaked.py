"""The app as a soak's workers run it: files in a folder take the graph away, and kill whoever marks what it published."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isotherm.pipeline.errors import UnavailableError
from isotherm.storage.graph.postgres import PostgresGraph
from isotherm.storage.models import factory
from isotherm.storage.postgres import outbox
from isotherm.tasks import app

__all__ = ["app"]

_FOLDER = Path(os.environ["SOAK_FOLDER"])
_remove = outbox.remove


def _away(write: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if (_FOLDER / "graph-away").exists():
            raise UnavailableError("the graph is away")
        return write(*args)

    return call


def _taken(name: str) -> bool:
    """Whether this is the process that takes a file away."""
    try:
        (_FOLDER / name).unlink()
    except FileNotFoundError:
        return False
    return True


def _dying_remove(conn: Any, ids: list[int]) -> None:
    if ids and _taken("kill-before-mark"):
        os.kill(os.getpid(), signal.SIGKILL)
    _remove(conn, ids)


PostgresGraph.upsert = _away(PostgresGraph.upsert)  # type: ignore[method-assign]
PostgresGraph.take = _away(PostgresGraph.take)  # type: ignore[method-assign]
outbox.remove = _dying_remove
# A server that never answers is given up soon, or a soak would wait for nothing else.
factory._WORK_TIMEOUT_S = 1.5
