"""The app as a worker runs it, with a graph that a test makes slow or takes away by files in a folder."""

from __future__ import annotations

from typing import Any

from faulty import _gate, _is_set, app

from isotherm.pipeline.errors import UnavailableError
from isotherm.storage.graph.postgres import PostgresGraph

__all__ = ["app"]

_upsert = PostgresGraph.upsert


def _faulty_upsert(*args: Any) -> Any:
    if _is_set("graph-gate"):
        _gate()
    if _is_set("graph-away"):
        raise UnavailableError("the graph is away")
    return _upsert(*args)


PostgresGraph.upsert = _faulty_upsert  # type: ignore[method-assign]
