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
# Scripts without spaces have no words to compare, so each of their letters stands for one.
_WORD = regex.compile(
    rf"(?V1)[{_NO_SPACES}]\p{{M}}*+|[[\p{{L}}\p{{N}}]--[{_NO_SPACES}]][[\p{{L}}\p{{N}}\p{{M}}]--[{_NO_SPACES}]]*+"
)
_ASCII_WORD = re.compile(r"[a-z0-9]+")
_APART = regex.compile(rf"(?<=[{_NO_SPACES}]\p{{M}}*) (?=[{_NO_SPACES}])")


def spoken(said: str) -> list[str]:
    """The words of a text, folded, in order, with nothing left out."""
    folded = text.fold(said)
    found: list[str] = (_ASCII_WORD if folded.isascii() else _WORD).findall(folded)
    return found


def names_of(title: str, properties: Mapping[str, Any]) -> list[str]:
    """The names of an object as its words say them, sorted; none when nothing that it is called would tell it apart."""
    given = [title, _QUALIFIER.sub("", title), properties.get("name")]
    aliases = properties.get("aliases")
    given += aliases[:_ALIASES] if isinstance(aliases, list) else [aliases]
    return sorted({name for one in given if isinstance(one, str) and (name := _name(one))})


def terms_of(name: str) -> list[int]:
    """The index terms that every text has in which a name stands, the longest word's first; none for what is no name."""
    words = text.words(_APART.sub("", name))
    ordered = sorted(dict.fromkeys(words), key=lambda word: (-len(word), word))
    return [text.term_of(word) for word in ordered]


def _name(said: str) -> str:
    words = spoken(said)
    name = " ".join(words)
    if not 1 <= len(words) <= NAME_WORDS or not NAME_MIN_CHARS <= len(name) <= NAME_CHARS:
        return ""
    tells = any(letter.isalpha() for letter in name) and text.says_something(_APART.sub("", name))
    return name if tells else ""


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
