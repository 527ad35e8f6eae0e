"""Whether a graph holds what its truth says: compared by one number for each bucket, then row by row where they differ."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from isotherm.pipeline.brain.links import EdgeKey

BUCKETS: Final = 256


@dataclass(frozen=True, slots=True)
class Held:
    """Which revision of something is there, or is known to be gone."""

    revision: int
    gone: bool


@dataclass(frozen=True, slots=True)
class Holding:
    """A part of what a graph, or its truth, has of a namespace."""

    nodes: Mapping[UUID, Held] = field(default_factory=dict)
    edges: Mapping[EdgeKey, Held] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Digest:
    """One number for each bucket that is not empty."""

    nodes: Mapping[int, int] = field(default_factory=dict)
    edges: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Repair:
    """What must be done to a graph.

    Args: nodes, edges: to write again from the truth; odd_nodes, odd_edges: to discard first, since the graph has them
        newer than the truth, or alone.
    """

    nodes: tuple[UUID, ...] = ()
    edges: tuple[EdgeKey, ...] = ()
    odd_nodes: tuple[UUID, ...] = ()
    odd_edges: tuple[EdgeKey, ...] = ()


def bucket_of(name: UUID) -> int:
    """The bucket of an object, and of the edges that leave it. Ids may ascend with time, so their hash decides."""
    return _md5(str(name))[0]


def digest(holding: Holding) -> Digest:
    """Sum up each bucket, as `isotherm.storage.postgres.brain_drift` does in SQL."""
    nodes = ((bucket_of(key), f"{key}:{_shown(held)}") for key, held in holding.nodes.items())
    edges = (
        (bucket_of(key.source), f"{key.source}:{key.target}:{key.label}:{_shown(held)}")
        for key, held in holding.edges.items()
    )
    return Digest(_sums(nodes), _sums(edges))


def differing(graph: Digest, truth: Digest) -> list[int]:
    """Buckets in which they differ, ascending."""
    return [
        bucket
        for bucket in range(BUCKETS)
        if graph.nodes.get(bucket) != truth.nodes.get(bucket) or graph.edges.get(bucket) != truth.edges.get(bucket)
    ]


def plan_repair(graph: Holding, truth: Holding) -> Repair:
    """What the graph lacks, has late or wrong, and what it has that nobody wrote.

    Args: graph: read before the truth, so that what is newer in the truth was only written meanwhile.
    """
    wrong_nodes = [key for key, held in graph.nodes.items() if _odd(held, truth.nodes.get(key))]
    wrong_edges = [key for key, held in graph.edges.items() if _odd(held, truth.edges.get(key))]
    return Repair(
        nodes=tuple(key for key, held in truth.nodes.items() if graph.nodes.get(key) != held),
        edges=tuple(key for key, held in truth.edges.items() if graph.edges.get(key) != held),
        odd_nodes=tuple(wrong_nodes),
        odd_edges=tuple(wrong_edges),
    )


def _odd(held: Held, true: Held | None) -> bool:
    return true is None or held.revision > true.revision or (held.revision == true.revision and held != true)


def _sums(rows: Iterable[tuple[int, str]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for bucket, said in rows:
        found[bucket] = found.get(bucket, 0) + int.from_bytes(_md5(said)[:7])
    return found


def _shown(held: Held) -> str:
    return f"{held.revision}:{'gone' if held.gone else 'here'}"


def _md5(text: str) -> bytes:
    # What every store can compute; nobody is kept out by it.
    return hashlib.md5(text.encode(), usedforsecurity=False).digest()
