"""The graph in this process's memory: for tests, and for hosts that run in one process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from isotherm.pipeline.brain.graph_port import (
    Counts,
    Direction,
    EdgeTombstone,
    GraphEdge,
    GraphNode,
    Neighbor,
    Tombstone,
)
from isotherm.pipeline.brain.links import EdgeKey, fold_label

_ORDER = {Direction.OUT: 0, Direction.IN: 1}


@dataclass(slots=True)
class _Graph:
    """One namespace: what is there or gone, by identity, and the edges at each object."""

    nodes: dict[UUID, GraphNode | Tombstone] = field(default_factory=dict)
    edges: dict[EdgeKey, GraphEdge | EdgeTombstone] = field(default_factory=dict)
    at: dict[UUID, set[EdgeKey]] = field(default_factory=dict)


class MemoryGraph:
    """A `GraphPort` without a server. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._graphs: dict[UUID, _Graph] = {}

    def upsert(self, namespace: UUID, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> Counts:
        """Write nodes and edges that are newer than what is there."""
        return self._write(namespace, nodes, edges)

    def remove(self, namespace: UUID, nodes: Sequence[Tombstone], edges: Sequence[EdgeTombstone] = ()) -> Counts:
        """Take out nodes and edges, unless something newer is there."""
        return self._write(namespace, nodes, edges)

    def neighbors(
        self,
        namespace: UUID,
        ids: Sequence[UUID],
        labels: Sequence[str] | None = None,
        direction: Direction = Direction.BOTH,
        limit: int = 50,
    ) -> list[Neighbor]:
        """One step from each of the objects."""
        wanted = None if labels is None else list(dict.fromkeys(map(fold_label, labels)))
        with self._lock:
            graph = self._graphs.get(namespace, _Graph())
            found: list[Neighbor] = []
            for seed in dict.fromkeys(ids):
                steps = [s for s in _steps(graph, seed) if direction in {Direction.BOTH, s.direction}]
                found += _ordered(steps, wanted)[: max(limit, 0)]
        return found

    def revisions(self, namespace: UUID) -> dict[UUID, int]:
        """Revision by id of every node that is not gone."""
        with self._lock:
            nodes = self._graphs.get(namespace, _Graph()).nodes.values()
            return {node.id: node.revision for node in nodes if isinstance(node, GraphNode)}

    def clear(self, namespace: UUID) -> None:
        """Forget a namespace."""
        with self._lock:
            self._graphs.pop(namespace, None)

    def _write(
        self,
        namespace: UUID,
        nodes: Iterable[GraphNode | Tombstone],
        edges: Iterable[GraphEdge | EdgeTombstone],
    ) -> Counts:
        changed_nodes: set[UUID] = set()
        changed_edges: set[EdgeKey] = set()
        with self._lock:
            graph = self._graphs.setdefault(namespace, _Graph())
            for node in nodes:
                known = graph.nodes.get(node.id)
                if known is None or known.revision < node.revision:
                    graph.nodes[node.id] = node
                    changed_nodes.add(node.id)
            for edge in edges:
                there = graph.edges.get(edge.key)
                if there is None or there.revision < edge.revision:
                    graph.edges[edge.key] = edge
                    graph.at.setdefault(edge.key.source, set()).add(edge.key)
                    graph.at.setdefault(edge.key.target, set()).add(edge.key)
                    changed_edges.add(edge.key)
        return Counts(len(changed_nodes), len(changed_edges))


def _steps(graph: _Graph, seed: UUID) -> list[Neighbor]:
    found = []
    for key in graph.at.get(seed, ()):
        gone = isinstance(graph.edges[key], EdgeTombstone)
        if not gone and not any(isinstance(graph.nodes.get(end), Tombstone) for end in (key.source, key.target)):
            out = key.source == seed
            peer, direction = (key.target, Direction.OUT) if out else (key.source, Direction.IN)
            found.append(Neighbor(seed, peer, key.label, direction, key))
    return found


def _ordered(steps: list[Neighbor], wanted: list[str] | None) -> list[Neighbor]:
    if wanted is not None:
        steps = [step for step in steps if fold_label(step.label) in wanted]

    def place(step: Neighbor) -> tuple[int, str, int, bytes, str]:
        folded = fold_label(step.label)
        asked = 0 if wanted is None else wanted.index(folded)
        return asked, folded, _ORDER[step.direction], step.peer.bytes, step.label

    return sorted(steps, key=place)
