"""What a walk adds to a search: the whole of it, against the plain recipe of two queries and reciprocal ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import psycopg
from arena import Arena
from brain_corpus import Built, Given, document_id, title_of
from brain_floors import Legs
from measure import Line, alternate, timed
from numpy.typing import NDArray

from isotherm.pipeline.brain import mentions
from isotherm.storage.models import factory
from isotherm.storage.opened import Storage
from isotherm.storage.postgres import namespaces

_EDGES = 6  # of each document; a hundredth of the documents get a third of them
_RRF_K = 60
_SEED = 7

_NAMES = "COPY brain_names (namespace_id, name, object_key, object_id, anchor, terms, linked) FROM STDIN"
_LINK = """
INSERT INTO brain_edges (namespace_id, source, target, label, note, status, role, mentions)
SELECT %s, u.source, u.target, 'mentions', '', '', '', 1 + u.n %% 3
FROM unnest(%s::uuid[], %s::uuid[]) WITH ORDINALITY AS u (source, target, n) ON CONFLICT DO NOTHING"""


@dataclass(frozen=True, slots=True)
class Asked:
    """Questions with their vectors; every other one names a document."""

    queries: Mapping[str, NDArray[np.float32]]
    plain: Mapping[str, str]


def graph_searching(
    ground: Arena, opened: Storage, legs: Legs, built: Built, *, rounds: int, gated: bool
) -> list[Line]:
    """Searches that walk against both legs one after the other, joined by ranks; and what the walk alone costs."""
    documents = _linked(ground, built)
    asked = _asked(built, documents, 60)
    factory.use_embedder(opened.settings, Given(dict(asked.queries)))

    def plain() -> list[float]:
        return [timed(lambda q=q, v=v: ranked(legs, asked.plain[q], v)) for q, v in asked.queries.items()]  # type: ignore[misc]

    def search(*, graph: bool) -> list[float]:
        return [timed(lambda q=q: opened.brain.search(built.namespace, q, graph=graph)) for q in asked.queries]  # type: ignore[misc]

    size = f"{len(built.keys):,} parts"
    whole = alternate(plain, lambda: search(graph=True), rounds)
    added = alternate(lambda: search(graph=False), lambda: search(graph=True), rounds)
    more = added.line("", "", "p50")
    walked = [told for q in asked.queries if (told := opened.brain.search(built.namespace, q, graph=True).walked)]
    note = f"{rounds} rounds of {len(asked.queries)} questions of 6 words, every other one names a document"
    return [
        whole.line("brain", f"{size}: search with graph / two queries and RRF", "p50", gate=1.8 if gated else None,
                   note=f"{note}; floor: BM25 in one SQL, 40 nearest by HNSW (ef 100), ranks joined, 10 rows by key"),
        whole.line("brain", "the same, p95", "p95", gate=2.5 if gated else None),
        Line("brain", f"{size}: what the walk adds", more.ours - (more.floor or 0), "ms", "lower",
             note=f"{documents:,} documents with {_EDGES} edges each; edges followed: median "
                  f"{np.median([told.edges for told in walked]):.0f}, most {max(told.edges for told in walked)}"),
    ]  # fmt: skip


def ranked(legs: Legs, query: str, vector: NDArray[np.float32]) -> list[int]:
    """The usual recipe: both legs, one after the other, joined by reciprocal ranks, and the first ten rows."""
    scores: dict[int, float] = {}
    for found in (legs.bm25(query), legs.nearest(vector)):
        for rank, key in enumerate(found):
            scores[key] = scores.get(key, 0.0) + 1 / (_RRF_K + rank + 1)
    best = sorted(scores, key=lambda key: -scores[key])[:10]
    legs.fetch(best)
    return best


def _linked(ground: Arena, built: Built) -> int:
    """Give documents their names, and edges as texts that mention each other would."""
    rng = np.random.default_rng(_SEED)
    count = len(built.keys) // 10
    ns = namespaces.resolve(built.namespace).namespace_id
    ids = [document_id(built.namespace, n) for n in range(count)]
    popular = max(count // 100, 1)
    sources = np.repeat(np.arange(count), _EDGES)
    targets = np.where(rng.random(len(sources)) < 1 / 3, rng.integers(popular, size=len(sources)),
                       rng.integers(count, size=len(sources)))  # fmt: skip
    pairs = [(ids[s], ids[t]) for s, t in zip(sources.tolist(), targets.tolist(), strict=True) if s != t]
    with psycopg.connect(ground.dsn, autocommit=True) as conn:
        with conn.cursor().copy(_NAMES) as copy:
            for n in range(count):
                for name in mentions.names_of(title_of(n), {}):
                    terms = mentions.terms_of(name)
                    copy.write_row((ns, name, n + 1, ids[n], terms[0], terms, True))
        conn.execute(_LINK, (ns, [one for one, _ in pairs], [other for _, other in pairs]))
    ground.tidy("brain_names", "brain_edges")
    return count


def _asked(built: Built, documents: int, count: int) -> Asked:
    rng = np.random.default_rng(_SEED + 1)
    queries: dict[str, NDArray[np.float32]] = {}
    plain: dict[str, str] = {}
    for number, (words, vector) in enumerate(built.queries(count).items()):
        said = f"{words} {title_of(int(rng.integers(documents)))}" if number % 2 else words
        queries[said], plain[said] = vector, words
    return Asked(queries, plain)
