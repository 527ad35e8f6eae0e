"""Vectors for tests that need some, of no meaning beyond shared words: each word adds a random direction of its own."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.text import words


class HashEmbedder:
    """The same text always gives the same unit vector; texts without words share one."""

    def __init__(self, dimension: int = 384, model: str = "hash") -> None:
        self.model = model
        self.dimension = dimension
        self.asked: list[str] = []

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked += texts
        found = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            total = sum((self._direction(word) for word in words(text)), self._direction("") * 1e-3)
            found[row] = total / np.linalg.norm(total)
        return found

    def _direction(self, word: str) -> NDArray[np.float64]:
        seed = int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
        return np.random.default_rng(seed).standard_normal(self.dimension)
