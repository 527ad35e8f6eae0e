"""What the engine answers: objects, parts, searches, and the pages that follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.brain.answers import Answer, LinkHit, Links, Result, with_page
from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.brain.errors import (
    EdgeSearchUnavailableError,
    LinkQueryRequiredError,
    ObjectIdRequiredError,
    ObjectNotFoundError,
    ObjectSearchUnavailableError,
    QueryRequiredError,
    ResultSetRequiredError,
)
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.graph_port import GraphPort
from isotherm.pipeline.brain.legs import LEXICAL, VECTOR
from isotherm.pipeline.brain.links import fold_label
from isotherm.pipeline.brain.objects import PARTS, PARTS_MAX, Object, canonical_uuid, namespace_uuid
from isotherm.pipeline.brain.observing import Op, OpObserver, observed
from isotherm.pipeline.brain.result_sets import SearchContext, cursor, read_cursor
from isotherm.pipeline.clean import whole_limit
from isotherm.pipeline.fusion import Fusion
from isotherm.pipeline.identity import Namespace
from isotherm.storage import brain_hints
from isotherm.storage.brain_find import Asked, Finder, Page
from isotherm.storage.brain_hints import Hinter
from isotherm.storage.postgres import brain_edges, brain_read, namespaces
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import of_owner

_NIL = UUID(int=0)

# A search: where, for what, and how many objects.
Way = Callable[[Namespace, str, int], Answer]


class Searches:
    """The reading verbs of an engine; none of them writes, and none leaves its namespace."""

    config: EngineConfig
    observer: OpObserver | None
    _graph: GraphPort | None
    checked_filters: Callable[[Filters | None], Filters]
    declared_fields: Callable[[Filters], list[str]]

    def __init__(self, finder: Finder) -> None:
        self._finder = finder

    @property
    def has_graph_writer(self) -> bool:
        """Whether edges can be written."""
        return self._graph is not None

    @property
    def has_object_search(self) -> bool:
        """Whether whole objects can be searched."""
        return self._graph is not None

    @property
    def has_edge_search(self) -> bool:
        """Whether edges can be searched."""
        return self._graph is not None

    @of_owner
    def read(self, namespace: Namespace, object_id: UUID) -> Object:
        """One object with its content.

        Raises: ObjectIdRequiredError for the nil id; ObjectNotFoundError when the namespace has no such live object.
        """
        with observed(self.observer, Op.READ) as outcome:
            found = self._read(namespace, object_id, content=True)
            outcome.hits = 1
            return found

    @of_owner
    def parts(self, namespace: Namespace, object_id: UUID, limit: int = PARTS) -> list[Object]:
        """The parts of an object with their content, in order; none when it is not there.

        Raises: RejectedError for a limit out of bounds.
        """
        whole_limit(limit, PARTS_MAX)
        place = namespaces.find(namespace)
        if place is None:
            return []
        with connection() as conn:
            return brain_read.parts(conn, place.namespace_id, object_id, limit, content=True)

    @of_owner
    def list_children(self, namespace: Namespace, parent_id: UUID, limit: int = PARTS) -> list[Object]:
        """The parts of an object without their content: by position, those without one last, then by id.

        Raises: as `read`, for the object; RejectedError for a limit out of bounds.
        """
        whole_limit(limit, PARTS_MAX)
        with observed(self.observer, Op.LIST_CHILDREN) as outcome:
            self._read(namespace, parent_id)
            place = namespaces.find(namespace)
            assert place is not None  # noqa: S101 - the object was read there
            with connection() as conn:
                found = brain_read.parts(conn, place.namespace_id, parent_id, limit)
            outcome.hits = len(found)
            return found

    @of_owner
    def search(
        self,
        namespace: Namespace,
        query: str,
        *,
        limit: int | None = None,
        filters: Filters | None = None,
        fusion: Fusion | None = None,
        decay: Decay | None = None,
        graph: bool | None = None,
        newest_first: bool | None = None,
        now: datetime | None = None,
        context: SearchContext | None = None,
    ) -> Answer:
        """The objects of a namespace that match a query best, by their words and by what they are about.

        A part stands for its object and is kept as evidence. Nothing is written.

        Args: limit, fusion, decay, graph, newest_first: None means as configured; graph: walk over edges, too; newest_first:
            whether an object comes before an older one that it renews, see `isotherm.pipeline.brain.renewing`; context: keeps
            what was found for later pages.
        Raises: QueryRequiredError, FilterError, RejectedError for a limit out of bounds; TransientError when PostgreSQL
        cannot be reached.
        """
        with observed(self.observer, Op.SEARCH) as outcome:
            asked = self._asked(Op.SEARCH, namespace, query, limit, filters, context)
            if asked is None:
                return Answer()
            asked = replace(asked, fusion=fusion or asked.fusion, decay=decay or asked.decay, now=now or asked.now)
            asked = replace(asked, graph=self.config.graph if graph is None else graph)
            asked = replace(asked, newest_first=self.config.newest_first if newest_first is None else newest_first)
            page = self._finder.search(asked)
            outcome.hits, outcome.degraded, outcome.legs = len(page.answer.results), page.answer.degraded, page.legs
            return page.answer

    def ways(self) -> dict[str, Way]:
        """Searches to compare with each other: each leg alone, and what is made of both, by name."""

        def way(legs: frozenset[str], fusion: Fusion | None, *, graph: bool) -> Way:
            @of_owner
            def ask(namespace: Namespace, query: str, limit: int) -> Answer:
                asked = self._asked(Op.SEARCH, namespace, query, limit, None, None)
                if asked is None:
                    return Answer()
                chosen = replace(asked, legs=legs, fusion=fusion or asked.fusion, graph=graph)
                return self._finder.search(chosen).answer

            return ask

        words, vectors = frozenset({LEXICAL}), frozenset({VECTOR})
        return {
            "words alone": way(words, None, graph=False),
            "vectors alone": way(vectors, None, graph=False),
            "both, by ranks": way(words | vectors, Fusion.RRF, graph=False),
            "both": way(words | vectors, None, graph=False),
            "both and graph": way(words | vectors, None, graph=True),
        }

    @of_owner
    def find_exact(
        self,
        namespace: Namespace,
        query: str,
        *,
        limit: int | None = None,
        filters: Filters | None = None,
        context: SearchContext | None = None,
    ) -> Answer:
        """Objects by name: those whose id, title or declared property is the query come first, then what is nearly so.

        An id (in its usual spelling) of the namespace answers alone; other spellings are names that look like ids.

        Raises: as `search`; ObjectNotFoundError for an id under which nothing can be found.
        """
        with observed(self.observer, Op.FIND_EXACT) as outcome:
            asked = self._asked(Op.FIND_EXACT, namespace, query, limit, filters, context)
            page = Page(Answer(), {}) if asked is None else self._finder.find_exact(asked, self._fields(asked))
            outcome.hits, outcome.legs = len(page.answer.results), page.legs
            if not page.answer.results and canonical_uuid(query.strip()) is not None:
                raise ObjectNotFoundError(f"no object {query.strip()} in this namespace")
            return page.answer

    @of_owner
    def find_objects(
        self,
        namespace: Namespace,
        query: str,
        *,
        limit: int | None = None,
        filters: Filters | None = None,
        context: SearchContext | None = None,
    ) -> Answer:
        """Whole objects by their own words, properties and meaning; their parts do not count.

        Raises: ObjectSearchUnavailableError when there is no graph; as `search` besides.
        """
        with observed(self.observer, Op.FIND_OBJECTS) as outcome:
            if not self.has_object_search:
                raise ObjectSearchUnavailableError("this engine has no graph that holds whole objects")
            asked = self._asked(Op.FIND_OBJECTS, namespace, query, limit, filters, context)
            if asked is None:
                return Answer()
            hinter = self._hinter(namespace)
            page = self._finder.search(replace(asked, filters=replace(asked.filters, whole=True)), hinter)
            outcome.hits, outcome.degraded, outcome.legs = len(page.answer.results), page.answer.degraded, page.legs
            return page.answer

    @of_owner
    def find_links(self, namespace: Namespace, label: str, query: str, *, limit: int | None = None) -> Links:
        """Edges with a label whose note has words of the query, those with more of them first, then the newest.

        Raises: EdgeSearchUnavailableError when there is no graph; LinkQueryRequiredError for a blank label or query.
        """
        with observed(self.observer, Op.FIND_LINKS) as outcome:
            if not self.has_edge_search:
                raise EdgeSearchUnavailableError("this engine has no graph that holds edges")
            if not label.strip() or not query.strip():
                raise LinkQueryRequiredError("a label and something to look for are needed")
            most, place, terms = self.config.limit(limit), namespaces.find(namespace), text.terms(query)
            if place is None:
                return Links()
            hints = self._hinter(namespace).edges(label, query, most + 1)
            with connection() as conn:
                found = brain_edges.find_links(conn, place.namespace_id, fold_label(label), query, terms, most + 1)
                found = brain_hints.with_hints(conn, place.namespace_id, found, hints.edges, terms)
                ends = [end for each in found for end in (each.edge.key.source, each.edge.key.target)]
                objects = brain_read.by_id(conn, place.namespace_id, ends)
            hits = [
                LinkHit(objects[e.edge.key.source], objects[e.edge.key.target], e.edge, e.score)
                for e in found
                if e.edge.key.source in objects and e.edge.key.target in objects
            ]
            outcome.hits, outcome.degraded = len(hits[:most]), hints.degraded
            return Links(tuple(hits[:most]), hints.degraded, truncated=len(found) > most)

    @of_owner
    def continue_(
        self, namespace: Namespace, at: str, context: SearchContext | None, *, limit: int | None = None
    ) -> Answer:
        """The next page of a search, with the scores and evidence it had then; what is gone meanwhile is passed over.

        Asking twice with one cursor gives the same page twice.

        Args: at: the cursor that the page before gave.
        Raises: ResultSetIdRequiredError, ResultSetNotFoundError (also for another namespace's), ResultSetRequiredError
        without a context.
        """
        with observed(self.observer, Op.CONTINUE) as outcome:
            result_set_id, offset = read_cursor(at)
            if context is None:
                raise ResultSetRequiredError("a next page needs the context that kept the first one")
            found = context.get(result_set_id, namespace_uuid(namespace))
            most, place = self.config.limit(limit), namespaces.find(namespace)
            results: list[Result] = []
            while place is not None and len(results) < most and offset < len(found.items):
                batch = found.items[offset : offset + most - len(results)]
                results += self._finder.shown(place, found.query, batch)
                offset += len(batch)
            more = offset < len(found.items)
            outcome.hits = len(results)
            answer = Answer(tuple(results), found.degraded, found.truncated)
            return with_page(answer, found.id, cursor(found.id, offset) if more else None, has_more=more)

    def _hinter(self, namespace: Namespace) -> Hinter:
        return Hinter(self._graph, namespace_uuid(namespace), self.config.fail_on_graph_error)

    def _read(self, namespace: Namespace, object_id: UUID, *, content: bool = False) -> Object:
        if object_id == _NIL:
            raise ObjectIdRequiredError("an id is needed, not the nil UUID")
        place = namespaces.find(namespace)
        found: dict[UUID, Object] = {}
        if place is not None:
            with connection() as conn:
                found = brain_read.by_id(conn, place.namespace_id, [object_id], content=content)
        if object_id not in found:
            raise ObjectNotFoundError(f"no object {object_id} in this namespace")
        return found[object_id]

    def _asked(
        self,
        op: Op,
        namespace: Namespace,
        query: str,
        limit: int | None,
        filters: Filters | None,
        context: SearchContext | None,
    ) -> Asked | None:
        """A search once it is known to make sense; None when the namespace or the filters leave nothing."""
        if not query.strip():
            raise QueryRequiredError("query: must not be blank")
        most, within, place = self.config.limit(limit), self.checked_filters(filters), namespaces.find(namespace)
        if place is None or within.nothing:
            return None
        config = self.config
        return Asked(
            namespace, place, op.value, query, most, within, config.fusion, config.decay, config.now(), context
        )

    def _fields(self, asked: Asked) -> list[str]:
        return self.declared_fields(asked.filters)
