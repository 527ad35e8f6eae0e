"""Retrieval quality of the knowledge base: each leg alone, and what the product makes of both, set by set.

    python bench/quality.py --data FOLDER musique            # one set; without a name all of them
    python bench/quality.py --data FOLDER beam --cache DIR   # vectors that no file has are made once and kept there
    python bench/run.py --only quality --sets musique 2wiki  # the same as part of the benches

FOLDER (or ISOTHERM_BENCH_DATA) holds the sets, see `quality_sets.SETS` for their names, and ready vectors in
minilm_embeddings. Documents are stored by the producer and finished by the tasks a worker would run; questions are asked by
the public verb `search`, once without an embedder (words), then with one. The leg of vectors alone is the one that the verb
asks, called by itself. All legs use the same vectors, and nothing is set for one set only.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from uuid import UUID

import numpy as np
from arena import Arena, arena, run_steps
from machine import load
from measure import Figures, Line, figures
from numpy.typing import NDArray
from quality_sets import SETS, Collection, Question, RetrievalSet
from results import show

from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.long_texts import windows
from isotherm.pipeline.brain.objects import NewObject, derived_id
from isotherm.pipeline.fusion import Fusion
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.ports import Embedder
from isotherm.storage.models import factory
from isotherm.storage.opened import Storage
from isotherm.storage.postgres import brain_search, namespaces
from isotherm.storage.postgres.brain_search import Near
from isotherm.storage.postgres.pool import connection
from isotherm.storage.settings import Settings
from isotherm.tasks import brain, produce_brain

# Of vectors made elsewhere; they are never compared with those of the offline model, which has 8-bit weights.
_STAMP = "all-MiniLM-L6-v2"
_TOP = 10
_LEG = 100
_BATCH = 250
_QUICK = 20

Search = Callable[[Namespace, str], Sequence[UUID]]


class Given:
    """An embedder whose answers were made before; it knows no other texts.

    Args: known: unit vectors by whole text; a text of several windows has the vector of the whole for each of them.
    """

    model = _STAMP
    dimension = 384

    def __init__(self, known: Mapping[str, NDArray[np.float32]]) -> None:
        self._known = {window: vector for text, vector in known.items() for window in windows(text)}

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of known texts; shape (n, 384)."""
        return np.stack([self._known[one] for one in texts]) if texts else np.empty((0, self.dimension), np.float32)


class Kept:
    """The offline model, each text embedded once: answers are kept in a folder. Args: folder: None keeps nothing."""

    def __init__(self, within: Embedder, folder: Path | None) -> None:
        self._within, self._folder = within, folder
        self.model, self.dimension = within.model, within.dimension

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of any texts; shape (n, dimension)."""
        if self._folder is None or not texts:
            return self._within.embed(texts)
        self._folder.mkdir(parents=True, exist_ok=True)
        name = blake2b("\0".join((self.model, *texts)).encode(), digest_size=16).hexdigest()
        path = self._folder / f"{name}.npy"
        if not path.exists():
            part = path.with_suffix(f".{os.getpid()}")
            with part.open("wb") as out:
                np.save(out, self._within.embed(texts))
            part.rename(path)
        kept: NDArray[np.float32] = np.load(path)
        return kept


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, the namespace it is asked in, and the ids that belong to it."""

    namespace: Namespace
    question: Question
    names: Mapping[UUID, str]


def quality(
    ground: Arena,
    data: Path | None,
    *,
    quick: bool = False,
    sets: Sequence[str] | None = None,
    cache: Path | None = None,
) -> list[Line]:
    """Store each set in a database of its own and ask its questions. Args: quick: twenty questions of each collection."""
    lines: list[Line] = []
    for name in sets or (each for each in SETS if not (quick and each in {"scifact_train", "2wiki"})):
        try:
            found = None if data is None else SETS[name](data)
        except FileNotFoundError:
            found = None
        if found is None:
            print(f"quality: {name} skipped; name the folder of the sets in ISOTHERM_BENCH_DATA", file=sys.stderr)
            continue
        print(f"quality: {name} …", file=sys.stderr)
        with ground.fresh() as opened:
            lines += list(_measured(ground, opened, found, cache, most=_QUICK if quick else None))
    return lines


def _measured(
    ground: Arena, opened: Storage, one: RetrievalSet, cache: Path | None, *, most: int | None
) -> Iterator[Line]:
    embedder = _embedder(one, cache)
    if embedder is None:
        print(f"quality: {one.name} has no vectors, and the extra local-models is not installed", file=sys.stderr)
    factory.use_embedder(opened.settings, embedder)
    begun = time.perf_counter()
    asked = [each for collection in one.collections for each in _stored(collection, most)]
    while brain.fold()["changes"]:
        pass
    took = time.perf_counter() - begun
    ground.tidy("brain_objects", "brain_postings", "brain_terms")
    count = sum(len(collection.documents) for collection in one.collections)
    yield Line("quality", f"{one.name}: stored, with vectors (given) and graph", count / took, "1/s", "higher",
               note=f"{count:,} documents in calls of {_BATCH}, steps run in this process")  # fmt: skip
    yield from _compared(one, opened, embedder, asked)


def _compared(one: RetrievalSet, opened: Storage, embedder: Embedder | None, asked: Sequence[Asked]) -> Iterator[Line]:
    first = next(iter(one.measures))
    reached: dict[str, float] = {}
    for way, search in _ways(opened, embedder).items():
        factory.use_embedder(opened.settings, None if way == "words" else embedder)
        means, took, by_kind = _asked_all(one, search, asked)
        reached[way] = means[first]
        note = f"{len(asked)} questions; " + ", ".join(f"{n} {v:.3f}" for n, v in means.items() if n != first)
        floor = one.floors.get(way)
        yield Line("quality", f"{one.name}: {first} by {way}", means[first], "", "higher", floor=floor,
                   gate=None if floor is None else 1.0,
                   note=f"{note}; p50 {took.p50 * 1000:.1f} ms, p95 {took.p95 * 1000:.1f} ms{by_kind}")  # fmt: skip
    if {"vectors", "both"} <= reached.keys():
        yield Line("quality", f"{one.name}: {first} of both / of the better leg", reached["both"], "", "higher",
                   floor=max(reached["words"], reached["vectors"]), gate=one.better)  # fmt: skip


def _asked_all(one: RetrievalSet, search: Search, asked: Sequence[Asked]) -> tuple[dict[str, float], Figures, str]:
    first = next(iter(one.measures))
    taken, scores, kinds = [], defaultdict(list), defaultdict(list)
    for each in asked:
        begun = time.perf_counter()
        ids = search(each.namespace, each.question.text)
        taken.append(time.perf_counter() - begun)
        found = [each.names[i] for i in ids]
        for name, measure in one.measures.items():
            scores[name].append(measure(found, each.question.gold))
        kinds[each.question.kind].append(scores[first][-1])
    shown = "".join(f", {kind} {statistics.fmean(v):.2f}" for kind, v in sorted(kinds.items()) if kind)
    return {name: statistics.fmean(values) for name, values in scores.items()}, figures(taken), shown


def _ways(opened: Storage, embedder: Embedder | None) -> dict[str, Search]:
    def verb(fusion: Fusion, *, graph: bool = False) -> Search:
        return lambda namespace, query: [
            found.object.id
            for found in opened.brain.search(namespace, query, limit=_TOP, fusion=fusion, graph=graph).results
        ]

    def meaning(namespace: Namespace, query: str) -> Sequence[UUID]:
        place = namespaces.find(namespace)
        if place is None or embedder is None:
            return []
        near = Near(embedder.model, embedder.embed([query])[0])
        with connection() as conn:
            return [row.id for row in brain_search.vectors(conn, place.namespace_id, near, Filters(), _LEG).found]

    words = {"words": verb(Fusion.SCORES)}
    if embedder is None:
        return words
    return {**words, "vectors": meaning, "both": verb(Fusion.SCORES), "both, ranks": verb(Fusion.RRF),
            "both and graph": verb(Fusion.SCORES, graph=True)}  # fmt: skip


def _embedder(one: RetrievalSet, cache: Path | None) -> Embedder | None:
    if one.vectors:
        return Given(one.vectors)
    offline = factory.embedder(Settings(embedder="auto"))
    return None if offline is None else Kept(offline, cache)


def _stored(collection: Collection, most: int | None) -> list[Asked]:
    namespace = produce_brain.knowledge(collection.name)
    ids = {one.name: derived_id(namespace, "quality", one.name) for one in collection.documents}
    objects = [NewObject(ids[d.name], "document", d.title, content=d.content) for d in collection.documents]
    for at in range(0, len(objects), _BATCH):
        produce_brain.put_many(namespace, objects[at : at + _BATCH])
    run_steps()
    names = {i: name for name, i in ids.items()}
    return [Asked(namespace, question, names) for question in collection.questions[:most]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is named, or all there is; 0 in any case."""
    data = os.environ.get("ISOTHERM_BENCH_DATA")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of: {', '.join(SETS)}")
    parser.add_argument("--data", type=Path, default=Path(data) if data else None, metavar="FOLDER")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="where vectors are kept that no file has")
    parser.add_argument("--quick", action="store_true", help="twenty questions of each collection")
    options = parser.parse_args(arguments)
    if unknown := set(options.sets) - SETS.keys():
        parser.error(f"no set is called {', '.join(sorted(unknown))}")
    os.environ["ISOTHERM_EMBEDDER"] = "none"
    with arena() as ground:
        before = load()
        lines = quality(ground, options.data, quick=options.quick, sets=options.sets, cache=options.cache)
        show(lines, {"load before": before, "load after": load()})
    for line in lines:
        print(f"{line.name} {line.note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
