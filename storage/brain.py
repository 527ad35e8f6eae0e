"""The knowledge base in this process: what programs read, and the writes that producers make durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from uuid import UUID

from isotherm.pipeline.brain.answers import Reranker
from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.errors import GraphRequiredError, GraphWriterRequiredError
from isotherm.pipeline.brain.graph_port import GraphPort
from isotherm.pipeline.brain.links import EdgeKey, NewLink
from isotherm.pipeline.brain.observing import Op, OpObserver, observed
from isotherm.pipeline.ports import Embedder
from isotherm.storage.brain_expand import Walks
from isotherm.storage.brain_find import Finder
from isotherm.storage.brain_kinds import Kinds
from isotherm.storage.brain_read import Searches
from isotherm.storage.postgres import brain_edges, brain_write, operations
from isotherm.storage.postgres.brain_write import Put, Written
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import Connection, again_if_raced, connection
from isotherm.storage.postgres.reach import of_operation
from isotherm.storage.postgres.tier_write import Patience


class Engine(Kinds, Searches, Walks):
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
        Walks.__init__(self, self.config, observer)

    @property
    def graph(self) -> GraphPort:
        """Where edges are walked. Raises: GraphRequiredError when there is none."""
        if self._graph is None:
            raise GraphRequiredError("this engine has no graph")
        return self._graph

    @of_operation
    def put(self, new: NewOperation, wanted: Put) -> Written:
        """Store objects durably. The caller publishes the messages.

        Raises: KindError for objects that do not fit their kind; RejectedError as `brain_write.put` does; TransientError
        when PostgreSQL cannot be reached.
        """
        with observed(self.observer, Op.PUT) as outcome:
            checked = replace(wanted, objects=[self.catalog.validate(each) for each in wanted.objects])
            done = _written(lambda conn: brain_write.put(conn, new, checked, self._patience))
            outcome.hits = done.written
            return done

    @of_operation
    def soft_delete(
        self, new: NewOperation, place: Place, ids: Sequence[UUID], *, expected_revision: int | None = None
    ) -> Written:
        """Take objects and their parts out of every search. Raises: as `brain_write.soft_delete`."""
        now = self.config.now()
        with observed(self.observer, Op.SOFT_DELETE) as outcome:
            done = _written(
                lambda conn: brain_write.soft_delete(
                    conn, new, place, ids, self._patience, expected_revision=expected_revision, now=now
                )
            )
            outcome.hits = done.removed
            return done

    @of_operation
    def link(self, new: NewOperation, place: Place, link: NewLink) -> Written:
        """Write an edge. Raises: GraphWriterRequiredError when there is no graph; as `brain_edges.link` besides."""
        with observed(self.observer, Op.LINK) as outcome:
            self._demand_writer()
            done = self._edge_written(new, lambda conn: brain_edges.link(conn, place.namespace_id, link))
            outcome.hits = done.written
            return done

    @of_operation
    def unlink(self, new: NewOperation, place: Place, key: EdgeKey) -> Written:
        """Take an edge out. Raises: GraphWriterRequiredError when there is no graph; as `brain_edges.unlink` besides."""
        with observed(self.observer, Op.UNLINK) as outcome:
            self._demand_writer()
            done = self._edge_written(new, lambda conn: brain_edges.unlink(conn, place.namespace_id, key))
            outcome.hits = done.written
            return done

    def _edge_written(self, new: NewOperation, change: Callable[[Connection], int]) -> Written:
        """Change an edge, of which `change` gives the key, unless the call repeats an earlier one."""

        def write(conn: Connection) -> Written:
            operation, fresh = operations.create(conn, new)
            if not fresh:
                return Written(operation.id, new=False)
            return brain_write.begin_mirror(conn, new, [change(conn)], self._patience)

        return _written(write)

    def _demand_writer(self) -> None:
        if self._graph is None:
            raise GraphWriterRequiredError("this engine has no graph to write an edge to")


def _written(write: Callable[[Connection], Written]) -> Written:
    """A write of objects or edges: they are locked in one order, but not what another writer adds meanwhile."""

    def once() -> Written:
        with connection() as conn:
            return write(conn)

    return again_if_raced(once)
