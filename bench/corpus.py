"""Texts made from a fixed seed: words by a Zipf law, lengths as in chat. Nothing of it comes from anywhere else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

SEED = 20_240
VOCABULARY = 50_000
_SYLLABLES = [c + v for c in "bdfgklmnprtvz" for v in ("a", "e", "i", "o", "u", "ai", "or")]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents as rows of word ranks, 0 the most frequent."""

    ranks: list[NDArray[np.int64]]

    def text(self, number: int) -> str:
        """A document as text, capitalized and ended like a sentence."""
        return " ".join(map(word, self.ranks[number].tolist())).capitalize() + "."

    def queries(self, count: int, words: int = 6, *, among: range | None = None) -> list[str]:
        """Questions of different words taken from one document each."""
        rng = np.random.default_rng(SEED + 1)
        span = among or range(len(self.ranks))
        found = []
        for number in rng.integers(span.start, span.stop, count):
            unique = np.unique(self.ranks[number])
            found.append(" ".join(map(word, rng.permutation(unique)[:words])))
        return found


def zipf(documents: int, *, shortest: int = 15, longest: int = 35) -> Corpus:
    """Documents of 15 to 35 words, 25 on average, the word of rank r drawn with probability ~ 1 / r; no stop words."""
    rng = np.random.default_rng(SEED)
    weights = 1 / np.arange(1, VOCABULARY + 1)
    lengths = rng.integers(shortest, longest + 1, documents)
    drawn = rng.choice(VOCABULARY, int(lengths.sum()), p=weights / weights.sum())
    return Corpus(np.split(drawn, np.cumsum(lengths)[:-1]))


@cache
def word(rank: int) -> str:
    """The word of a rank: syllables, so that the splitter treats it as it treats English. Different ranks, mostly different stems."""
    size = len(_SYLLABLES)
    rank, last = divmod(int(rank) + size, size)
    rest, first = divmod(rank, size)
    return (_SYLLABLES[rest] if rest else "") + _SYLLABLES[first] + _SYLLABLES[last] + "k"


def chat_text(number: int) -> str:
    """About 120 characters, as a turn of a conversation has; different for every number."""
    said = f"Caroline: I went to the harbor on day {number} and saw {number % 97} boats come in, then we talked about the trip to Oslo."
    return said[:140]
