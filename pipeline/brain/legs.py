"""The legs of a search of the knowledge base, and how far each is heard: one rule for every store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from isotherm.pipeline import fusion
from isotherm.pipeline.fusion import Key, Ranked

LEXICAL: Final = "lexical"
VECTOR: Final = "vector"
ALIKE: Final = "alike"
# Words of a query that are looked up; a longer text is a document, not a question.
QUERY_TERMS: Final = 64
# What being called just so adds to a score: more than all legs together, and out of reach of age.
EQUAL: Final = 10.0
# Candidates for each object wanted, and how many more when they stand for too few: a document may have many parts.
PER_WANTED: Final = 4


def ranked(leg: str, hits: Sequence[tuple[Key, float]], words: int) -> Ranked[Key]:
    """Hits of a leg as fusion takes them. Args: hits: with their scores, best first; words: of the query."""
    if leg == VECTOR:
        return fusion.meaning(hits)
    best = max((score for _, score in hits), default=0.0)
    return fusion.words(hits, fusion.telling(best, words) if leg == LEXICAL else 1.0)
