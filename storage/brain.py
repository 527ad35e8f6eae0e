"""The knowledge base in this process: what programs read, and the writes that producers make durable."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.fusion import Fusion, fuse
from isotherm.pipeline.brain.graph_port import GraphPort
from isotherm.pipeline.brain.links import EdgeKey, NewLink
from isotherm.pipeline.brain.objects import Object
from isotherm.pipeline.brain.promotion import SNIPPET_CHARS, Hit, Promoted, promote, snippet
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.ports import Embedder
from isotherm.storage.brain_expand import Walks
from isotherm.storage.postgres import brain_edges, brain_read, brain_search, brain_write, namespaces, operations
from isotherm.storage.postgres.brain_search import Leg, Near
from isotherm.storage.postgres.brain_write import Put, RacedError, Written
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.tier_write import Patience

# Candidates per leg, and for each object wanted.
_CANDIDATES = 40
_PER_WANTED = 4
# Words of a query that are looked up; a longer text is a document, not a question.
_QUERY_TERMS = 64
_MOST_CANDIDATES = 4_000
_MOST = 200
_TRIES = 3
_LEXICAL, _VECTOR = "lexical", "vector"


@dataclass(frozen=True, slots=True)
class Evidence:
    """A part that speaks for an object."""

    part_id: UUID
    title: str
    snippet: str
    score: float
    position: int | None


@dataclass(frozen=True, slots=True)
class Result:
    """An object of an answer, without its content; `best` is the hit that gave it its score, with the legs' shares."""

    object: Object
    score: float
    best: Hit
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a search, best first.

    Args: degraded: legs that were out of reach and left out; truncated: whether a limit may have hidden something.
    """

    results: tuple[Result, ...] = ()
    degraded: tuple[str, ...] = ()
    truncated: bool = False


class BrainMemory(Walks):
    """Reads and writes of the knowledge base in this process; the pool must be open.

    Args: graph: where edges are walked; embedder: makes the embedder of queries, None when there is none; patience: how
        long the background work of a write is retried.
    """

    def __init__(self, graph: GraphPort, embedder: Callable[[], Embedder | None], patience: Patience) -> None:
        super().__init__()
        self._graph = graph
        self._embedder = embedder
        self._patience = patience

    @property
    def graph(self) -> GraphPort:
        """Where edges are walked."""
        return self._graph

    def put(self, new: NewOperation, wanted: Put) -> Written:
        """Store objects durably. The caller publishes the messages.

        Raises: RejectedError as `brain_write.put` does; TransientError when PostgreSQL cannot be reached.
        """
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
        with connection() as conn:
            return brain_write.soft_delete(
                conn, new, place, ids, self._patience, expected_revision=expected_revision, now=datetime.now(UTC)
            )

    def link(self, new: NewOperation, place: Place, link: NewLink) -> Written:
        """Write an edge. Raises: as `brain_edges.link`."""
        with connection() as conn:
            operation, fresh = operations.create(conn, new)
            if not fresh:
                return Written(operation.id, new=False)
            key = brain_edges.link(conn, place.namespace_id, link)
            return brain_write.begin_mirror(conn, new, [key], self._patience)

    def unlink(self, new: NewOperation, place: Place, key: EdgeKey) -> Written:
        """Take an edge out. Raises: as `brain_edges.unlink`."""
        with connection() as conn:
            operation, fresh = operations.create(conn, new)
            if not fresh:
                return Written(operation.id, new=False)
            edge = brain_edges.unlink(conn, place.namespace_id, key)
            return brain_write.begin_mirror(conn, new, [edge], self._patience)

    def read(self, namespace: Namespace, object_id: UUID) -> Object:
        """One object with its content. Raises: RejectedError when the namespace has no such object."""
        place = namespaces.find(namespace)
        found: dict[UUID, Object] = {}
        if place is not None:
            with connection() as conn:
                found = brain_read.by_id(conn, place.namespace_id, [object_id], content=True)
        if object_id not in found:
            raise RejectedError(f"no object {object_id} in this namespace")
        return found[object_id]

    def parts(self, namespace: Namespace, object_id: UUID, limit: int = 1_000) -> list[Object]:
        """The parts of an object with their content, in order."""
        place = namespaces.find(namespace)
        if place is None:
            return []
        with connection() as conn:
            return brain_read.parts(conn, place.namespace_id, object_id, limit, content=True)

    def search(
        self,
        namespace: Namespace,
        query: str,
        *,
        limit: int = 10,
        filters: Filters | None = None,
        fusion: Fusion = Fusion.SCORES,
        decay: Decay | None = None,
        now: datetime | None = None,
    ) -> Answer:
        """The objects of a namespace that match a query best, by their words and by what they are about.

        A part stands for its object and is kept as evidence. Nothing is written.
        Args: limit: 1 to 200.
        Raises: RejectedError for a blank query or another limit; TransientError when PostgreSQL cannot be reached.
        """
        if not query.strip():
            raise RejectedError("query: must not be blank")
        if not 1 <= limit <= _MOST:
            raise RejectedError(f"limit: from 1 to {_MOST}")
        place, within = namespaces.find(namespace), filters or Filters()
        if place is None or within.nothing:
            return Answer()
        near, degraded = self._near(query)
        with connection() as conn:
            asked = _Asked(conn, place.namespace_id, text.terms(query, _QUERY_TERMS), near, within)
            legs, hits = _enough(asked, limit, fusion)
            aged = _aged(hits, decay or Decay(), now or datetime.now(UTC))
            results = _results(conn, place.namespace_id, promote(aged)[:limit])
        return Answer(results, degraded, truncated=any(leg.truncated for leg in legs))

    def _near(self, query: str) -> tuple[Near | None, tuple[str, ...]]:
        """The query as a vector; a model that is away or refuses it degrades the answer to words."""
        try:
            embedder = self._embedder()
            if embedder is None:
                return None, ()
            return Near(embedder.model, embedder.embed([query])[0]), ()
        except (TransientError, RejectedError):
            return None, (_VECTOR,)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A query on its way through the legs."""

    conn: Connection
    namespace_id: int
    terms: Sequence[int]
    near: Near | None
    filters: Filters


def _enough(asked: _Asked, limit: int, fusion: Fusion) -> tuple[list[Leg], list[Hit]]:
    """Ask the legs for more until their hits stand for enough objects: a document may have many parts."""
    small = asked.filters.narrow and brain_search.is_small(asked.conn, asked.namespace_id, asked.filters)
    k = max(_CANDIDATES, _PER_WANTED * limit)
    while True:
        legs = _legs(asked, k, small=small)
        hits = _hits(legs, fusion)
        objects = {hit.parent_id or hit.id for hit in hits}
        full = [name for name, leg in legs.items() if len(leg.found) >= k]
        if len(objects) >= limit or not full or k >= _MOST_CANDIDATES:
            short = len(objects) < limit
            return [
                replace(leg, truncated=leg.truncated or (short and name in full)) for name, leg in legs.items()
            ], hits
        k *= _PER_WANTED


def _legs(asked: _Asked, k: int, *, small: bool) -> dict[str, Leg]:
    """What each leg proposes, and what it says of the proposals of the other."""
    conn, namespace_id, near = asked.conn, asked.namespace_id, asked.near
    meaning = Leg() if near is None else brain_search.vectors(conn, namespace_id, near, asked.filters, k)
    also = [row.key for row in meaning.found]
    words = brain_search.lexical(conn, namespace_id, asked.terms, asked.filters, k, small=small, also=also)
    if near is None:
        return {_LEXICAL: words}
    more = [row.key for row in words.found if row.key not in set(also)]
    others = brain_search.likeness(conn, namespace_id, near, more) if more else ()
    return {_LEXICAL: words, _VECTOR: replace(meaning, others=others)}


def _hits(legs: Mapping[str, Leg], fusion: Fusion) -> list[Hit]:
    """Join the legs. For sums every leg scores what another one proposed; ranks are of what a leg proposed itself."""
    shown = {name: (*leg.found, *(leg.others if fusion is Fusion.SCORES else ())) for name, leg in legs.items()}
    rows = {row.key: row for found in shown.values() for row in found}
    ordered = {name: sorted(found, key=lambda row: (-row.score, row.key)) for name, found in shown.items()}
    fused = fuse({name: [(row.key, row.score) for row in found] for name, found in ordered.items()}, fusion)
    return [
        Hit(row.id, row.parent_id, one.score, row.updated_at, one.shares) for one in fused for row in (rows[one.key],)
    ]


def _aged(hits: Sequence[Hit], decay: Decay, now: datetime) -> list[Hit]:
    return [replace(hit, score=decay.apply(hit.score, hit.updated_at, now)) for hit in hits]


def _results(conn: Connection, namespace_id: int, promoted: Sequence[Promoted]) -> tuple[Result, ...]:
    """Read objects and evidence again under the namespace; what is gone meanwhile is left out."""
    objects = brain_read.by_id(conn, namespace_id, [p.id for p in promoted])
    ids = [hit.id for p in promoted for hit in p.evidence]
    said = brain_read.snippets(conn, namespace_id, ids, 2 * SNIPPET_CHARS) if ids else {}
    return tuple(
        Result(
            objects[p.id],
            p.score,
            p.best,
            tuple(
                Evidence(hit.id, said[hit.id][0], snippet(said[hit.id][1]), hit.score, said[hit.id][2])
                for hit in p.evidence
                if hit.id in said
            ),
        )
        for p in promoted
        if p.id in objects
    )
