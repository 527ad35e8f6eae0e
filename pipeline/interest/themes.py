"""Themes: groups of points that are about one thing, found without being told how many there are.

A new point joins the theme whose middle is nearest, or waits alone; in the background all points are grouped anew by Ward's
method: the two groups whose union spreads least are joined first, until a union spreads much more than unions usually do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.text import words

# A union is too wide when its height lies so many standard deviations above the mean of all (Mojena 1977, who took 2.75;
# Milligan and Cooper 1985 found 1.25 best on small sets). Heights are roots of what a union adds to the squared distances.
DEVIATIONS = 1.5
# A point belongs to a theme when it is at least this near its middle.
BELONGS = 0.45
POINTS_MAX = 5_000
# Of few points the usual height says little: there, what has nothing to do with each other (cosine 0.45) stays apart.
FEW = 50
APART = 0.55
_NAME_WORDS = 3

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a point belongs. Args: theme: place of the theme, None for none; near: cosine with the nearest middle."""

    theme: int | None
    near: float


def grouped(vectors: NDArray[np.float32], deviations: float = DEVIATIONS) -> list[list[int]]:
    """Group vectors by Ward's method, cut where unions become unusually wide.

    Args: vectors: shape (n, d), rows of unit L2 norm, n at most 5,000.
    Returns: row indices, each group ascending, groups by first index; lengths sum to n.
    Raises: ValueError for more rows, or another shape.
    Cost: O(n^2) memory and about O(n^2) time. Source: nearest-neighbor chain (Murtagh 1983).
    """
    if vectors.ndim != 2 or len(vectors) > POINTS_MAX:  # noqa: PLR2004 - rows and columns
        raise ValueError(f"vectors of shape {vectors.shape}")
    leader = np.arange(len(vectors))
    unions = _unions(vectors)
    heights = np.sqrt([cost for *_, cost in unions]) if unions else np.zeros(1)
    widest = min(
        float(heights.mean() + deviations * heights.std()), float(np.sqrt(APART)) if len(unions) < FEW else np.inf
    )
    for (one, other, _), height in zip(unions, heights, strict=False):
        if height <= widest:
            leader[leader == leader[other]] = leader[one]
    found: dict[int, list[int]] = {}
    for row, mine in enumerate(leader.tolist()):
        found.setdefault(mine, []).append(row)
    return sorted(found.values())


def _unions(vectors: NDArray[np.float32]) -> list[tuple[int, int, float]]:
    """All unions, cheapest first. Ward's costs never fall along a chain, so their order is that of a tree."""
    n = len(vectors)
    near = vectors.astype(np.float32)
    costs = np.maximum(1.0 - near @ near.T, 0.0)
    np.fill_diagonal(costs, np.inf)
    size = np.ones(n)
    alive = np.ones(n, dtype=bool)
    chain: list[int] = []
    found: list[tuple[int, int, float]] = []
    while len(found) < n - 1:
        if not chain:
            chain.append(int(np.argmax(alive)))
        top = chain[-1]
        row = costs[top]
        nearest = int(np.argmin(row))
        if len(chain) > 1 and row[chain[-2]] <= row[nearest]:
            nearest = chain[-2]
        if len(chain) > 1 and nearest == chain[-2]:
            del chain[-2:]
            found.append((*sorted((top, nearest)), float(row[nearest])))  # type: ignore[arg-type]
            _join(costs, size, alive, *sorted((top, nearest)))
        else:
            chain.append(nearest)
    return sorted(found, key=lambda union: union[2])


def _join(costs: NDArray[np.float32], size: Matrix, alive: NDArray[np.bool_], kept: int, gone: int) -> None:
    """Put the union of two groups in the place of the first, by the update of Lance and Williams."""
    mine, yours = size[kept], size[gone]
    between = costs[kept, gone]
    others = alive.copy()
    others[[kept, gone]] = False
    weights = size[others]
    updated = ((mine + weights) * costs[kept, others] + (yours + weights) * costs[gone, others] - weights * between) / (
        mine + yours + weights
    )
    costs[kept, others] = costs[others, kept] = updated
    costs[gone, :] = costs[:, gone] = np.inf
    size[kept] = mine + yours
    alive[gone] = False


def middle(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """The middle of a theme, of unit length. Args: vectors: shape (n, d), n at least 1."""
    mean = vectors.mean(axis=0)
    length = float(np.linalg.norm(mean))
    found: NDArray[np.float32] = (mean / length if length > 0 else vectors[0]).astype(np.float32)
    return found


def placed(vec: NDArray[np.float32], middles: NDArray[np.float32], belongs: float = BELONGS) -> Placed:
    """Where a new point belongs. Args: middles: shape (k, d), k may be 0."""
    if not len(middles):
        return Placed(None, -1.0)
    near = middles @ vec
    best = int(np.argmax(near))
    return Placed(best if near[best] >= belongs else None, float(near[best]))


def named(topics: Sequence[str], others: Sequence[str]) -> str:
    """Words that most members of a theme share and that others share less, else the shortest topic.

    Args: topics: of the members, the nearest to the middle first; others: of all points of the bank.
    """
    mine = Counter(word for topic in topics for word in set(words(topic)))
    every = Counter(word for topic in others for word in set(words(topic)))
    telling = [word for word, n in mine.items() if n * 2 > len(topics) and n > 1]
    telling.sort(key=lambda word: (-mine[word] / max(1, every[word]), -mine[word], word))
    if not telling:
        return min(topics, key=len)
    best = set(telling[:_NAME_WORDS])
    return min(topics, key=lambda topic: (-len(best & set(words(topic))), len(topic)))
