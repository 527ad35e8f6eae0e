"""Likeness of vectors, and groups by it. Vectors need not be of unit length; sums are in double precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.interest.candidates import Vector

# Rows of one product: enough to be fast, few enough that only the result is large.
_ROWS = 256
_FEW = 4_096


def cosines(left: Sequence[Vector | None], right: Sequence[Vector | None]) -> NDArray[np.float64]:
    """Cosine of each vector on the left with each on the right, in matrix products of some rows each.

    Returns: shape (len(left), len(right)); 0 where a vector is missing, without length, or of another dimension.
    """
    found = np.zeros((len(left), len(right)))
    for dimension in {len(v) for v in left if v is not None}:
        rows = [i for i, v in enumerate(left) if v is not None and len(v) == dimension]
        columns = [j for j, v in enumerate(right) if v is not None and len(v) == dimension]
        if columns:
            one, other = _stack(left, rows), _stack(right, columns)
            mine, yours = np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1)
            for start in range(0, len(rows), _ROWS):
                part = slice(start, start + _ROWS)
                norms = mine[part, None] * yours[None, :]
                products = _products(one[part], other)
                np.divide(products, norms, out=products, where=norms > 0)
                products[norms == 0] = 0.0
                found[np.ix_(rows[part], columns)] = products
    return found


def _products(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Products of rows. For a few, the library's threads are not woken: they would hold a processor for longer than it takes."""
    few = len(one) * len(other) <= _FEW
    found: NDArray[np.float64] = np.einsum("ik,jk->ij", one, other) if few else one @ other.T
    return found


def groups(count: int, links: Iterable[tuple[float, int, int]], cap: int | None = None) -> list[list[int]]:
    """Join what is linked, strongest link first, as long as a group has at most `cap` members.

    Args: links: (strength, i, j); without a cap the order of links does not matter.
    Returns: indices in groups, each ascending, groups by first index; every index of range(count) is in exactly one.
    """
    leader = list(range(count))
    size = [1] * count

    def find(i: int) -> int:
        while leader[i] != i:
            leader[i] = leader[leader[i]]
            i = leader[i]
        return i

    for _, i, j in sorted(links, key=lambda link: (-link[0], link[1], link[2])):
        one, other = sorted((find(i), find(j)))
        if one != other and (cap is None or size[one] + size[other] <= cap):
            leader[other] = one
            size[one] += size[other]
    found: dict[int, list[int]] = {}
    for i in range(count):
        found.setdefault(find(i), []).append(i)
    return sorted(found.values())


def pairs_above(matrix: NDArray[np.float64], threshold: float) -> list[tuple[float, int, int]]:
    """Pairs i < j of a square matrix whose value is strictly above a threshold, as (value, i, j)."""
    rows, columns = np.nonzero(np.triu(matrix > threshold, k=1))
    return [(float(matrix[i, j]), int(i), int(j)) for i, j in zip(rows, columns, strict=True)]


def _stack(vectors: Sequence[Vector | None], rows: Sequence[int]) -> NDArray[np.float64]:
    return np.array([vectors[i] for i in rows], dtype=np.float64)
