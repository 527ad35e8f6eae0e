"""The knowledge base in this process's memory: for tests, and for hosts that run in one process without a server.

It decides by the same rules as the engine over PostgreSQL, and finds by the same words and scores; what it keeps is gone
when the process ends. Edges are kept by `isotherm.storage.graph.memory.MemoryGraph`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import count
from uuid import UUID

from isotherm.pipeline import text
from isotherm.pipeline.brain import memory_search
from isotherm.pipeline.brain.answers import Answer, Evidence, Result
from isotherm.pipeline.brain.catalog import KindCatalog, plain_times
from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.errors import ObjectNotFoundError, QueryRequiredError, RevisionConflictError
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.index_text import text_of
from isotherm.pipeline.brain.legs import ALIKE, EQUAL, LEXICAL, PER_WANTED, QUERY_TERMS, VECTOR
from isotherm.pipeline.brain.long_texts import embed_whole
from isotherm.pipeline.brain.matching import matches
from isotherm.pipeline.brain.memory_search import Indexed, Scores, Vector
from isotherm.pipeline.brain.objects import PARTS, PARTS_MAX, NewObject, Object
from isotherm.pipeline.brain.promotion import Hit, promote
from isotherm.pipeline.brain.snippets import READ_CHARS, snippet_around
from isotherm.pipeline.brain.writing import Change, StoredRow, Words, plan_put, retitled
from isotherm.pipeline.clean import whole_limit
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.fusion import Fusion
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.ports import Embedder


@dataclass(slots=True)
class _Held:
    """A row, the words it is found by, its vector, and its times."""

    row: StoredRow
    counts: Mapping[int, int]
    created_at: datetime
    updated_at: datetime
    vector: Vector | None = None

    def object(self, *, content: bool = False) -> Object:
        row = self.row
        return Object(
            id=row.id, kind=row.kind, title=row.title, summary=row.summary, content=row.content if content else None,
            content_type=row.content_type, properties=row.properties, parent_id=row.parent_id, position=row.position,
            revision=row.revision, vector_state=row.vector_state, created_at=self.created_at, updated_at=self.updated_at,
            source_time=row.source_time,
        )  # fmt: skip


_Shelf = dict[UUID, _Held]


@dataclass(frozen=True, slots=True)
class Shelved:
    """What a put did: ids in the order given, objects and parts that changed, parts that were taken out."""

    ids: tuple[UUID, ...]
    written: int
    removed: int


class MemoryObjects:
    """Objects and parts by namespace, with the searches over them. Threads may share it.

    Args: embedder: makes vectors while objects are put, None leaves them to their words; config: the knobs of searches.
    """

    def __init__(self, *, embedder: Embedder | None = None, config: EngineConfig | None = None) -> None:
        self.catalog = KindCatalog()
        self.config = config or EngineConfig()
        self._embedder = embedder
        self._lock = threading.Lock()
        self._shelves: dict[bytes, _Shelf] = {}
        self._keys = count(1)

    def put(self, namespace: Namespace, objects: Sequence[NewObject], *, replace_parts: bool = False) -> Shelved:
        """Store objects and parts, all or none; of two with one id the last one counts.

        A model that is away leaves vectors to `embed_pending`; the objects are found by their words.

        Args: replace_parts: parts of the given objects that are not given too are taken out.
        Raises: RejectedError as `isotherm.pipeline.brain.writing.plan_put`; KindError for what does not fit its kind.
        """
        namespace.check()
        cleaned = [self.catalog.validate(plain_times(each).cleaned()) for each in objects]
        new = list({each.id: each for each in cleaned}.values())
        with self._lock:
            shelf = self._shelves.setdefault(namespace.key, {})
            rows = {key: held.row for key, held in shelf.items()}
            of = {each.id for each in new} if replace_parts else set(retitled(new, rows))
            parts = [row for row in rows.values() if row.parent_id in of and not row.deleted]
            plan = plan_put(new, rows, parts, replace_parts=replace_parts)
            now = self.config.now()
            for change in plan.changes:
                shelf[change.new.id] = self._changed(change, shelf.get(change.new.id), now)
            for again in plan.reworded:
                held = shelf[again.stored.id]
                held.row, held.counts, held.vector = self._reworded(held.row, again.words), again.words.counts, None
            _take_out(shelf, [row.id for row in plan.removed], now)
        with suppress(TransientError):
            self.embed_pending(namespace)
        return Shelved(tuple(each.id for each in cleaned), len(plan.changes), len(plan.removed))

    def embed_pending(self, namespace: Namespace) -> int:
        """Make vectors that are missing. Returns: how many were made. Raises: TransientError when the model is away."""
        if self._embedder is None:
            return 0
        with self._lock:
            shelf = self._shelves.get(namespace.key, {})
            titles = {key: held.row.title for key, held in shelf.items()}
            waiting = [
                held.row for held in shelf.values() if held.row.vector_state == "pending" and not held.row.deleted
            ]
        texts = [text_of(row, titles.get(row.parent_id) if row.parent_id else None) for row in waiting]
        if not texts:
            return 0
        made = embed_whole(self._embedder, texts)
        with self._lock:
            for row, vector in zip(waiting, made, strict=True):
                held = shelf[row.id]
                if held.row.index_sha256 == row.index_sha256:  # else it has other words by now
                    held.row, held.vector = replace(held.row, vector_state="done"), vector
        return len(waiting)

    def read(self, namespace: Namespace, object_id: UUID) -> Object:
        """One object with its content. Raises: ObjectNotFoundError."""
        with self._lock:
            return self._live(namespace, object_id).object(content=True)

    def list_children(self, namespace: Namespace, parent_id: UUID, limit: int = PARTS) -> list[Object]:
        """The parts of an object without their content: by position, those without one last, then by id.

        Raises: ObjectNotFoundError; RejectedError for a limit out of bounds.
        """
        whole_limit(limit, PARTS_MAX)
        with self._lock:
            parent = self._live(namespace, parent_id).row.id
            parts = [each.object() for each in self._shelf(namespace) if each.row.parent_id == parent]
        ordered = sorted(parts, key=lambda each: (each.position is None, each.position or 0, each.id.bytes))
        return ordered[:limit]

    def soft_delete(self, namespace: Namespace, object_id: UUID, *, expected_revision: int | None = None) -> int:
        """Take an object and its parts out of every search; putting it again brings it back.

        Returns: how many were taken out. Raises: ObjectNotFoundError, RevisionConflictError.
        """
        with self._lock:
            row = self._live(namespace, object_id).row
            if expected_revision is not None and row.revision != expected_revision:
                raise RevisionConflictError(f"object {row.id} has revision {row.revision}, not {expected_revision}")
            gone = [row.id, *(each.row.id for each in self._shelf(namespace) if each.row.parent_id == row.id)]
            _take_out(self._shelves[namespace.key], gone, self.config.now())
            return len(gone)

    def search(
        self,
        namespace: Namespace,
        query: str,
        *,
        limit: int | None = None,
        filters: Filters | None = None,
        fusion: Fusion | None = None,
    ) -> Answer:
        """The objects that match a query best, by their words and by what they are about; a part stands for its object.

        Raises: QueryRequiredError, FilterError; RejectedError for a limit out of bounds.
        """
        most, within = self.config.limit(limit), self._filters(query, filters)
        degraded: tuple[str, ...] = ()
        vector: Vector | None = None
        try:
            vector = None if self._embedder is None else self._embedder.embed([query])[0]
        except (TransientError, RejectedError):
            degraded = (VECTOR,)
        with self._lock:
            every = self._indexed(namespace)
            inside = self._inside(namespace, every, within)
            legs = {LEXICAL: memory_search.lexical(query, every, inside)}
            legs |= {} if vector is None else {VECTOR: memory_search.nearest(vector, inside)}
            return replace(
                self._answer(namespace, query, most, self._hits(query, legs, inside, fusion, most)), degraded=degraded
            )

    def find_exact(
        self, namespace: Namespace, query: str, *, limit: int | None = None, filters: Filters | None = None
    ) -> Answer:
        """What is called just so first (a title, an id, a declared property), then what is called nearly so.

        Raises: as `search`.
        """
        most, within = self.config.limit(limit), self._filters(query, filters)
        fields = {each.name for spec in self.catalog.all() for each in spec.fields}
        with self._lock:
            every = self._indexed(namespace)
            inside = self._inside(namespace, every, within)
            called = {each.object.id: each for each in memory_search.equal(query, inside, sorted(fields))}
            legs = {LEXICAL: memory_search.lexical(query, every, inside), ALIKE: memory_search.alike(query, inside)}
            hits = {hit.id: hit for hit in self._hits(query, legs, inside, None, most)}
            for key, each in called.items():
                known = hits.get(key) or Hit(key, each.object.parent_id, 0.0, each.as_of)
                hits[key] = known._replace(score=known.score + EQUAL)
            return self._answer(namespace, query, most, hits.values())

    def _changed(self, change: Change, held: _Held | None, now: datetime) -> _Held:
        new, words = change.new, change.words
        same_words = held is not None and not change.reworded
        row = StoredRow(
            key=next(self._keys) if held is None else held.row.key, id=new.id, kind=new.kind, title=new.title,
            summary=new.summary, content=new.content, content_type=new.content_type, properties=new.properties,
            parent_id=new.parent_id, position=new.position, revision=1 if held is None else held.row.revision + 1,
            index_sha256=words.sha256, terms=sorted(words.counts), length=words.length,
            vector_state=held.row.vector_state if held is not None and same_words else self._unembedded,
            deleted=False, source_time=new.source_time,
        )  # fmt: skip
        created = now if held is None else held.created_at
        return _Held(row, words.counts, created, now, held.vector if held is not None and same_words else None)

    def _reworded(self, row: StoredRow, words: Words) -> StoredRow:
        return replace(
            row,
            index_sha256=words.sha256,
            terms=sorted(words.counts),
            length=words.length,
            vector_state=self._unembedded,
        )

    @property
    def _unembedded(self) -> str:
        return "none" if self._embedder is None else "pending"

    def _shelf(self, namespace: Namespace) -> list[_Held]:
        return [held for held in self._shelves.get(namespace.key, {}).values() if not held.row.deleted]

    def _live(self, namespace: Namespace, object_id: UUID) -> _Held:
        held = self._shelves.get(namespace.key, {}).get(object_id)
        if held is None or held.row.deleted:
            raise ObjectNotFoundError(f"no object {object_id} in this namespace")
        return held

    def _filters(self, query: str, filters: Filters | None) -> Filters:
        if not query.strip():
            raise QueryRequiredError("query: must not be blank")
        if self.catalog.empty:
            return filters or Filters()
        self.catalog.freeze()
        return (filters or Filters()).against(self.catalog)

    def _indexed(self, namespace: Namespace) -> list[Indexed]:
        return [Indexed(h.row.key, h.object(content=True), h.counts, h.vector) for h in self._shelf(namespace)]

    def _inside(self, namespace: Namespace, every: Iterable[Indexed], filters: Filters) -> list[Indexed]:
        shelf = self._shelves.get(namespace.key, {})
        found = []
        for each in every:
            above = shelf.get(each.object.parent_id) if each.object.parent_id else None
            if matches(filters, each.object, None if above is None else above.object()):
                found.append(each)
        return found

    def _hits(
        self, query: str, legs: Mapping[str, Scores], inside: Iterable[Indexed], fusion: Fusion | None, most: int
    ) -> list[Hit]:
        config, rows = self.config, {each.object.id: each for each in inside}
        k, words = max(config.candidate_k, PER_WANTED * most), len(text.terms(query, QUERY_TERMS))
        return memory_search.joined(
            legs, rows, k, words, fusion or config.fusion, config.rrf_k, config.decay, config.now()
        )

    def _answer(self, namespace: Namespace, query: str, most: int, hits: Iterable[Hit]) -> Answer:
        promoted = promote(hits, self.config.evidence_n)
        shelf, words = self._shelves.get(namespace.key, {}), text.words(query)[:QUERY_TERMS]

        def evidence(hit: Hit) -> Evidence:
            row = shelf[hit.id].row
            shown = snippet_around(row.content[:READ_CHARS], words)
            return Evidence(row.id, row.title, shown, hit.score, row.position, dict(row.properties))

        results = [
            Result(shelf[each.id].object(), each.score, each.best, tuple(map(evidence, each.evidence)))
            for each in promoted[:most]
        ]
        return Answer(tuple(results), has_more=len(promoted) > most)


def _take_out(shelf: _Shelf, ids: Iterable[UUID], now: datetime) -> None:
    for key in ids:
        held = shelf[key]
        row = replace(held.row, deleted=True, terms=[], length=0, revision=held.row.revision + 1)
        shelf[key] = _Held(row, {}, held.created_at, now)
