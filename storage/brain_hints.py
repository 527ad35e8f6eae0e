"""What a graph's own indexes propose besides: hints, each read again in PostgreSQL and scored there like any other row.

A graph in the same database has the same rows by the same words, so it is not asked. One that is out of reach, or has no
index yet, is left out, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.brain.graph_port import GraphPort
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.errors import TransientError
from isotherm.storage.postgres import brain_edges
from isotherm.storage.postgres.brain_edges import FoundEdge
from isotherm.storage.postgres.brain_search import Near
from isotherm.storage.postgres.pool import Connection

_GRAPH: Final = ("graph",)


@dataclass(frozen=True, slots=True)
class Hints:
    """Objects or edges that a graph proposes, best first. Args: degraded: what was out of reach."""

    objects: tuple[UUID, ...] = ()
    edges: tuple[EdgeKey, ...] = ()
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hinter:
    """Asks a graph. Args: namespace: as the graph knows it; strict: raise when it is out of reach."""

    graph: GraphPort | None
    namespace: UUID
    strict: bool = False

    def objects(self, query: str, near: Near | None, limit: int, kinds: Sequence[str]) -> Hints:
        """Whole objects by their words and, with a vector, by meaning. Raises: TransientError when strict."""
        if self.graph is None or not self.graph.own_search:
            return Hints()
        only = list(kinds) or None
        try:
            if not self.graph.object_search:
                return Hints(degraded=_GRAPH)
            hits = self.graph.search_text(self.namespace, query, limit, only)
            if near is not None:
                vector = [float(x) for x in near.vector]
                hits += self.graph.search_vector(self.namespace, vector, near.model, limit, only)
        except TransientError:
            if self.strict:
                raise
            return Hints(degraded=_GRAPH)
        return Hints(tuple(dict.fromkeys(hit.id for hit in hits)))

    def edges(self, label: str, query: str, limit: int) -> Hints:
        """Edges by the words of their notes. Raises: TransientError when strict."""
        if self.graph is None or not self.graph.own_search:
            return Hints()
        try:
            if not self.graph.edge_search:
                return Hints(degraded=_GRAPH)
            hits = self.graph.search_edges(self.namespace, label, query, limit)
        except TransientError:
            if self.strict:
                raise
            return Hints(degraded=_GRAPH)
        return Hints(edges=tuple(hit.key for hit in hits))


def with_hints(
    conn: Connection, namespace_id: int, found: Sequence[FoundEdge], hinted: Sequence[EdgeKey], terms: Sequence[int]
) -> list[FoundEdge]:
    """Edges that were found, with those that were hinted at and are there; more of the query's words first, then the newest."""
    known = {each.edge.key for each in found}
    more = [key for key in hinted if key not in known]
    read = brain_edges.edges(conn, namespace_id, more) if more else {}
    wanted = set(terms)
    added = [
        FoundEdge(edge, len(wanted & set(text.terms(edge.meta.note))) / max(len(wanted), 1)) for edge in read.values()
    ]
    return (
        sorted([*found, *added], key=lambda each: (-each.score, -each.edge.updated_at.timestamp()))
        if added
        else [*found]
    )
