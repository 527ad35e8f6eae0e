"""Keyphrases by counting, without a model: runs of content words, weighed by how often, how early and how they stand.

A much reduced form of the statistics of RAKE and YAKE. English function words bound the runs; other languages written
with spaces work less well, and scripts without spaces give only short runs between punctuation.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import log2

from isotherm.pipeline.interest.rule_words import CHANGES, LIGHT, NEGATORS
from isotherm.pipeline.ports import Keyphrase
from isotherm.pipeline.text import words

_MAX_WORDS = 3
_MAX_WORD_CHARS = 40
_SENTENCE_END = re.compile(
    r"[.!?;:]+(?=\s|$)|[\n,()\[\]{}\"\u201c\u201d]+"
    r"|[\uff0c\u3002\uff01\uff1f\uff1b\uff1a\u3001]+"  # full-width punctuation
)
_WORD = re.compile(r"[^\W_][\w.\-+#@'\u2019/]*(?<![.\-'\u2019/])")
# Frequent words of conversations that name no subject.
_VAGUE = """
    last next every week weeks month months year years day days today tomorrow yesterday tonight time times thing things
    lot lots bit way ways good great nice awesome amazing cool wonderful glad happy wow hey hi hello thanks thank yeah yes
    sure okay ok oh think know see look looking feel feeling make made making take took taking give gave need needs let
    help tell told said say says come came much many new old recent recently soon later ago maybe definitely totally well
    kind sort bye lately super pretty please sounds
"""
_SILENT = LIGHT | CHANGES | NEGATORS | frozenset(_VAGUE.split())
_PER_WORD = 0.5
_PER_REPEAT = 0.2
_NAME_BONUS = 1.5

Stems = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Word:
    shown: str
    stems: Stems
    sentence: int
    named: bool


class CountingKeyphrases:
    """Finds keyphrases of up to three words by their statistics in the text itself."""

    def extract(self, text: str, limit: int) -> list[Keyphrase]:
        """Return at most `limit` keyphrases as they are written in the text, best first, scores in (0, 1].

        A phrase that repeats words of a better one is left out, unless it names another code or number. The same text always gives the same phrases.
        Cost: linear in the text, besides sorting its phrases.
        """
        runs = list(_runs(text))
        weights = _weights(runs)
        shown: dict[Stems, str] = {}
        counts: Counter[Stems] = Counter()
        for phrase in _phrases(runs):
            key = tuple(stem for word in phrase for stem in word.stems)
            counts[key] += 1
            shown.setdefault(key, " ".join(word.shown for word in phrase))
        scores = {key: _score(key, count, weights) for key, count in counts.items()}
        ranked = sorted(scores, key=lambda key: (-scores[key], key))
        chosen = _without_repeats(ranked, limit)
        return [Keyphrase(shown[key], scores[key] / scores[chosen[0]]) for key in chosen]


def _runs(text: str) -> Iterator[list[_Word]]:
    """Yield words that stand together, with no function word or punctuation between them."""
    for number, sentence in enumerate(part for part in _SENTENCE_END.split(text) if part.strip()):
        run: list[_Word] = []
        for place, match in enumerate(_WORD.finditer(sentence)):
            shown = match.group()
            stems = _stems(shown.lower())
            if stems:
                named = any(char.isdecimal() for char in shown) or (place > 0 and shown != shown.lower())
                run.append(_Word(shown, stems, number, named))
            elif run:
                yield run
                run = []
        if run:
            yield run


@lru_cache(maxsize=4096)
def _stems(word: str) -> Stems:
    if word in _SILENT or len(word) > _MAX_WORD_CHARS:
        return ()
    return tuple(words(f"{word} 0")[:-1])  # function words are only left out beside another word


def _weights(runs: list[list[_Word]]) -> dict[str, float]:
    """Weigh each stem: log of its count, more for names and what has digits, more for what comes first."""
    every = [word for run in runs for word in run]
    counts = Counter(stem for word in every for stem in word.stems)
    weights: dict[str, float] = {}
    for word in every:
        for stem in word.stems:
            weight = log2(1 + counts[stem]) * (1 + 1 / (1 + word.sentence)) * (_NAME_BONUS if word.named else 1.0)
            weights[stem] = max(weight, weights.get(stem, 0.0))
    return weights


def _phrases(runs: list[list[_Word]]) -> Iterator[list[_Word]]:
    for run in runs:
        for first in range(len(run)):
            if run[first].shown.isdecimal():
                continue  # "Postgres 17" says something, "17 last week" does not
            for size in range(1, min(_MAX_WORDS, len(run) - first) + 1):
                yield run[first : first + size]


def _score(key: Stems, count: int, weights: dict[str, float]) -> float:
    mean = sum(weights[stem] for stem in key) / len(key)
    return mean * (1 + _PER_REPEAT * log2(count)) * (1 + _PER_WORD * (len(key) - 1))


def _without_repeats(ranked: list[Stems], limit: int) -> list[Stems]:
    chosen: list[Stems] = []
    covered: set[str] = set()
    for key in ranked:
        if len(chosen) >= limit:
            break
        if covered.isdisjoint(key) or any(_coded(stem) for stem in set(key) - covered):
            chosen.append(key)
            covered.update(key)
    return chosen


def _coded(stem: str) -> bool:
    return any(char.isdecimal() for char in stem)
