"""The graph as the rules see it: a projection of objects and edges that can be dropped and filled again.

Every call names its namespace, and sees and changes nothing of another. Everything written carries the revision of its
truth: what is older than what the graph has is ignored, so messages may come twice, late and in any order. What is
removed leaves its revision behind for the same reason.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol
from uuid import UUID

from isotherm.pipeline.brain.links import EdgeKey


class Direction(StrEnum):
    """Which edges of an object are followed: those that leave it, those that reach it, or both."""

    OUT = "out"
    IN = "in"
    BOTH = "both"


@dataclass(frozen=True, slots=True)
class GraphNode:
    """An object in the graph; parts are never in it."""

    id: UUID
    revision: int
    kind: str = ""
    title: str = ""


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
class Neighbor:
    """One step from an object: over which edge, in which direction as seen from there, and to whom."""

    seed: UUID
    peer: UUID
    label: str
    direction: Direction
    key: EdgeKey


@dataclass(frozen=True, slots=True)
class Counts:
    """What a write changed; what was there already, or newer, does not count."""

    nodes: int = 0
    edges: int = 0


class GraphPort(Protocol):
    """A graph server, a table, or this process's memory.

    Raises, from every method: TransientError when the graph is out of reach.
    """

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

    def revisions(self, namespace: UUID) -> dict[UUID, int]:
        """Revision by id of every node that is not gone."""
        ...

    def clear(self, namespace: UUID) -> None:
        """Forget a namespace, revisions too."""
        ...
