"""Newest wins: of two statements about what was asked, the one that was made later and says so comes first.

Plain retrieval rates "the quota is 1,000 calls" and "the new quota is 1,200 calls" alike, and finds the stale one first in
half of the cases. The older one stays where it was, right behind, and is marked with the id of the newer one. A question
about the past, or about how something changed, is left alone. The words are English; other languages keep their order.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from isotherm.pipeline import text
from isotherm.pipeline.tier.ranking import Scored, lexical_overlap

# The best of an answer that are compared with each other.
LOOKED_AT: Final = 20
# From which likeness on two statements may be about one thing: cosine of their vectors, or else their shared words.
SAME_COSINE: Final = 0.5
_SAME_WORDS: Final = 0.3
# The share of the query's information that a sentence must have to be about it.
_ABOUT: Final = 0.25
# A later statement that is rated far lower is about something else.
AS_GOOD: Final = 0.6
_SENTENCES = 40
_STEP = 1e-9

_HISTORY = re.compile(
    r"\b(?:originally|initially|previously|earlier|earliest|used to|history|over time|timeline|sequence|between|progress(?:ed)?|"
    r"evolv\w*|chang(?:e|ed|es)|summar\w+|throughout|so far|how did|(?:in|the|what|which) order|compare\w*|different|when did|"
    r"across)\b",
    re.IGNORECASE,
)
_RENEWED = re.compile(
    r"\b(?:now|nowadays|recent|recently|new|newly|latest|updat(?:e|ed|ing)|chang(?:e|ed|es|ing)|increas(?:e|ed|es|ing)|"
    r"decreas(?:e|ed)|reduc(?:e|ed)|improv(?:ed|es)|rais(?:e|ed)|lower(?:ed)?|extend(?:ed)?|moved|postponed|"
    r"reschedul(?:e|ed)|switched|replaced|instead|no longer|anymore|grown|reached|since)\b",
    re.IGNORECASE,
)
# Each of those words has one of these in it, which is found in a tenth of the time.
_NEWS = (
    "now", "recent", "new", "latest", "updat", "chang", "increas", "decreas", "reduc", "improv", "rais", "lower", "extend",
    "moved", "postponed", "reschedul", "switched", "replaced", "instead", "no longer", "anymore", "grown", "reached", "since",
)  # fmt: skip
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")

_BEGINNING = 3

Pair = tuple[int, int]
Hints = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """The sentence of a record that is most about the query.

    Args: key: the row; at: when it was said, then its id; speaker: who said it; words: of the sentence; about: its share of
        the query's information; renews: whether it says that something is new.
    """

    key: int
    at: tuple[datetime, str]
    speaker: str | None
    words: frozenset[int]
    about: float
    renews: bool


def asks_for_the_present(query: str) -> bool:
    """Whether a question is about how things are, rather than how they were or became."""
    return bool(query.strip()) and _HISTORY.search(query) is None


def may_renew(content: str) -> bool:
    """Whether a text has a word of change anywhere: a quick look before its sentences are compared."""
    # In other scripts letters are equal that `lower` keeps apart.
    if content.isascii() and not any(map(content.lower().__contains__, _NEWS)):
        return False
    return _RENEWED.search(content) is not None


def statement(
    scored: Scored, speaker: str | None, content: str, weights: Mapping[int, float], hints: Hints = ()
) -> Statement:
    """What a record says about a query; see `statement_of`."""
    one = scored.candidate
    return statement_of(one.key, (one.created_at, one.id), speaker, content, weights, hints)


def statement_of(
    key: int,
    at: tuple[datetime, str],
    speaker: str | None,
    content: str,
    weights: Mapping[int, float],
    hints: Hints = (),
) -> Statement:
    """Find what a text says about a query.

    Args: weights: of the query's words, by term; hints: of the query, so that only sentences that may have its words are
        split; none means all of them; the others as for `Statement`.
    """
    total = sum(weights.values())
    best, about, said = frozenset[int](), 0.0, ""
    for sentence in [part for part in _SENTENCE_END.split(content) if part.strip()][:_SENTENCES]:
        if hints and not any(hint in text.fold(sentence) for hint in hints):
            continue
        words = frozenset(text.terms(sentence))
        share = sum(weights[term] for term in words & weights.keys()) / total if total > 0 else 0.0
        if share > about:
            best, about, said = words, share, sentence
    return Statement(key, at, speaker, best, about, _RENEWED.search(said) is not None)


def hints_of(query: str) -> Hints:
    """Beginnings of the query's words: a sentence without any of them has none of the words, whatever their endings."""
    return tuple(sorted({word[:_BEGINNING] for word in text.words(query)}))


def pairs(statements: Sequence[Statement]) -> list[Pair]:
    """Keys of an older and a newer statement of one speaker that may be about one thing, where the newer says it is news."""
    about = [one for one in statements if one.about >= _ABOUT]
    return [
        (older.key, newer.key)
        for newer in about
        if newer.renews
        for older in about
        if older.at < newer.at and older.speaker == newer.speaker
    ]


def alike(statements: Sequence[Statement], found: Iterable[Pair], cosines: Mapping[Pair, float]) -> list[Pair]:
    """Those pairs that are about one thing. Args: cosines: of the records' vectors, as far as both have one."""
    words = {one.key: one.words for one in statements}
    return [
        pair
        for pair in found
        if (
            cosines[pair] >= SAME_COSINE
            if pair in cosines
            else lexical_overlap(words[pair[0]], words[pair[1]]) >= _SAME_WORDS
        )
    ]


def newest_first(scored: Sequence[Scored], found: Collection[Pair]) -> tuple[list[Scored], dict[int, int]]:
    """Lift each newer statement above the best of the older ones it renews.

    Args: scored: best first; found: pairs of an older and a newer key. Returns: best first, and by key of an older
        statement the key of the best newer one.
    """
    totals = {item.candidate.key: item.parts.total for item in scored}
    said = {item.candidate.key: (item.candidate.created_at, item.candidate.id) for item in scored}
    lifted, replaced = lifts(totals, said, [(a, b) for a, b in found if totals[b] >= AS_GOOD * totals[a]])
    raised = [_raised(item, lifted) for item in scored]
    return sorted(raised, key=lambda item: -item.parts.total), replaced


def lifts(
    totals: Mapping[int, float], said: Mapping[int, tuple[datetime, str]], found: Collection[Pair]
) -> tuple[dict[int, float], dict[int, int]]:
    """Where newer statements go: just above the best older one that each renews, of several the newest first.

    Args: totals: scores; said: when each was said, then its id; found: pairs of an older and a newer key.
    Returns: new scores of the newer ones, and by key of an older statement the key of the best newer one.
    """
    above: dict[int, float] = {}
    for older, newer in found:
        above[newer] = max(above.get(newer, totals[newer]), totals[older])
    order = sorted(above, key=lambda key: said[key])
    replaced: dict[int, int] = {}
    for older, newer in found:
        known = replaced.get(older)
        replaced[older] = newer if known is None or totals[newer] > totals[known] else known
    return {key: above[key] + place * _STEP for place, key in enumerate(order, start=1)}, replaced


def _raised(item: Scored, lifted: Mapping[int, float]) -> Scored:
    key, parts = item.candidate.key, item.parts
    if key not in lifted:
        return item
    total = lifted[key]
    return item._replace(parts=replace(parts, total=total, renewal=total - parts.total))
