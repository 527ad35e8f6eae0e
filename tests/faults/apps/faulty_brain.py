"""The app as a worker runs it, with a graph that a test makes slow or takes away by files in a folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from faulty import _gate, _is_set, app

from isotherm.pipeline.errors import UnavailableError
from isotherm.storage.graph.postgres import PostgresGraph

__all__ = ["app"]


def _faulty(write: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        if _is_set("graph-gate"):
            _gate()
        if _is_set("graph-away"):
            raise UnavailableError("the graph is away")
        return write(*args)

    return call


PostgresGraph.upsert = _faulty(PostgresGraph.upsert)  # type: ignore[method-assign]
PostgresGraph.take = _faulty(PostgresGraph.take)  # type: ignore[method-assign]
