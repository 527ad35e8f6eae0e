"""The graph in this process's memory: for tests, and for hosts that run in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar
from uuid import UUID

import numpy as np

from isotherm.pipeline import text
from isotherm.pipeline.brain import bm25, drift
from isotherm.pipeline.brain.drift import Digest, Held, Holding
from isotherm.pipeline.brain.graph_port import (
    Budget,
    Counts,
    Direction,
    EdgeHit,
    EdgeTombstone,
    GraphEdge,
    GraphNode,
    Neighbor,
    NodeHit,
    Tombstone,
    Walked,
)
from isotherm.pipeline.brain.links import EdgeKey, fold_label
from isotherm.pipeline.brain.walk import walk_by_hops

_ORDER = {Direction.OUT: 0, Direction.IN: 1}
QUERY_TERMS: Final = 64

Key = TypeVar("Key", UUID, EdgeKey)


@dataclass(slots=True)
class _Graph:
    """One namespace: what is there or gone, by identity, and the edges at each object."""

    nodes: dict[UUID, GraphNode | Tombstone] = field(default_factory=dict)
    edges: dict[EdgeKey, GraphEdge | EdgeTombstone] = field(default_factory=dict)
    at: dict[UUID, set[EdgeKey]] = field(default_factory=dict)

    def live(self) -> dict[UUID, GraphNode]:
        return {key: node for key, node in self.nodes.items() if isinstance(node, GraphNode)}

    def walked(self) -> dict[EdgeKey, GraphEdge]:
        """Edges that are there, and whose ends are not gone."""
        return {
            key: edge
            for key, edge in self.edges.items()
            if isinstance(edge, GraphEdge)
            and not any(isinstance(self.nodes.get(end), Tombstone) for end in (key.source, key.target))
        }


class MemoryGraph:
    """A `GraphPort` without a server. Threads may share it."""

    own_search = True
    object_search = True
    edge_search = True

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

    def walk(
        self,
        namespace: UUID,
        seeds: Sequence[UUID],
        labels: Sequence[str] | None,
        direction: Direction,
        budget: Budget,
    ) -> Walked:
        """Steps from the seeds, and from where they lead."""

        def ask(ids: Sequence[UUID], limit: int) -> list[Neighbor]:
            return self.neighbors(namespace, ids, labels, direction, limit)

        return walk_by_hops(ask, seeds, budget)

    def search_text(self, namespace: UUID, query: str, limit: int, kinds: Sequence[str] | None = None) -> list[NodeHit]:
        """Objects with words of the query."""
        with self._lock:
            nodes = self._graphs.get(namespace, _Graph()).live()
        scores = _bm25(query, {key: node.text for key, node in nodes.items()})
        kept = {key: score for key, score in scores.items() if kinds is None or nodes[key].kind in kinds}
        return [NodeHit(key, score) for key, score in _best(kept, limit, _by_id)]

    def search_vector(
        self, namespace: UUID, vector: Sequence[float], model: str, limit: int, kinds: Sequence[str] | None = None
    ) -> list[NodeHit]:
        """Objects whose vector of the same model is near."""
        with self._lock:
            nodes = self._graphs.get(namespace, _Graph()).live()
        scores = {
            key: score
            for key, node in nodes.items()
            if node.vector is not None and node.vector_model == model and (kinds is None or node.kind in kinds)
            if len(node.vector) == len(vector) and (score := _cosine(node.vector, vector)) > 0
        }
        return [NodeHit(key, score) for key, score in _best(scores, limit, _by_id)]

    def search_edges(self, namespace: UUID, label: str, query: str, limit: int) -> list[EdgeHit]:
        """Edges of a label whose note has words of the query."""
        with self._lock:
            edges = self._graphs.get(namespace, _Graph()).walked()
        folded = fold_label(label)
        notes = {key: str(e.properties.get("note", "")) for key, e in edges.items() if fold_label(key.label) == folded}
        return [EdgeHit(key, score) for key, score in _best(_bm25(query, notes), limit, _by_ends)]

    def revisions(self, namespace: UUID) -> dict[UUID, int]:
        """Revision by id of every node that is not gone."""
        with self._lock:
            return {key: node.revision for key, node in self._graphs.get(namespace, _Graph()).live().items()}

    def digest(self, namespace: UUID) -> Digest:
        """What is held, as one number for each bucket."""
        return drift.digest(self.held(namespace, range(drift.BUCKETS)))

    def held(self, namespace: UUID, buckets: Sequence[int]) -> Holding:
        """What is held of the objects and edges in these buckets."""
        chosen = set(buckets)
        with self._lock:
            graph = self._graphs.get(namespace, _Graph())
            nodes = {
                key: Held(node.revision, gone=isinstance(node, Tombstone))
                for key, node in graph.nodes.items()
                if drift.bucket_of(key) in chosen
            }
            edges = {
                key: Held(edge.revision, gone=isinstance(edge, EdgeTombstone))
                for key, edge in graph.edges.items()
                if drift.bucket_of(key.source) in chosen
            }
        return Holding(nodes, edges)

    def discard(self, namespace: UUID, nodes: Sequence[UUID], edges: Sequence[EdgeKey]) -> None:
        """Forget objects and edges without a trace."""
        with self._lock:
            graph = self._graphs.get(namespace, _Graph())
            for node in nodes:
                graph.nodes.pop(node, None)
            for edge in edges:
                if graph.edges.pop(edge, None) is not None:
                    graph.at[edge.source].discard(edge)
                    graph.at[edge.target].discard(edge)

    def namespaces(self) -> list[UUID]:
        """Every namespace of which something is held."""
        with self._lock:
            return sorted(key for key, graph in self._graphs.items() if graph.nodes or graph.edges)

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


def _bm25(query: str, texts: Mapping[Key, str]) -> dict[Key, float]:
    counts = {key: text.term_counts(said) for key, said in texts.items()}
    return bm25.scores(text.terms(query, QUERY_TERMS), counts)


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    a, b = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    norm = float(np.linalg.norm(a) * np.linalg.norm(b))
    return float(a @ b) / norm if norm else 0.0


def _by_id(key: UUID) -> tuple[bytes, ...]:
    return (key.bytes,)


def _by_ends(key: EdgeKey) -> tuple[bytes, ...]:
    return key.source.bytes, key.target.bytes, key.label.encode()


def _best(scores: Mapping[Key, float], limit: int, tie: Callable[[Key], tuple[bytes, ...]]) -> list[tuple[Key, float]]:
    def place(item: tuple[Key, float]) -> tuple[float, tuple[bytes, ...]]:
        return -item[1], tie(item[0])

    return sorted(scores.items(), key=place)[: max(limit, 0)]


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
    return sorted(steps, key=partial(_place, wanted))


def _place(wanted: list[str] | None, step: Neighbor) -> tuple[int, str, int, bytes, str]:
    folded = fold_label(step.label)
    asked = 0 if wanted is None else wanted.index(folded)
    return asked, folded, _ORDER[step.direction], step.peer.bytes, step.label
