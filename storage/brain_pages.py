"""Later pages of an expand: what was walked over is kept by its keys, and read again under the namespace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from isotherm.pipeline.brain.answers import Relation
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.brain.result_sets import Kept
from isotherm.pipeline.brain.walk import Direction
from isotherm.storage.postgres import brain_edges
from isotherm.storage.postgres.pool import Connection


def kept(object_id: UUID, relations: Sequence[Relation], depth: int) -> Kept:
    """An object of an expand as its result set keeps it."""
    edges = [[str(r.edge.key.source), str(r.edge.key.target), r.edge.key.label, r.direction.value] for r in relations]
    return Kept(object_id, extra={"depth": depth, "edges": edges})


def relations(conn: Connection, namespace_id: int, items: Sequence[Kept]) -> dict[UUID, tuple[Relation, ...]]:
    """The edges that still lead to each kept object; one that was reached over edges that are all gone is left out."""
    steps = {each.id: _steps(each.extra or {}) for each in items}
    keys = list({key for found in steps.values() for key, _ in found})
    known = brain_edges.edges(conn, namespace_id, keys) if keys else {}
    there = {
        i: tuple(Relation(known[key], direction) for key, direction in found if key in known)
        for i, found in steps.items()
    }
    return {i: found for i, found in there.items() if found or not steps[i]}


def depth(item: Kept) -> int:
    """How many hops away a kept object was, 0 for what was contained or searched for."""
    return int((item.extra or {}).get("depth", 0))


def _steps(extra: Mapping[str, Any]) -> list[tuple[EdgeKey, Direction]]:
    return [
        (EdgeKey(UUID(source), UUID(target), label), Direction(direction))
        for source, target, label, direction in extra.get("edges", ())
    ]
