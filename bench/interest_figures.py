"""What the bench of interests measures with: vectors that are made once, groups by k-means, and figures of agreement."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from isotherm.storage.models import factory
from isotherm.storage.settings import Settings

_KMEANS_TRIES = 3
_KMEANS_STEPS = 25

Vectors = NDArray[np.float32]
Labels = NDArray[np.int64]


class Embedded:
    """Vectors by the product's offline embedder. Args: kept: a file of those that were made before, None for none."""

    def __init__(self, kept: Path | None) -> None:
        self._kept = kept
        self._known: dict[str, NDArray[np.float16]] = {}
        if kept is not None and kept.exists():
            with np.load(kept) as file:
                self._known = dict(zip(file["keys"].tolist(), file["vectors"], strict=True))

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """Vectors of texts, of unit length; shape (texts, dimension)."""
        keys = [hashlib.sha256(text.encode()).hexdigest()[:24] for text in texts]
        missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._known}
        if missing:
            embedder = factory.embedder(Settings(embedder="offline"))
            if embedder is None:
                raise SystemExit("interest_quality: the extra local-models is not installed")
            made = embedder.embed(list(missing.values())).astype(np.float16)
            self._known |= dict(zip(missing, made, strict=True))
            if self._kept is not None:
                names = np.array(list(self._known))
                np.savez(self._kept, keys=names, vectors=np.stack(list(self._known.values())))
        found = np.stack([self._known[key] for key in keys]).astype(np.float32)
        return found / np.linalg.norm(found, axis=1, keepdims=True)


def told(vectors: Vectors, count: int) -> Labels:
    """Groups by k-means that is told how many there are: the best of three tries."""
    tries = (_kmeans(vectors, count, seed) for seed in range(_KMEANS_TRIES))
    return max(tries, key=lambda found: found[1])[0]


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


def rand(truth: Labels, found: Labels) -> float:
    """The adjusted Rand index."""
    table = np.zeros((truth.max() + 1, found.max() + 1))
    np.add.at(table, (truth, found), 1)
    both, mine, yours = (float((n * (n - 1) / 2).sum()) for n in (table, table.sum(axis=1), table.sum(axis=0)))
    chance = mine * yours / (len(truth) * (len(truth) - 1) / 2)
    return (both - chance) / ((mine + yours) / 2 - chance)


def auroc(inside: Sequence[float], outside: Sequence[float]) -> float:
    """How often one from inside is above one from outside."""
    above = (np.array(inside)[:, None] > np.array(outside)[None, :]).mean()
    equal = (np.array(inside)[:, None] == np.array(outside)[None, :]).mean()
    return float(above + equal / 2)


def best_threshold(scores: NDArray[np.float64], same: NDArray[np.bool_]) -> float:
    """The threshold at which F1 of the pairs that are the same is best."""
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(same[order])
    f1 = 2 * hits / (np.arange(1, len(order) + 1) + same.sum())
    return float(scores[order[int(np.argmax(f1))]])


def f1_at(scores: NDArray[np.float64], same: NDArray[np.bool_], threshold: float) -> float:
    """F1 of the pairs that are the same, of those at or above a threshold."""
    chosen = scores >= threshold
    return float(2 * (chosen & same).sum() / max(1, chosen.sum() + same.sum()))
