"""BM25 as pure functions; `isotherm.storage.postgres.brain_search` does the same arithmetic in SQL.

The score of a document is the sum over the query's words of

    idf(n, df) * tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / average))

with n documents, df of them having the word, tf the word's count in this one, and length its number of words.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeVar

K1: Final = 0.9
B: Final = 0.75

Key = TypeVar("Key", bound=Hashable)
Counts = Mapping[int, int]


def idf(documents: int, having: int) -> float:
    """How much a word tells: positive, and the more the fewer documents have it.

    Args: documents: how many there are; having: how many have the word; when statistics lag behind, having counts.
    """
    return math.log(1 + (max(documents, having) - having + 0.5) / (having + 0.5))


def weight(tf: int, length: int, average: float, k1: float = K1, b: float = B) -> float:
    """How much a word's count in one document tells, in [0, k1 + 1).

    Args: tf: occurrences, 0 or more; length: words of the document; average: words of a document on average, above 0.
    """
    return tf * (k1 + 1) / (tf + k1 * (1 - b + b * length / average))


def scores(terms: Iterable[int], documents: Mapping[Key, Counts]) -> dict[Key, float]:
    """Score documents by the words of a query; those without any of its words are left out.

    Args: terms: the query's, each counted once; documents: term counts by key; one without words is no document.
    """
    wanted = set(terms)
    lengths = {key: sum(counts.values()) for key, counts in documents.items() if counts}
    average = average_length(len(lengths), sum(lengths.values()))
    having = {term: sum(term in counts for counts in documents.values()) for term in wanted}
    found: dict[Key, float] = {}
    for key, counts in documents.items():
        if shared := sorted(wanted & counts.keys()):
            found[key] = sum(
                idf(len(lengths), having[term]) * weight(counts[term], lengths[key], average) for term in shared
            )
    return found


def average_length(documents: int, total: int) -> float:
    """Words of a document on average, never 0."""
    return max(total, 1) / max(documents, 1)
