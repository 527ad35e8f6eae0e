"""The graph as the rules see it: a projection of objects and edges that can be dropped and filled again.

Every call names its namespace, and sees and changes nothing of another. Everything written carries the revision of its
truth: what is older than what the graph has is ignored, so messages may come twice, late and in any order. What is
removed leaves its revision behind for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from isotherm.pipeline.brain.drift import Digest, Holding
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.brain.walk import Budget, Direction, Neighbor, Walked


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An object in the graph; parts are never in it.

    Args: revision: of what is projected, so that it rises when the object gets another vector too; text: the words it is
        found by; properties: JSON values by name; vector: of unit length, None while there is none; vector_model: its stamp.
    """

    id: UUID
    revision: int
    kind: str = ""
    title: str = ""
    summary: str = ""
    text: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict)
    created_at: datetime | None = None
    updated_at: datetime | None = None
    vector: tuple[float, ...] | None = None
    vector_model: str = ""


@dataclass(frozen=True, slots=True)
class GraphEdge:
    """An edge in the graph. Its ends need not be there yet."""

    key: EdgeKey
    revision: int
    properties: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """An object that is gone, as of a revision."""

    id: UUID
    revision: int


@dataclass(frozen=True, slots=True)
class EdgeTombstone:
    """An edge that is gone, as of a revision."""

    key: EdgeKey
    revision: int


@dataclass(frozen=True, slots=True)
class Counts:
    """What a write changed; what was there already, or newer, does not count."""

    nodes: int = 0
    edges: int = 0


@dataclass(frozen=True, slots=True)
class NodeHit:
    """An object that a search of the graph proposes; scores of one search compare."""

    id: UUID
    score: float


@dataclass(frozen=True, slots=True)
class EdgeHit:
    """An edge that a search of notes proposes."""

    key: EdgeKey
    score: float


class GraphPort(Protocol):
    """A graph server, a table, or this process's memory.

    `own_search` says whether asking it adds anything to what PostgreSQL finds; `object_search` and `edge_search` say whether its indexes can be asked.

    Raises, from every method: TransientError when the graph is out of reach.
    """

    @property
    def own_search(self) -> bool:
        """Whether its searches look at rows of its own, which PostgreSQL's searches do not see."""
        ...

    @property
    def object_search(self) -> bool:
        """Whether objects can be searched here."""
        ...

    @property
    def edge_search(self) -> bool:
        """Whether the notes of edges can be searched here."""
        ...

    def upsert(self, namespace: UUID, nodes: Sequence[GraphNode], edges: Sequence[GraphEdge]) -> Counts:
        """Write nodes and edges; of two with one identity in a call the newest counts. A node keeps its edges."""
        ...

    def remove(self, namespace: UUID, nodes: Sequence[Tombstone], edges: Sequence[EdgeTombstone] = ()) -> Counts:
        """Take nodes and edges out. The edges of a node are not walked while it is gone, and are back when it is."""
        ...

    def neighbors(
        self,
        namespace: UUID,
        ids: Sequence[UUID],
        labels: Sequence[str] | None = None,
        direction: Direction = Direction.BOTH,
        limit: int = 50,
    ) -> list[Neighbor]:
        """One step from each of the objects, at most `limit` steps each.

        Args: labels: compared as `fold_label` gives them; None means any, an empty list none.
        Returns: by seed in the order given, then label (in the order asked for, by name when any), out before in, then
            peer; no step from or to an object that is gone. Directions and labels are chosen before the limit cuts.
        """
        ...

    def walk(
        self,
        namespace: UUID,
        seeds: Sequence[UUID],
        labels: Sequence[str] | None,
        direction: Direction,
        budget: Budget,
    ) -> Walked:
        """Steps from the seeds, from where they lead, and so on; each object is asked once."""
        ...

    def search_text(self, namespace: UUID, query: str, limit: int, kinds: Sequence[str] | None = None) -> list[NodeHit]:
        """Objects with words of the query, best first, equals by id. Args: kinds: None means any, an empty list none."""
        ...

    def search_vector(
        self, namespace: UUID, vector: Sequence[float], model: str, limit: int, kinds: Sequence[str] | None = None
    ) -> list[NodeHit]:
        """Objects whose vector of the same model is near, by cosine above 0, best first, equals by id."""
        ...

    def search_edges(self, namespace: UUID, label: str, query: str, limit: int) -> list[EdgeHit]:
        """Edges of a label whose note has words of the query, best first, equals by source and target."""
        ...

    def revisions(self, namespace: UUID) -> dict[UUID, int]:
        """Revision by id of every node that is not gone."""
        ...

    def digest(self, namespace: UUID) -> Digest:
        """What is held, as one number for each bucket, so that it compares with the truth without being read."""
        ...

    def held(self, namespace: UUID, buckets: Sequence[int]) -> Holding:
        """What is held of the objects and edges in these buckets."""
        ...

    def discard(self, namespace: UUID, nodes: Sequence[UUID], edges: Sequence[EdgeKey]) -> None:
        """Forget objects and edges without a trace, so that any revision of them may be written again."""
        ...

    def namespaces(self) -> list[UUID]:
        """Every namespace of which something is held."""
        ...

    def clear(self, namespace: UUID) -> None:
        """Forget a namespace, revisions too."""
        ...


__all__ = [
    "Budget",
    "Counts",
    "Direction",
    "EdgeHit",
    "EdgeTombstone",
    "GraphEdge",
    "GraphNode",
    "GraphPort",
    "Neighbor",
    "NodeHit",
    "Tombstone",
    "Walked",
]
