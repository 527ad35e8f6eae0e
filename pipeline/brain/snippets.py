"""The piece of a text that shows why it was found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from isotherm.pipeline.brain.promotion import SNIPPET_CHARS, snippet

# What is looked through; a hit further on is shown by the beginning.
READ_CHARS: Final = 8_000
_BEFORE: Final = 40
_WORDS: Final = 32
# The texts of one answer share their query.
_QUERIES: Final = 16


def snippet_around(text: str, words: Sequence[str], most: int = SNIPPET_CHARS) -> str:
    """The stretch of a text with the most different words of a query, with an ellipsis where it was cut.

    The beginning serves when no later stretch has more, and for words in a form that the text does not spell.

    Args: words: as the word splitter gives them, stems too; most: characters, 0 or less means all of the text.
    """
    trimmed = text.strip()
    wanted = _pattern(tuple(words))
    if most <= 0 or len(trimmed) <= most or wanted is None:
        return snippet(trimmed, most)
    found = [(m.start(), m.group().lower()) for m in wanted.finditer(trimmed, 0, READ_CHARS)]
    start = _best(found, most)
    if start == 0:
        return snippet(trimmed, most)
    begun = trimmed.find(" ", max(start - _BEFORE, 0), start)
    begun = start if begun < 0 else begun + 1
    return "…" + snippet(trimmed[begun:], most)


@lru_cache(_QUERIES)
def _pattern(words: tuple[str, ...]) -> re.Pattern[str] | None:
    """Words at the beginning of a word; pairs of scripts without spaces anywhere. None without words."""
    wanted = sorted({word for word in words if word}, key=lambda word: (-len(word), word))[:_WORDS]
    said = [rf"\b{re.escape(w)}" if w.isascii() else re.escape(w) for w in wanted]
    return re.compile("|".join(said), re.IGNORECASE) if said else None


def _best(found: Sequence[tuple[int, str]], most: int) -> int:
    """Where the stretch with the most different words begins, the first of several; 0 for the beginning of the text."""
    window = most - _BEFORE
    best, where = len({word for at, word in found if at < window}), 0
    first = 0
    for last, (at, _) in enumerate(found):
        while found[first][0] < at - window:
            first += 1
        different = len({word for _, word in found[first : last + 1]})
        if different > best:
            best, where = different, found[first][0]
    return where
