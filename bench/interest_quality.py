"""How often interests are merged rightly, and how well themes are found, by the rules and the offline embedder alone.

`python bench/interest_quality.py FOLDER`, where FOLDER holds sick2014, clinc150 and banking77; what is missing is skipped.
Everything is decided by the product's own functions with its own defaults, the same for all sets.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.interest import pairs, themes
from isotherm.pipeline.interest.pairs import Link, Side, relate_by_rules
from isotherm.storage.models import factory
from isotherm.storage.settings import Settings

_CURVE = (0.76, 0.80, 0.84, 0.88, 0.92)
_PARAPHRASE = 4.5
_SEED = 7
_BANKING = 4_000
_KMEANS_TRIES = 3
_KMEANS_STEPS = 25

Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sentences, how their vectors lie, and what people said of them."""

    left: str
    right: str
    cosine: float
    kind: str
    paraphrase: bool


def main(arguments: Sequence[str]) -> int:
    """Measure what there is; 2 when no folder is named."""
    named = arguments[0] if arguments else os.environ.get("ISOTHERM_BENCH_DATA")
    if not named:
        print("interest_quality: skipped; name the folder of the sets, or set ISOTHERM_BENCH_DATA")
        return 2
    folder = Path(named)
    for line in (*_merges(folder / "sick2014"), *_clinc(folder / "clinc150"), *_banking(folder / "banking77")):
        print(line, flush=True)
    return 0


def _embedded(texts: Sequence[str]) -> Vectors:
    embedder = factory.embedder(Settings(embedder="offline"))
    if embedder is None:
        raise SystemExit("interest_quality: the extra local-models is not installed")
    return embedder.embed(texts)


def _merges(folder: Path) -> Iterator[str]:
    for name in ("train", "trial"):
        path = folder / f"SICK_{name}.txt"
        if not path.exists():
            yield f"SICK {name}: skipped, {path.name} is not there"
            continue
        found = list(_pairs(path))
        chosen = pairs.ALIKE
        for threshold in sorted({*_CURVE, chosen}):
            pairs.ALIKE = threshold
            yield f"SICK {name}: {_merged(found)} at {threshold:.2f}{' (default)' if threshold == chosen else ''}"
        pairs.ALIKE = chosen


def _pairs(path: Path) -> Iterator[Pair]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    texts = sorted({text for row in rows for text in (row["sentence_A"], row["sentence_B"])})
    vectors = dict(zip(texts, _embedded(texts), strict=True))
    for row in rows:
        left, right, kind = row["sentence_A"], row["sentence_B"], row["entailment_judgment"]
        paraphrase = kind == "ENTAILMENT" and float(row["relatedness_score"]) >= _PARAPHRASE
        yield Pair(left, right, float(vectors[left] @ vectors[right]), kind, paraphrase)


def _merged(found: Sequence[Pair]) -> str:
    same = [p for p in found if relate_by_rules(Side(p.left, ""), Side(p.right, ""), p.cosine).link is Link.SAME]
    paraphrases = sum(p.paraphrase for p in same) / sum(p.paraphrase for p in found)
    wrong = sum(p.kind == "CONTRADICTION" for p in same) / sum(p.kind == "CONTRADICTION" for p in found)
    right = sum(p.kind == "ENTAILMENT" for p in same) / max(1, len(same))
    return (
        f"paraphrase recall {paraphrases:.3f}, contradictions merged {wrong:.4f}, entailments of all merges {right:.3f}"
    )


def _clinc(folder: Path) -> Iterator[str]:
    path = folder / "data_full_train_val.json"
    if not path.exists():
        yield f"CLINC150: skipped, {path.name} is not there"
        return
    data = json.loads(path.read_text(encoding="utf-8"))
    texts, labels = zip(*data["val"], strict=True)
    vectors = _embedded(texts)
    yield from _themes("CLINC150 val", vectors, labels)
    middles = np.stack([themes.middle(vectors[group]) for group in themes.grouped(vectors) if len(group) > 1])
    order = np.random.default_rng(_SEED).permutation(len(data["train"]))[:1_000]
    inside = _embedded([data["train"][i][0] for i in order])
    outside = _embedded([text for text, _ in [*data["oos_val"], *data["oos_train"]]])
    near = [[themes.placed(vec, middles).near for vec in part] for part in (inside, outside)]
    yield f"CLINC150: texts of no theme told apart with AUROC {_auroc(*near):.3f}"


def _banking(folder: Path) -> Iterator[str]:
    path = folder / "train.csv"
    if not path.exists():
        yield f"BANKING77: skipped, {path.name} is not there"
        return
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    order = np.random.default_rng(_SEED).permutation(len(rows))[:_BANKING]
    chosen = [rows[i] for i in order]
    yield from _themes(
        f"BANKING77 train, {_BANKING:,} of it", _embedded([r["text"] for r in chosen]), [r["category"] for r in chosen]
    )


def _themes(name: str, vectors: Vectors, labels: Sequence[str]) -> Iterator[str]:
    """Texts come in a seeded order; the background pass groups all of them."""
    truth = np.unique(np.array(labels), return_inverse=True)[1].astype(np.int64)
    order = np.random.default_rng(_SEED).permutation(len(vectors))
    vectors, truth = vectors[order], truth[order]
    groups = themes.grouped(vectors)
    mine = np.zeros(len(vectors), dtype=np.int64)
    for number, group in enumerate(groups):
        mine[group] = number
    count = int(truth.max()) + 1
    told = max((_kmeans(vectors, count, seed) for seed in range(_KMEANS_TRIES)), key=lambda found: found[1])[0]
    ours, floor = _rand(truth, mine), _rand(truth, told)
    yield f"{name}: ARI {ours:.3f} with {len(groups)} themes, k-means told {count}: {floor:.3f}; ratio {ours / floor:.2f}"


def _kmeans(vectors: Vectors, count: int, seed: int) -> tuple[Labels, float]:
    """Labels, and how near the points are to their middles on average; begun as k-means++ does."""
    random = np.random.default_rng(seed)
    middles = [vectors[random.integers(len(vectors))]]
    far = np.full(len(vectors), np.inf)
    for _ in range(count - 1):
        far = np.minimum(far, np.maximum(0, 2 - 2 * vectors @ middles[-1]))
        middles.append(vectors[random.choice(len(vectors), p=far / far.sum())])
    centers = np.array(middles)
    for _ in range(_KMEANS_STEPS):
        scores = vectors @ centers.T - (centers**2).sum(axis=1) / 2
        labels = scores.argmax(axis=1)
        sums = np.zeros_like(centers)
        np.add.at(sums, labels, vectors)
        sizes = np.bincount(labels, minlength=count)
        centers[sizes > 0] = sums[sizes > 0] / sizes[sizes > 0, None]
    return labels.astype(np.int64), float(scores.max(axis=1).mean())


def _rand(truth: Labels, found: Labels) -> float:
    """The adjusted Rand index."""
    table = np.zeros((truth.max() + 1, found.max() + 1))
    np.add.at(table, (truth, found), 1)
    both, mine, yours = (float((n * (n - 1) / 2).sum()) for n in (table, table.sum(axis=1), table.sum(axis=0)))
    chance = mine * yours / (len(truth) * (len(truth) - 1) / 2)
    return (both - chance) / ((mine + yours) / 2 - chance)


def _auroc(inside: Sequence[float], outside: Sequence[float]) -> float:
    above = (np.array(inside)[:, None] > np.array(outside)[None, :]).mean()
    equal = (np.array(inside)[:, None] == np.array(outside)[None, :]).mean()
    return float(above + equal / 2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
