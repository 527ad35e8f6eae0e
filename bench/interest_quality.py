"""How often interests are merged rightly, and how well themes are found, by the rules and the offline embedder alone.

`python bench/interest_quality.py FOLDER [--cache FILE] [--write]`, where FOLDER holds sick2014, clinc150, banking77 and
er_magellan; what is missing is skipped. Everything is decided by the product's own functions with its own defaults, the same
for all sets; the other points of a curve show what another default would do. `--write` writes RESULTS-interest.md beside this.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from interest_figures import Embedded, Labels, Vectors, auroc, best_threshold, f1_at, rand, told
from machine import cpu, load
from numpy.typing import NDArray

from isotherm.pipeline import text
from isotherm.pipeline.interest import pairs, themes
from isotherm.pipeline.interest.pairs import Link, Side, relate_by_rules

_ALIKE = (0.74, 0.76, 0.78, 0.80, 0.82, 0.84, 0.86, 0.88, 0.90, 0.92, 0.94)
_COSTS = (0.6, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4)
_NEAR = (0.30, 0.35, 0.40, 0.45, 0.50, 0.55, 0.60)
_SMALL = ((5, 4), (10, 2), (20, 5), (50, 5), (20, 20))
_PARAPHRASE = 4.5
_SEED = 7
_SEEDS = 5
_RESULTS = Path(__file__).parent / "RESULTS-interest.md"
_MISSES = 10
_FIELD = re.compile(r"COL \S+ VAL ")


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", default=os.environ.get("ISOTHERM_BENCH_DATA"))
    parser.add_argument("--cache", type=Path, help="file of vectors that were made before, an .npz")
    parser.add_argument("--write", action="store_true", help="write bench/RESULTS-interest.md")
    options = parser.parse_args(arguments)
    if not options.folder:
        print("interest_quality: skipped; name the folder of the sets, or set ISOTHERM_BENCH_DATA")
        return 2
    folder, embedded = Path(options.folder), Embedded(options.cache)
    shown = [
        "# Interests: how often merges and themes are right",
        "",
        "Written by `bench/interest_quality.py`: rules and the offline embedder, no model; one set of defaults, marked *.",
        f"{cpu()}, load before {load()}.",
        "",
    ]
    for part in (_merges(folder / "sick2014", embedded), _clinc(folder / "clinc150", embedded),
                 _banking(folder / "banking77", embedded), _entities(folder / "er_magellan", embedded)):  # fmt: skip
        for line in part:
            print(line, flush=True)
            shown.append(line)
    if options.write:
        _RESULTS.write_text("\n".join(shown) + "\n", encoding="utf-8")
    return 0


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield from (f"## {title}", "", f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}")
    for row in rows:
        cells = (f"{cell:.3f}" if isinstance(cell, float) else str(cell) for cell in row)
        yield f"| {' | '.join(cells)} |"
    yield ""


def _merges(folder: Path, embedded: Embedded) -> Iterator[str]:
    for name in ("train", "trial"):
        path = folder / f"SICK_{name}.txt"
        if not path.exists():
            yield f"SICK {name}: skipped, {path.name} is not there"
            continue
        found = list(_pairs(path, embedded))
        default = pairs.ALIKE
        rows = []
        for threshold in sorted({*_ALIKE, default}):
            pairs.ALIKE = threshold
            rows.append([f"{threshold:.2f}{' *' if threshold == default else ''}", *_merged(found)])
        pairs.ALIKE = default
        columns = ("likeness", "paraphrase recall", "contradictions merged", "neutral merged", "entailments of merges")
        yield from _table(f"Merges, SICK {name}", columns, rows)
        if name == "train":
            yield from _missed(found)


def _pairs(path: Path, embedded: Embedded) -> Iterator[Pair]:
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    texts = sorted({said for row in rows for said in (row["sentence_A"], row["sentence_B"])})
    vectors = dict(zip(texts, embedded(texts), strict=True))
    for row in rows:
        left, right, kind = row["sentence_A"], row["sentence_B"], row["entailment_judgment"]
        paraphrase = kind == "ENTAILMENT" and float(row["relatedness_score"]) >= _PARAPHRASE
        yield Pair(left, right, float(vectors[left] @ vectors[right]), kind, paraphrase)


def _is_same(pair: Pair) -> bool:
    return relate_by_rules(Side(pair.left, ""), Side(pair.right, ""), pair.cosine).link is Link.SAME


def _merged(found: Sequence[Pair]) -> list[float]:
    same = [pair for pair in found if _is_same(pair)]
    paraphrases = sum(p.paraphrase for p in same) / sum(p.paraphrase for p in found)
    wrong = [
        sum(p.kind == kind for p in same) / sum(p.kind == kind for p in found) for kind in ("CONTRADICTION", "NEUTRAL")
    ]
    return [paraphrases, *wrong, sum(p.kind == "ENTAILMENT" for p in same) / max(1, len(same))]


def _missed(found: Sequence[Pair]) -> Iterator[str]:
    """Real misses: contradictions that were merged, and paraphrases that were not."""
    wrong = [p for p in found if p.kind == "CONTRADICTION" and _is_same(p)]
    left = [p for p in found if p.paraphrase and not _is_same(p)]
    random = np.random.default_rng(_SEED)
    some = [left[i] for i in sorted(random.permutation(len(left))[: max(0, _MISSES - len(wrong))])]
    yield f"Of {len(left)} paraphrases that stay apart, and all {len(wrong)} contradictions that are merged:"
    yield ""
    for pair in [*wrong, *some]:
        yield f"- {pair.kind.lower()}, cosine {pair.cosine:.2f}: {pair.left} / {pair.right}"
    yield ""


def _clinc(folder: Path, embedded: Embedded) -> Iterator[str]:
    path = folder / "data_full_train_val.json"
    if not path.exists():
        yield f"CLINC150: skipped, {path.name} is not there"
        return
    data = json.loads(path.read_text(encoding="utf-8"))
    texts, labels = zip(*data["val"], strict=True)
    vectors, truth = _shuffled(embedded(texts), labels)
    yield from _themes("CLINC150 val", vectors, truth)
    yield from _small("CLINC150 val", vectors, truth)
    middles = np.stack([themes.middle(vectors[group]) for group in themes.grouped(vectors) if len(group) > 1])
    order = np.random.default_rng(_SEED).permutation(len(data["train"]))[:1_000]
    inside = embedded([data["train"][i][0] for i in order])
    outside = embedded([said for said, _ in [*data["oos_val"], *data["oos_train"]]])
    near = [np.array([themes.placed(vec, middles).near for vec in part]) for part in (inside, outside)]
    rows = [
        [f"{least:.2f}{' *' if least == themes.BELONGS else ''}", *(float((part >= least).mean()) for part in near)]
        for least in _NEAR
    ]
    title = f"CLINC150: texts of no theme told apart, AUROC {auroc(near[0].tolist(), near[1].tolist()):.3f}"
    yield from _table(title, ("least nearness", "of a theme, and placed", "of none, and placed"), rows)


def _banking(folder: Path, embedded: Embedded) -> Iterator[str]:
    path = folder / "train.csv"
    if not path.exists():
        yield f"BANKING77: skipped, {path.name} is not there"
        return
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    vectors, truth = _shuffled(embedded([row["text"] for row in rows]), [row["category"] for row in rows])
    yield from _themes("BANKING77 train", vectors, truth)
    yield from _small("BANKING77 train", vectors, truth)


def _shuffled(vectors: Vectors, labels: Sequence[str]) -> tuple[Vectors, Labels]:
    """Texts in a seeded order, with their labels as numbers."""
    truth = np.unique(np.array(labels), return_inverse=True)[1].astype(np.int64)
    order = np.random.default_rng(_SEED).permutation(len(vectors))
    return vectors[order], truth[order]


def _themes(name: str, vectors: Vectors, truth: Labels) -> Iterator[str]:
    """Texts come one by one; the background pass groups all that are there."""
    count = int(truth.max()) + 1
    floor = rand(truth, told(vectors, count))
    rows = []
    for factor in _COSTS if len(vectors) <= themes.WHOLE else _COSTS[1:-1]:
        groups = themes.grouped(vectors, themes.UNION_COST * factor)
        ours = rand(truth, _labels(groups, len(vectors)))
        rows.append([f"{factor:.2f}{' *' if factor == 1 else ''}", len(groups), ours, ours / floor])
    title = f"Themes, {name}, {len(vectors):,} texts; k-means told {count} has ARI {floor:.3f}"
    yield from _table(title, ("cost of a union", "themes", "ARI", "of k-means"), rows)


def _labels(groups: Sequence[Sequence[int]], count: int) -> Labels:
    found = np.zeros(count, dtype=np.int64)
    for number, group in enumerate(groups):
        found[list(group)] = number
    return found


def _small(name: str, vectors: Vectors, truth: Labels) -> Iterator[str]:
    """Banks of some themes with some texts each: means over five seeds."""
    rows = []
    for count, each in _SMALL:
        figures = []
        for seed in range(_SEEDS):
            random = np.random.default_rng(seed)
            chosen = random.permutation(int(truth.max()) + 1)[:count]
            picked = np.concatenate([random.permutation(np.flatnonzero(truth == one))[:each] for one in chosen])
            part, of_part = vectors[picked], np.unique(truth[picked], return_inverse=True)[1].astype(np.int64)
            groups = themes.grouped(part)
            ours, floor = rand(of_part, _labels(groups, len(part))), rand(of_part, told(part, len(chosen)))
            figures.append((len(groups), ours, floor))
        found, ours, floor = (float(np.mean(column)) for column in zip(*figures, strict=True))
        rows.append([count, each, f"{found:.1f}", ours, ours / floor])
    yield from _table(f"Small banks, of {name}", ("true themes", "texts each", "found", "ARI", "of k-means"), rows)


def _entities(folder: Path, embedded: Embedded) -> Iterator[str]:
    """Watched, no gate: thresholds from the validation parts, figures on the training parts."""
    rows = []
    for name in ("abt_buy", "amazon_google", "dblp_acm"):
        paths = [folder / f"{name}.{part}.txt.gz" for part in ("valid", "train")]
        if not all(path.exists() for path in paths):
            yield f"{name}: skipped, it is not there"
            continue
        valid, train = (_read_entities(path, embedded) for path in paths)
        row: list[object] = [name]
        for column in range(3):
            threshold = best_threshold(valid[0][column], valid[1])
            row += [f"{threshold:.2f}", f1_at(train[0][column], train[1], threshold)]
        rows.append(row)
    if rows:
        columns = ("pairs", "cosine", "F1", "shared words", "F1", "sum of both", "F1")
        yield from _table("Entity pairs, watched only", columns, rows)


def _read_entities(path: Path, embedded: Embedded) -> tuple[list[NDArray[np.float64]], NDArray[np.bool_]]:
    """Scores of pairs, by vectors, by words and both, and whether they are the same."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        parts = [line.rstrip("\n").split("\t") for line in file]
    sides = [[_FIELD.sub("", part[side]).strip() for part in parts] for side in (0, 1)]
    texts = sorted({said for side in sides for said in side})
    vectors = dict(zip(texts, embedded(texts), strict=True))
    words = {said: frozenset(text.words(said)) for said in texts}
    near = np.array([float(vectors[a] @ vectors[b]) for a, b in zip(*sides, strict=True)])
    shared = np.array(
        [len(words[a] & words[b]) / max(1, len(words[a] | words[b])) for a, b in zip(*sides, strict=True)]
    )
    return [near, shared, near + shared], np.array([part[2] == "1" for part in parts])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
