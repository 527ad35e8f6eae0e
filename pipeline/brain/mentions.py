"""Which known names a text mentions. Names and texts are compared as folded words, so a name is found as whole words only.

A title is a name, and so is what is left of it without a qualifier in parentheses at its end; the properties `name` and
`aliases` give more. What would be found everywhere is no name: function words, single letters, numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import regex
from ahocorasick_rs import AhoCorasick

from isotherm.pipeline import text

LABEL: Final = "mentions"
# A longer title is a sentence, and nobody repeats it word by word.
NAME_WORDS: Final = 12
NAME_MIN_CHARS: Final = 2
NAME_CHARS: Final = 120
# A name that more objects bear tells nothing about any of them.
BEARERS: Final = 8
_ALIASES: Final = 32

_QUALIFIER = re.compile(r"\s*\([^()]*\)\s*$")
_NO_SPACES = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Bopomofo}\u30fc\u3005\u3007\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_PAIRED = rf"{_NO_SPACES}\p{{Hangul}}"
# Scripts without spaces have no words to compare, so each of their letters stands for one. The index pairs letters that stand
# side by side, so it matters where there is something between them all the same, as between the names of a person.
_GAP = "_"


def _between(gap: str) -> str:
    return rf"(?:(?<=[{_PAIRED}]\p{{M}}*){gap}(?=[{_NO_SPACES}])|(?<=[{_NO_SPACES}]\p{{M}}*){gap}(?=[{_PAIRED}]))"


_WORD = regex.compile(
    rf"(?V1)[{_NO_SPACES}]\p{{M}}*+|[[\p{{L}}\p{{N}}]--[{_NO_SPACES}]][[\p{{L}}\p{{N}}\p{{M}}]--[{_NO_SPACES}]]*+"
    rf"|{_between(_GAP)}"
)
_ASCII_WORD = re.compile(r"[a-z0-9]+")
_GAPS = regex.compile("(?V1)" + _between(r"[^\p{L}\p{N}\p{M}]++"))
_SIDE_BY_SIDE = regex.compile("(?V1)" + _between(" "))
_ONE_LETTER = regex.compile(rf"(?V1)[{_PAIRED}]\p{{M}}*+")


def spoken(said: str) -> list[str]:
    """The words of a text, folded, in order, with nothing left out; gaps between letters that need none as `_`."""
    folded = text.fold(said)
    found: list[str] = _ASCII_WORD.findall(folded) if folded.isascii() else _WORD.findall(_GAPS.sub(_GAP, folded))
    return found


def names_of(title: str, properties: Mapping[str, Any]) -> list[str]:
    """The names of an object as its words say them, sorted; none when nothing that it is called would tell it apart.

    What is written with gaps where its script needs none is a name without them as well.
    """
    given = [title, _QUALIFIER.sub("", title), properties.get("name")]
    aliases = properties.get("aliases")
    given += aliases[:_ALIASES] if isinstance(aliases, list) else [aliases]
    said = [words for one in given if isinstance(one, str) for words in _written(spoken(one))]
    return sorted({name for words in said if (name := _name(words))})


def terms_of(name: str) -> list[int]:
    """The index terms that every text has in which a name stands, the longest word's first; none for what is no name."""
    # A letter that stands alone in a name may have a neighbor in a text, and is found in a pair then.
    words = [word for word in text.words(_SIDE_BY_SIDE.sub("", name)) if not _ONE_LETTER.fullmatch(word)]
    ordered = sorted(dict.fromkeys(words), key=lambda word: (-len(word), word))
    return [text.term_of(word) for word in ordered]


def _written(words: list[str]) -> list[list[str]]:
    return [words, [word for word in words if word != _GAP]]


def _name(words: list[str]) -> str:
    name = " ".join(words)
    if not 1 <= len(words) - words.count(_GAP) <= NAME_WORDS or not NAME_MIN_CHARS <= len(name) <= NAME_CHARS:
        return ""
    tells = any(letter.isalpha() for letter in name) and text.says_something(_SIDE_BY_SIDE.sub("", name))
    return name if tells and terms_of(name) else ""


class Lexicon:
    """Names to look for, all of them in one pass over a text."""

    def __init__(self, names: Iterable[str]) -> None:
        """Args: names: as `names_of` gives them."""
        self._names = sorted(set(names))
        self._automaton = AhoCorasick([f" {name} " for name in self._names]) if self._names else None

    def mentioned(self, said: str) -> Counter[str]:
        """How often each name stands in a text; inside a longer name that is known too, a name does not count.

        Cost: linear in the text and in what is found.
        """
        if self._automaton is None:
            return Counter()
        words = f" {' '.join(spoken(said))} "
        # Matches share the space between them, so those that overlap are asked for and the longest kept.
        found = self._automaton.find_matches_as_indexes(words, overlapping=True)
        counts: Counter[str] = Counter()
        end = 0
        for number, _, stop in sorted(found, key=lambda match: (match[1], -match[2])):
            if stop > end:
                end = stop
                counts[self._names[number]] += 1
        return counts


def phrases(query: str, words: int) -> list[str]:
    """Everything in a question that may be a name: runs of its words, from one to the longest name.

    Args: words: how many words of the question are looked at.
    """
    said = spoken(query)[:words]
    runs = (" ".join(said[at : at + n]) for at in range(len(said)) for n in range(1, NAME_WORDS + 1))
    return list(dict.fromkeys(runs))
