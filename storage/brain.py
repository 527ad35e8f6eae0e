"""The knowledge base in this process: what programs read, and the writes that producers make durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from isotherm.pipeline.brain.answers import Reranker
from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.errors import GraphRequiredError, GraphWriterRequiredError
from isotherm.pipeline.brain.expand import NEIGHBORS, SIBLINGS, Mode, Wanted, mode_of, one_hop, split_labels
from isotherm.pipeline.brain.graph_port import Direction, GraphPort
from isotherm.pipeline.brain.links import Edge, EdgeKey, NewLink
from isotherm.pipeline.brain.objects import Object, namespace_uuid
from isotherm.pipeline.brain.observing import Op, OpObserver, observed
from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.ports import Embedder
from isotherm.storage.brain_find import Finder
from isotherm.storage.brain_kinds import Kinds
from isotherm.storage.brain_read import Searches
from isotherm.storage.postgres import brain_edges, brain_read, brain_write, namespaces, operations
from isotherm.storage.postgres.brain_write import Put, RacedError, Written
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.tier_write import Patience

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Relation:
    """How an object of an expand is related to the one that was asked about, in the direction seen from there."""

    edge: Edge
    direction: Direction


@dataclass(frozen=True, slots=True)
class Related:
    """An object of an expand, without its content; without relations it is a part, a sibling or the parent."""

    object: Object
    relations: tuple[Relation, ...] = ()


@dataclass(frozen=True, slots=True)
class Expanded:
    """What is around an object."""

    mode: Mode
    items: tuple[Related, ...] = ()
    degraded: tuple[str, ...] = ()
    truncated: bool = False


class Engine(Kinds, Searches):
    """The knowledge base in this process; the pool must be open. Safe to be used by threads.

    Args: graph: where edges are walked; None is an engine without edges, which only a host that wants none makes;
        embedder: makes the embedder of queries, None when there is none; patience: how long the background work of a write
        is retried; config: its knobs; reranker: puts the best of a search into another order; observer: is told of calls.
    """

    def __init__(
        self,
        graph: GraphPort | None,
        embedder: Callable[[], Embedder | None],
        patience: Patience,
        *,
        config: EngineConfig | None = None,
        reranker: Reranker | None = None,
        observer: OpObserver | None = None,
    ) -> None:
        self.config = config or EngineConfig()
        self.observer = observer
        self._graph = graph
        self._patience = patience
        Kinds.__init__(self)
        Searches.__init__(self, Finder(self.config, embedder, reranker))

    @property
    def graph(self) -> GraphPort:
        """Where edges are walked. Raises: GraphRequiredError when there is none."""
        if self._graph is None:
            raise GraphRequiredError("this engine has no graph")
        return self._graph

    def put(self, new: NewOperation, wanted: Put) -> Written:
        """Store objects durably. The caller publishes the messages.

        Raises: KindError for objects that do not fit their kind; RejectedError as `brain_write.put` does; TransientError
        when PostgreSQL cannot be reached.
        """
        with observed(self.observer, Op.PUT) as outcome:
            checked = replace(wanted, objects=[self.catalog.validate(each) for each in wanted.objects])
            done = self._put(new, checked)
            outcome.hits = done.written
            return done

    def _put(self, new: NewOperation, wanted: Put) -> Written:
        for tried in range(1, _TRIES + 1):
            try:
                with connection() as conn:
                    return brain_write.put(conn, new, wanted, self._patience)
            except RacedError:
                if tried == _TRIES:
                    raise
        raise AssertionError("the loop returns or raises")

    def soft_delete(
        self, new: NewOperation, place: Place, ids: Sequence[UUID], *, expected_revision: int | None = None
    ) -> Written:
        """Take objects and their parts out of every search. Raises: as `brain_write.soft_delete`."""
        now = self.config.now()
        with observed(self.observer, Op.SOFT_DELETE) as outcome, connection() as conn:
            done = brain_write.soft_delete(
                conn, new, place, ids, self._patience, expected_revision=expected_revision, now=now
            )
            outcome.hits = done.removed
            return done

    def link(self, new: NewOperation, place: Place, link: NewLink) -> Written:
        """Write an edge. Raises: GraphWriterRequiredError when there is no graph; as `brain_edges.link` besides."""
        with observed(self.observer, Op.LINK) as outcome:
            self._demand_writer()
            with connection() as conn:
                operation, fresh = operations.create(conn, new)
                if not fresh:
                    return Written(operation.id, new=False)
                key = brain_edges.link(conn, place.namespace_id, link)
                outcome.hits = 1
                return brain_write.begin_mirror(conn, new, [key], self._patience)

    def unlink(self, new: NewOperation, place: Place, key: EdgeKey) -> Written:
        """Take an edge out. Raises: GraphWriterRequiredError when there is no graph; as `brain_edges.unlink` besides."""
        with observed(self.observer, Op.UNLINK) as outcome:
            self._demand_writer()
            with connection() as conn:
                operation, fresh = operations.create(conn, new)
                if not fresh:
                    return Written(operation.id, new=False)
                edge = brain_edges.unlink(conn, place.namespace_id, key)
                outcome.hits = 1
                return brain_write.begin_mirror(conn, new, [edge], self._patience)

    def _demand_writer(self) -> None:
        if self._graph is None:
            raise GraphWriterRequiredError("this engine has no graph to write an edge to")

    def expand(
        self,
        namespace: Namespace,
        object_id: UUID,
        labels: Sequence[str] | None = (),
        *,
        direction: Direction = Direction.BOTH,
        containment: bool = False,
        limit: int = NEIGHBORS,
    ) -> Expanded:
        """What is one step around an object: its parts, or for a part its parent and siblings; and its edges.

        Args: labels: of edges to follow; none of them, or `contains`, means parts; None means all edges; containment:
            parts in any case; limit: most neighbors over edges, and most parts.
        Raises: RejectedError when the namespace has no such object; TransientError when PostgreSQL cannot be reached. A
            graph out of reach degrades the answer when parts were asked for too, else it is a TransientError.
        """
        seed, wanted = self.read(namespace, object_id), split_labels(labels, containment=containment)
        place = namespaces.find(namespace)
        assert place is not None  # noqa: S101 - the object was read there
        contained, more_parts = _contained(place, seed, limit) if wanted.containment else ([], False)
        degraded: tuple[str, ...] = ()
        related: list[Related] = []
        more_edges = False
        if wanted.graph:
            try:
                related, more_edges = self._related(namespace, place, seed, wanted, direction, limit)
            except TransientError:
                if not wanted.containment:
                    raise
                degraded, wanted = ("graph",), replace(wanted, labels=())
        known = {each.id for each in contained}
        items = [Related(each) for each in contained] + [r for r in related if r.object.id not in known]
        mode = mode_of(wanted, seed_is_part=seed.is_part)
        return Expanded(mode, tuple(items), degraded, truncated=more_parts or more_edges)

    def _related(
        self, namespace: Namespace, place: Place, seed: Object, wanted: Wanted, direction: Direction, limit: int
    ) -> tuple[list[Related], bool]:
        """Neighbors as the graph proposes them, each object and each edge read again under its namespace."""
        graph_name = namespace_uuid(namespace)
        # A peer may be reached over several edges; of those that the graph still has, some may be gone.
        near = self.graph.neighbors(graph_name, [seed.id], wanted.labels, direction, limit=2 * limit + 1)
        with connection() as conn:
            objects = brain_read.by_id(conn, place.namespace_id, [n.peer for n in near])
            edges = brain_edges.edges(conn, place.namespace_id, [n.key for n in near])
        steps, more = one_hop(seed.id, [n for n in near if n.peer in objects and n.key in edges], limit)
        related = [
            Related(objects[step.peer], tuple(Relation(edges[n.key], n.direction) for n in step.steps))
            for step in steps
        ]
        return related, more or len(near) > 2 * limit


def _contained(place: Place, seed: Object, limit: int) -> tuple[list[Object], bool]:
    """The parts of an object; of a part its parent, then the parts around it, itself included."""
    with connection() as conn:
        if seed.parent_id is None:
            found = brain_read.parts(conn, place.namespace_id, seed.id, limit + 1)
            return found[:limit], len(found) > limit
        around = brain_read.siblings(conn, place.namespace_id, seed.parent_id, seed.id, SIBLINGS)
        objects = brain_read.by_id(conn, place.namespace_id, [seed.parent_id, *around])
    return [objects[i] for i in (seed.parent_id, *around) if i in objects], False
