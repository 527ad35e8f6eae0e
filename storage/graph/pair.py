"""A graph server that one process has to itself, with PostgreSQL's graph beside it for the others.

Every write goes to both, so each reader has a whole graph: the owner of the server asks it, everybody else PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from isotherm.pipeline.brain.drift import Digest, Held, Holding
from isotherm.pipeline.brain.graph_port import (
    Budget,
    Counts,
    Direction,
    EdgeHit,
    EdgeTombstone,
    GraphEdge,
    GraphNode,
    GraphPort,
    Neighbor,
    NodeHit,
    Tombstone,
    Walked,
)
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.errors import UnavailableError

# Where the two differ, both are wrong: newer than any truth, it is discarded from both and written again.
_ODD: Final = Held(2**62, gone=False)

T = TypeVar("T")
Key = TypeVar("Key")


class PairGraph:
    """A `GraphPort` over two. Args: first: asked where this process can reach it; second: asked otherwise."""

    def __init__(self, first: GraphPort, second: GraphPort) -> None:
        self._first = first
        self._second = second

    @property
    def own_search(self) -> bool:
        """Never: whoever does not own the first asks the second, and both would answer alike."""
        return False

    @property
    def object_search(self) -> bool:
        """Whether one of them can be asked."""
        return self._second.object_search or self._first.object_search

    @property
    def edge_search(self) -> bool:
        """Whether one of them can be asked."""
        return self._second.edge_search or self._first.edge_search

    def upsert(self, namespace: UUID, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> Counts:
        """Write to both; the first says what changed."""
        counts = self._first.upsert(namespace, nodes, edges)
        self._second.upsert(namespace, nodes, edges)
        return counts

    def remove(self, namespace: UUID, nodes: Sequence[Tombstone], edges: Sequence[EdgeTombstone] = ()) -> Counts:
        """Take out of both; the first says what changed."""
        counts = self._first.remove(namespace, nodes, edges)
        self._second.remove(namespace, nodes, edges)
        return counts

    def neighbors(
        self,
        namespace: UUID,
        ids: Sequence[UUID],
        labels: Sequence[str] | None = None,
        direction: Direction = Direction.BOTH,
        limit: int = 50,
    ) -> list[Neighbor]:
        """One step from each of the objects."""
        return self._either(lambda graph: graph.neighbors(namespace, ids, labels, direction, limit))

    def walk(
        self,
        namespace: UUID,
        seeds: Sequence[UUID],
        labels: Sequence[str] | None,
        direction: Direction,
        budget: Budget,
    ) -> Walked:
        """Steps from the seeds, and from where they lead."""
        return self._either(lambda graph: graph.walk(namespace, seeds, labels, direction, budget))

    def search_text(self, namespace: UUID, query: str, limit: int, kinds: Sequence[str] | None = None) -> list[NodeHit]:
        """Objects with words of the query."""
        return self._either(lambda graph: graph.search_text(namespace, query, limit, kinds))

    def search_vector(
        self, namespace: UUID, vector: Sequence[float], model: str, limit: int, kinds: Sequence[str] | None = None
    ) -> list[NodeHit]:
        """Objects whose vector of the same model is near."""
        return self._either(lambda graph: graph.search_vector(namespace, vector, model, limit, kinds))

    def search_edges(self, namespace: UUID, label: str, query: str, limit: int) -> list[EdgeHit]:
        """Edges of a label whose note has words of the query."""
        return self._either(lambda graph: graph.search_edges(namespace, label, query, limit))

    def revisions(self, namespace: UUID) -> dict[UUID, int]:
        """Revision by id of every node that one of them has."""
        return self._second.revisions(namespace) | self._first.revisions(namespace)

    def digest(self, namespace: UUID) -> Digest:
        """What both hold alike; where they differ, a number that no truth has."""
        one, other = self._first.digest(namespace), self._second.digest(namespace)
        return Digest(_alike(one.nodes, other.nodes, -1), _alike(one.edges, other.edges, -1))

    def held(self, namespace: UUID, buckets: Sequence[int]) -> Holding:
        """What both hold alike; where they differ, a revision that no truth has."""
        one, other = self._first.held(namespace, buckets), self._second.held(namespace, buckets)
        return Holding(_alike(one.nodes, other.nodes, _ODD), _alike(one.edges, other.edges, _ODD))

    def discard(self, namespace: UUID, nodes: Sequence[UUID], edges: Sequence[EdgeKey]) -> None:
        """Forget objects and edges in both."""
        self._first.discard(namespace, nodes, edges)
        self._second.discard(namespace, nodes, edges)

    def namespaces(self) -> list[UUID]:
        """Every namespace of which one of them holds something."""
        return sorted({*self._first.namespaces(), *self._second.namespaces()})

    def clear(self, namespace: UUID) -> None:
        """Forget a namespace in both."""
        self._first.clear(namespace)
        self._second.clear(namespace)

    def _either(self, ask: Callable[[GraphPort], T]) -> T:
        try:
            return ask(self._first)
        except UnavailableError:
            return ask(self._second)


def _alike(one: Mapping[Key, T], other: Mapping[Key, T], odd: T) -> dict[Key, T]:
    return {key: one[key] if one.get(key) == other.get(key) else odd for key in {*one, *other}}
