"""The searches of the engine: legs asked, joined, aged, promoted, reranked, and kept for later pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from uuid_utils.compat import uuid7

from isotherm.pipeline import fusion as joining
from isotherm.pipeline import text
from isotherm.pipeline.brain.answers import Answer, Evidence, Reranker, Result, reranked, with_page
from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.graph_rank import Walked
from isotherm.pipeline.brain.legs import ALIKE, EQUAL, LEXICAL, PER_WANTED, QUERY_TERMS, VECTOR
from isotherm.pipeline.brain.legs import ranked as ranked_leg
from isotherm.pipeline.brain.objects import canonical_uuid, namespace_uuid
from isotherm.pipeline.brain.promotion import Hit, Promoted, promote
from isotherm.pipeline.brain.result_sets import Kept, KeptPart, ResultSet, SearchContext, cursor
from isotherm.pipeline.brain.snippets import READ_CHARS, snippet_around
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.fusion import Fusion
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.ports import Embedder
from isotherm.pipeline.tier import newest
from isotherm.storage import brain_pages
from isotherm.storage.brain_graph_leg import Walk, walked
from isotherm.storage.brain_hints import Hinter, Hints
from isotherm.storage.brain_newer import Look, newest_first, renewed_by
from isotherm.storage.postgres import brain_exact, brain_read, brain_search
from isotherm.storage.postgres.brain_read import Shown
from isotherm.storage.postgres.brain_search import Found, Leg, Near
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.pool import Connection, connection, reading, statement

# How many candidates when those for each object wanted stand for too few.
_MOST_CANDIDATES = 4_000
# What a hit has that has nothing in common with the query: enough to keep its place, and nothing beside any other score.
_LEAST = 1e-9
_SAME, _RERANK = "equal", "rerank"

Legs = Mapping[str, Leg]


@dataclass(frozen=True, slots=True)
class Asked:
    """A search on its way.

    Args: verb: which one, for the snapshot; limit: objects of the page; context: keeps the rest, None when nobody asks;
        graph: whether to walk from what was found; newest_first: whether newer objects come before what they renew; legs: that
        are asked.
    """

    namespace: Namespace
    place: Place
    verb: str
    query: str
    limit: int
    filters: Filters
    fusion: Fusion
    decay: Decay
    now: datetime
    context: SearchContext | None = None
    graph: bool = False
    newest_first: bool = False
    legs: frozenset[str] = frozenset({LEXICAL, VECTOR})


@dataclass(frozen=True, slots=True)
class Page:
    """An answer, and how many candidates each leg gave."""

    answer: Answer
    legs: Mapping[str, int]


class Finder:
    """Searches the namespace's rows. Args: embedder: makes the embedder of queries; reranker: None keeps the order."""

    def __init__(
        self, config: EngineConfig, embedder: Callable[[], Embedder | None], reranker: Reranker | None
    ) -> None:
        self._config, self._embedder, self._reranker = config, embedder, reranker

    def search(self, asked: Asked, hinter: Hinter | None = None) -> Page:
        """By words and by meaning. Args: hinter: asks the graph for more candidates.

        Raises: TransientError when PostgreSQL is away; the model's and the graph's too, if so configured.
        """
        near, degraded = self._near(asked.query) if VECTOR in asked.legs else (None, ())
        k = max(self._config.candidate_k, 3 * asked.limit)
        hints = Hints() if hinter is None else hinter.objects(asked.query, near, k, asked.filters.kinds)
        degraded += hints.degraded
        terms = text.terms(asked.query, QUERY_TERMS) if LEXICAL in asked.legs else []
        with _reading(asked.filters) as conn:
            ns, filters = asked.place.namespace_id, asked.filters
            hinted = brain_search.among(conn, ns, filters, hints.objects) if hints.objects else []

            def legs(k: int) -> dict[str, Leg]:
                words, meaning = brain_search.legs(conn, ns, terms, near, filters, k, hinted=hinted)
                return {LEXICAL: words} if near is None else {LEXICAL: words, VECTOR: meaning}

            found, hits = self._enough(asked, legs, len(terms))
            promoted, told = self._walked(conn, asked, promote(hits, self._config.evidence_n))
        page = self._answer(asked, found, promoted, degraded)
        return replace(page, answer=replace(page.answer, walked=told))

    def find_exact(self, asked: Asked, fields: Sequence[str]) -> Page:
        """What is called just so first, then what is called nearly so or has the words."""
        query, terms = asked.query.strip(), text.terms(asked.query, QUERY_TERMS)
        with connection() as conn:
            ns, filters = asked.place.namespace_id, asked.filters
            k = self._k(asked.limit)
            equal = brain_exact.equal(conn, ns, query, filters, k, fields=fields)
            as_id = canonical_uuid(query)
            if as_id is not None:  # other ids are not nearly right
                named = [row for row in equal if row.id == as_id] or equal
                legs = {_SAME: Leg(tuple(named))}
                hits = [Hit(row.id, row.parent_id, 1.0, row.updated_at) for row in named]
            else:
                small = filters.narrow and brain_search.is_small(conn, ns, filters)
                legs = {
                    LEXICAL: brain_search.lexical(conn, ns, terms, filters, k, small=small),
                    ALIKE: brain_exact.alike(conn, ns, query, filters, k),
                }
                hits = _raised(_hits(legs, asked, self._config.rrf_k, len(terms)), equal)
                legs[_SAME] = Leg(equal)
        return self._answer(asked, legs, promote(hits, self._config.evidence_n), ())

    def shown(self, place: Place, query: str, kept: Sequence[Kept]) -> tuple[Result, ...]:
        """Kept objects as results; what is gone meanwhile is left out."""
        with reading() as conn:
            return _results(conn, place.namespace_id, query, kept, {})

    def _near(self, query: str) -> tuple[Near | None, tuple[str, ...]]:
        """The query as a vector; a model that is away or refuses it degrades the answer to words."""
        try:
            embedder = self._embedder()
            if embedder is None:
                return None, ()
            return Near(embedder.model, embedder.embed([query])[0]), ()
        except (TransientError, RejectedError):
            if self._config.fail_on_embedder_error:
                raise
            return None, (VECTOR,)

    def _k(self, limit: int) -> int:
        return max(self._config.candidate_k, PER_WANTED * limit)

    def _enough(
        self, asked: Asked, ask: Callable[[int], dict[str, Leg]], words: int
    ) -> tuple[dict[str, Leg], list[Hit]]:
        """Ask the legs for more until their hits stand for enough objects: a document may have many parts."""
        k = self._k(asked.limit)
        while True:
            legs = ask(k)
            hits = _hits(legs, asked, self._config.rrf_k, words)
            objects = {hit.parent_id or hit.id for hit in hits}
            full = [name for name, leg in legs.items() if len(leg.found) >= k]
            if len(objects) >= asked.limit or not full or k >= _MOST_CANDIDATES:
                short = len(objects) < asked.limit
                marked = {
                    name: replace(leg, truncated=leg.truncated or (short and name in full))
                    for name, leg in legs.items()
                }
                return marked, hits
            k *= PER_WANTED

    def _walked(self, conn: Connection, asked: Asked, promoted: list[Promoted]) -> tuple[list[Promoted], Walked | None]:
        if not asked.graph:
            return promoted, None
        most = None if asked.context is not None else self._most(asked)
        walk = Walk(asked.place.namespace_id, asked.query, asked.filters, asked.decay, asked.now, most)
        return walked(conn, walk, promoted)

    def _answer(self, asked: Asked, legs: Legs, promoted: Sequence[Promoted], degraded: tuple[str, ...]) -> Page:
        cut = len(promoted) > self._config.max_result_set
        first = promoted[: self._most(asked)]
        kept, missing = self._reranked(asked, [_kept(each) for each in first])
        truncated = cut or any(leg.truncated for leg in legs.values())
        best = {each.id: each.best for each in first}
        with reading() as conn:
            if asked.newest_first and not any(leg.timeless for leg in legs.values()):
                kept, shown = self._newest_first(conn, asked, kept, best)
            else:
                shown = _results(conn, asked.place.namespace_id, asked.query, kept[: asked.limit], best)
        answer = Answer(shown, (*degraded, *missing), truncated)
        return Page(_kept_for_later(asked, kept, answer), {name: len(leg.found) for name, leg in legs.items()})

    def _most(self, asked: Asked) -> int:
        """How many objects are looked at again: all that later pages may have, or else what may come to this one."""
        most = self._config.max_result_set
        if asked.context is not None:
            return most
        return min(most, max(asked.limit + 1, newest.LOOKED_AT, self._config.rerank_n if self._reranker else 0))

    def _newest_first(
        self, conn: Connection, asked: Asked, kept: list[Kept], best: Mapping[UUID, Hit]
    ) -> tuple[list[Kept], tuple[Result, ...]]:
        """All in the order in which newer objects come before what they renew, and those of the page."""
        ns, most = asked.place.namespace_id, max(asked.limit, newest.LOOKED_AT)
        # A reranker has the last word over the order.
        look = Look(ns, asked.query, asked.filters, kept[:most], best, not self._reranker)
        read = _shown(conn, ns, look.kept[: asked.limit], look.asked())
        looked, moved = newest_first(conn, look, read.also)
        page = looked[: asked.limit]
        if moved and any(each.id not in read.objects for each in page):
            read = _shown(conn, ns, page)
        kept = [*looked, *kept[most:]]
        return kept, _made(conn, ns, asked.query, page, {**best, **moved}, read)

    def _reranked(self, asked: Asked, kept: list[Kept]) -> tuple[list[Kept], tuple[str, ...]]:
        """The best objects in the order of the reranker; it may leave some out, and the rest follows as it was."""
        if not self._reranker or not kept:
            return kept, ()
        top = kept[: self._config.rerank_n]
        with reading() as conn:
            objects = brain_read.by_id(conn, asked.place.namespace_id, [each.id for each in top], content=True)
        given = [objects[each.id] for each in top if each.id in objects]
        try:
            order = reranked([each.id for each in given], self._reranker.rerank(asked.query, given))
        except TransientError:
            return kept, (_RERANK,)
        by_id = {each.id: each for each in top}
        return [by_id[i] for i in order] + kept[self._config.rerank_n :], ()


def _reading(filters: Filters) -> AbstractContextManager[Connection]:
    """What filters leave decides on the plan, and nothing else does."""
    return statement() if filters.narrow else reading()


def _kept_for_later(asked: Asked, kept: Sequence[Kept], answer: Answer) -> Answer:
    """Keep a search for later pages, when the caller keeps such."""
    more = len(kept) > asked.limit
    if asked.context is None:
        return with_page(answer, None, None, has_more=more)
    result_set = ResultSet(
        uuid7(),
        namespace_uuid(asked.namespace),
        asked.verb,
        asked.query,
        tuple(kept),
        asked.now,
        answer.degraded,
        answer.truncated,
    )
    asked.context.put(result_set)
    following = cursor(result_set.id, asked.limit) if more else None
    return with_page(answer, result_set.id, following, has_more=more)


def _hits(legs: Legs, asked: Asked, rrf_k: int, words: int) -> list[Hit]:
    """Join the legs, then let age take its part.

    For sums every leg scores what another one proposed; ranks are of what a leg proposed itself.

    Args: words: of the query.
    """
    shown = {name: (*leg.found, *(leg.others if asked.fusion is Fusion.SCORES else ())) for name, leg in legs.items()}
    rows = {row.key: row for found in shown.values() for row in found}
    ordered = {name: sorted(found, key=lambda row: (-row.score, row.key)) for name, found in shown.items()}
    ranked = {name: ranked_leg(name, [(row.key, row.score) for row in found], words) for name, found in ordered.items()}
    fused = joining.fuse(ranked, asked.fusion, rrf_k=rrf_k)
    aged = asked.decay.apply
    return [
        Hit(
            row.id,
            row.parent_id,
            aged(one.score or _LEAST * (1 - place / len(fused)), row.updated_at, asked.now),
            row.updated_at,
            one.shares,
        )
        for place, one in enumerate(fused)
        for row in (rows[one.key],)
    ]


def _raised(hits: Sequence[Hit], equal: Sequence[Found]) -> list[Hit]:
    """Hits that are called just so come first, found by the legs or not."""
    called = {row.id for row in equal}
    raised = [hit._replace(score=hit.score + EQUAL) if hit.id in called else hit for hit in hits]
    known = {hit.id for hit in hits}
    return raised + [Hit(row.id, row.parent_id, EQUAL, row.updated_at) for row in equal if row.id not in known]


def _kept(each: Promoted) -> Kept:
    return Kept(each.id, each.score, tuple(KeptPart(hit.id, hit.score) for hit in each.evidence))


def _results(
    conn: Connection, ns: int, query: str, kept: Sequence[Kept], best: Mapping[UUID, Hit]
) -> tuple[Result, ...]:
    """Read objects and evidence again under the namespace; what is gone meanwhile is left out."""
    return _made(conn, ns, query, kept, best, _shown(conn, ns, kept))


def _shown(
    conn: Connection, ns: int, kept: Sequence[Kept], also: Sequence[tuple[str, Mapping[str, Any]]] = ()
) -> Shown:
    ids = [part.id for each in kept for part in each.evidence]
    return brain_read.shown(conn, ns, [each.id for each in kept], ids, READ_CHARS, also)


def _made(
    conn: Connection, ns: int, query: str, kept: Sequence[Kept], best: Mapping[UUID, Hit], read: Shown
) -> tuple[Result, ...]:
    led = brain_pages.relations(conn, ns, kept)
    words = text.words(query)[:QUERY_TERMS]
    return tuple(
        Result(
            read.objects[each.id],
            each.score or 0.0,
            best.get(each.id),
            _evidence(each, read.parts, words),
            led[each.id],
            brain_pages.depth(each),
            renewed_by(each),
        )
        for each in kept
        if each.id in read.objects and each.id in led
    )


def _evidence(each: Kept, seen: Mapping[UUID, brain_read.Glimpse], words: Sequence[str]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(part.id, one.title, snippet_around(one.text, words), part.score, one.position, dict(one.properties))
        for part in each.evidence
        if (one := seen.get(part.id)) is not None
    )
