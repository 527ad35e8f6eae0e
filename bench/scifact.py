"""Retrieval quality on SciFact: nDCG@10 of the legs and of what they give together. The data are not part of this project."""

from __future__ import annotations

import gzip
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from arena import Arena
from measure import Line, figures
from numpy.typing import NDArray

from isotherm.pipeline import text
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.objects import NewObject, derived_id
from isotherm.pipeline.fusion import Fusion
from isotherm.pipeline.identity import Namespace
from isotherm.storage.models import factory
from isotherm.storage.opened import Storage
from isotherm.storage.postgres import brain_search, brain_vectors, namespaces
from isotherm.storage.postgres.brain_search import Near
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import brain, produce_brain

# Of vectors made elsewhere; they are never compared with those of the offline model, which has 8-bit weights.
_STAMP = "all-MiniLM-L6-v2"
_TOP = 10
_LEG = 100
_BATCH = 250
_LEXICAL_FLOOR, _VECTOR_FLOOR, _FUSED_FLOOR = 0.639, 0.634, 0.697

Search = Callable[["Claim"], Sequence[UUID]]


@dataclass(frozen=True, slots=True)
class Claim:
    """A query: its text, its vector, and the abstracts that belong to it."""

    text: str
    vector: NDArray[np.float32]
    gold: frozenset[UUID]


class Given:
    """An embedder whose answers were made before: claims only."""

    model = _STAMP
    dimension = 384

    def __init__(self, claims: Sequence[Claim]) -> None:
        """Args: claims: the only texts it knows."""
        self._known = {claim.text: claim.vector for claim in claims}

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """The vectors of known texts."""
        return np.stack([self._known[one] for one in texts])


def scifact(ground: Arena, folder: Path | None, *, quick: bool) -> list[Line]:
    """Put the corpus, and ask every claim by words, by vectors and by both."""
    vectors = folder.parent / "minilm_embeddings" if folder else None
    if folder is None or vectors is None or not (folder / "corpus.jsonl.gz").exists() or not vectors.exists():
        print("scifact: skipped; name the folder that holds scifact and minilm_embeddings in ISOTHERM_BENCH_DATA")
        return []
    namespace = produce_brain.knowledge("scifact")
    with ground.fresh() as opened:
        begun = time.perf_counter()
        count = _put(namespace, folder / "corpus.jsonl.gz")
        rate = count / (time.perf_counter() - begun)
        while brain.fold()["changes"]:
            pass
        _load_vectors(namespace, folder / "corpus.jsonl.gz", vectors / "scifact_corpus.npy")
        ground.tidy("brain_objects", "brain_postings", "brain_terms")
        lines = [Line("scifact", "put", rate, "1/s", "higher", note=f"{count:,} abstracts in calls of {_BATCH}")]
        sets = [("claims_dev_shared240.jsonl", "scifact_dev_shared240.npy", True)]
        if not quick:
            sets.append(("claims_train.jsonl", "scifact_train.npy", False))
        for claims, made, gated in sets:
            lines += _ask(opened, namespace, _claims(namespace, folder / claims, vectors / made), gated=gated)
    return lines


def _ask(opened: Storage, namespace: Namespace, claims: Sequence[Claim], *, gated: bool) -> list[Line]:
    factory.use_embedder(opened.settings, Given(claims))
    place = namespaces.find(namespace)
    assert place is not None  # noqa: S101 - the corpus was put there

    def words(claim: Claim) -> Sequence[UUID]:
        with connection() as conn:
            terms = text.terms(claim.text)
            leg = brain_search.lexical(conn, place.namespace_id, terms, Filters(), _LEG, small=False)
        return [row.id for row in leg.found]

    def meaning(claim: Claim) -> Sequence[UUID]:
        with connection() as conn:
            leg = brain_search.vectors(conn, place.namespace_id, Near(_STAMP, claim.vector), Filters(), _LEG)
        return [row.id for row in leg.found]

    def both(fusion: Fusion) -> Search:
        return lambda claim: [
            r.object.id for r in opened.brain.search(namespace, claim.text, limit=_TOP, fusion=fusion).results
        ]

    of = f"{len(claims)} claims" if gated else f"{len(claims)} training claims"
    asked = (
        ("by words", words, _LEXICAL_FLOOR),
        ("by vectors", meaning, _VECTOR_FLOOR),
        ("by both, scores", both(Fusion.SCORES), _FUSED_FLOOR),
        ("by both, ranks", both(Fusion.RRF), None),
    )
    return [
        line for name, search, floor in asked for line in _measured(name, search, claims, of, floor if gated else None)
    ]


def _measured(name: str, search: Search, claims: Sequence[Claim], of: str, floor: float | None) -> Iterator[Line]:
    taken, gains = [], []
    for claim in claims:
        begun = time.perf_counter()
        found = search(claim)
        taken.append(time.perf_counter() - begun)
        gains.append(ndcg(found, claim.gold))
    yield Line("scifact", f"nDCG@10 {name}, {of}", statistics.fmean(gains), "", "higher", floor=floor,
               gate=None if floor is None else 1.0)  # fmt: skip
    if floor is not None:
        times = figures(taken)
        yield Line("scifact", f"time of a search {name}", times.p50 * 1000, "ms", "lower",
                   note=f"p95 {times.p95 * 1000:.1f} ms")  # fmt: skip


def ndcg(found: Sequence[UUID], gold: frozenset[UUID]) -> float:
    """Normalized discounted cumulative gain of the first ten, binary gain."""
    gain = sum(1 / math.log2(rank + 2) for rank, one in enumerate(found[:_TOP]) if one in gold)
    best = sum(1 / math.log2(rank + 2) for rank in range(min(len(gold), _TOP)))
    return gain / best if best else 0.0


def _id(namespace: Namespace, name: object) -> UUID:
    return derived_id(namespace, "scifact", str(name))


def _corpus(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def _put(namespace: Namespace, path: Path) -> int:
    objects = [
        NewObject(_id(namespace, one["_id"]), "abstract", one["title"], content=" ".join(one["sentences"]))
        for one in _corpus(path)
    ]
    for at in range(0, len(objects), _BATCH):
        produce_brain.put_many(namespace, objects[at : at + _BATCH])
    return len(objects)


def _load_vectors(namespace: Namespace, corpus: Path, made: Path) -> None:
    """Straight into the rows: ten minutes of embedding are spared, and every system is compared on the same vectors."""
    rows: Mapping[UUID, tuple[int, bytes]] = {
        row[0]: (int(row[1]), bytes(row[2])) for row in fetch_all("SELECT id, key, index_sha256 FROM brain_objects")
    }
    keys = [rows[_id(namespace, one["_id"])] for one in _corpus(corpus)]
    vectors = np.load(made)
    place = namespaces.find(namespace)
    assert place is not None  # noqa: S101 - the corpus was put there
    for at in range(0, len(keys), _BATCH):
        with connection() as conn:
            brain_vectors.write(conn, place.namespace_id, keys[at : at + _BATCH], vectors[at : at + _BATCH], _STAMP)


def _claims(namespace: Namespace, path: Path, made: Path) -> list[Claim]:
    vectors = np.load(made).astype(np.float32)
    with path.open(encoding="utf-8") as lines:
        read = [json.loads(line) for line in lines]
    return [
        Claim(one["text"], vector, frozenset(_id(namespace, name) for name in one["cited_doc_ids"]))
        for one, vector in zip(read, vectors, strict=True)
    ]
