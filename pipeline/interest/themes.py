"""Themes: groups of points that are about one thing, found without being told how many there are.

A new point joins the theme whose middle is nearest, or waits alone; in the background all points are grouped anew by Ward's
method: the two groups whose union spreads least are joined first, until a union costs too much for groups of that size.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.text import words

# What a union may add to the squared distances of points from their middles, where groups have one member on average, and
# the power of the average size with which that grows. The middles of two halves of one theme lie apart by chance; what their
# union costs grows more slowly with their size than what the union of two themes costs.
UNION_COST = 0.45
UNION_GROWTH = 0.62
# A point belongs to a theme when it is at least this near its middle.
BELONGS = 0.45
# So many points are grouped one by one. Of more, near ones are joined within parts of the bank first, until so many are left.
WHOLE = 5_000
PART = 2_000
POINTS_MAX = 100_000
_NAME_WORDS = 3
_TURNS = 8

Matrix = NDArray[np.float64]
Union = tuple[int, int, float]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a point belongs. Args: theme: place of the theme, None for none; near: cosine with the nearest middle."""

    theme: int | None
    near: float


def grouped(
    vectors: NDArray[np.float32], cost: float = UNION_COST, growth: float = UNION_GROWTH, whole: int = WHOLE
) -> list[list[int]]:
    """Group vectors by Ward's method, cut where a union costs too much for the size that groups have by then.

    Args: vectors: shape (n, d), rows of unit L2 norm; whole: how many are grouped one by one.
    Returns: row indices, each group ascending, groups by first index; lengths sum to n.
    Raises: ValueError for another shape.
    Cost: O(n^2) time and memory for up to `whole` vectors. Of more, O(n) memory and O(n) time besides that of `whole`.
    Source: nearest-neighbor chain (Murtagh 1983); fractionation for many (Cutting et al. 1992).
    """
    if vectors.ndim != 2:  # noqa: PLR2004 - rows and columns
        raise ValueError(f"vectors of shape {vectors.shape}")
    early = _early(vectors, whole)
    leader = _led(len(vectors), early)
    kept, members = np.unique(leader, return_inverse=True)
    sizes = np.bincount(members).astype(np.float64)
    middles = np.zeros((len(kept), vectors.shape[1]))
    np.add.at(middles, members, vectors)
    late = _unions((middles / np.maximum(sizes, 1)[:, None]).astype(np.float32), sizes)
    unions = sorted([*early, *((int(kept[i]), int(kept[j]), c) for i, j, c in late)], key=lambda union: union[2])
    leader = _led(len(vectors), _affordable(unions, len(vectors), cost, growth))
    found: dict[int, list[int]] = {}
    for row, mine in enumerate(leader.tolist()):
        found.setdefault(mine, []).append(row)
    return sorted(found.values())


def _affordable(unions: Sequence[Union], points: int, cost: float, growth: float) -> Iterable[Union]:
    """Unions, cheapest first, up to the first that costs too much. Sizes are averages, so outliers do not raise them."""
    for done, union in enumerate(unions):
        if union[2] > cost * (points / (points - done)) ** growth:
            return
        yield union


def _led(count: int, unions: Iterable[Union]) -> NDArray[np.int64]:
    """For each point the one that its group is known by."""
    leader = list(range(count))

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    for i, j, _ in unions:
        one, other = sorted((find(i), find(j)))
        leader[other] = one
    return np.array([find(i) for i in range(count)], dtype=np.int64)


def _early(vectors: NDArray[np.float32], whole: int) -> list[Union]:
    """The cheapest unions within parts of many vectors, so many that `whole` groups are left; none where there are no more."""
    if len(vectors) <= whole:
        return []
    found: list[Union] = []
    for rows in _parts(vectors, np.arange(len(vectors))):
        of_part = _unions(vectors[rows], np.ones(len(rows)))
        found += [(int(rows[i]), int(rows[j]), cost) for i, j, cost in of_part]
    return sorted(found, key=lambda union: union[2])[: len(vectors) - whole]


def _parts(vectors: NDArray[np.float32], rows: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Halve along the direction in which the vectors differ most, until no part has more than 2,000."""
    if len(rows) <= PART:
        return [rows]
    some = vectors[rows]
    middle_of = some.mean(axis=0)
    along = some[int(np.argmax(np.linalg.norm(some - middle_of, axis=1)))] - middle_of
    for _ in range(_TURNS):  # power iteration; only roughly the direction matters
        turned = some.T @ (some @ along) - len(some) * middle_of * float(middle_of @ along)
        along = turned / max(float(np.linalg.norm(turned)), 1e-12)
    order = np.argsort(some @ along, kind="stable")
    half = len(rows) // 2
    return [*_parts(vectors, np.sort(rows[order[:half]])), *_parts(vectors, np.sort(rows[order[half:]]))]


def _unions(vectors: NDArray[np.float32], sizes: Matrix) -> list[Union]:
    """All unions, cheapest first. Ward's costs never fall along a chain, so their order is that of a tree."""
    n = len(vectors)
    costs = _costs(vectors, sizes)
    size = sizes.copy()
    alive = np.ones(n, dtype=bool)
    chain: list[int] = []
    found: list[Union] = []
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


def _costs(vectors: NDArray[np.float32], sizes: Matrix) -> NDArray[np.float32]:
    """What each union would add to the squared distances of points from their middles."""
    lengths = (vectors * vectors).sum(axis=1)
    costs = vectors @ vectors.T
    costs *= -2.0
    costs += lengths[:, None]
    costs += lengths[None, :]
    np.maximum(costs, 0.0, out=costs)
    if len(sizes) and sizes.max() > 1:
        costs *= (sizes[:, None] * sizes[None, :] / (sizes[:, None] + sizes[None, :])).astype(np.float32)
    else:
        costs *= 0.5
    np.fill_diagonal(costs, np.inf)
    return costs


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


def named(topics: Sequence[str], every: Mapping[str, int]) -> str:
    """Words that most members of a theme share and that others share less, else the shortest topic.

    Args: topics: of the members, the nearest to the middle first; every: in how many topics of the bank each word is.
    """
    mine = counted(topics)
    telling = [word for word, n in mine.items() if n * 2 > len(topics) and n > 1]
    telling.sort(key=lambda word: (-mine[word] / max(1, every.get(word, 0)), -mine[word], word))
    if not telling:
        return min(topics, key=len)
    best = set(telling[:_NAME_WORDS])
    return min(topics, key=lambda topic: (-len(best & set(words(topic))), len(topic)))


def counted(topics: Iterable[str]) -> Counter[str]:
    """In how many topics each word is."""
    return Counter(word for topic in topics for word in set(words(topic)))
