"""The score of a recall, and which records it selects."""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.likeness import Columns, Floats, Likeness, likenesses, mean_of_both
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.weights import RecallWeights

RECENCY_HOURS = 168.0
_FURTHER = ("graph", "learned")  # legs that find a record without its own words or vector
# Sentence models rate unrelated texts between 0 and 0.2, related ones from about 0.3.
RELEVANT_COSINE = 0.3
_SPEC_WORD_BYTES = 2
_K1 = 0.9
_B = 0.4


class Lexical(StrEnum):
    """How the words of a query are compared with those of a record."""

    RARITY = "rarity"  # rare words count more: `rarity_match`; joined with the rest by `likenesses`
    OVERLAP = "overlap"  # the specification's own measure: `lexical_overlap`; the larger of it and the cosine counts


class Touch(StrEnum):
    """Which records of an answer count as accessed."""

    RELEVANT = "relevant"  # those the query found, by a word or by likeness
    SELECTED = "selected"  # all of them, as in the specification
    NONE = "none"

    @classmethod
    def of(cls, asked: "bool | Touch") -> "Touch":
        """Read a yes as RELEVANT and a no as NONE."""
        return asked if isinstance(asked, Touch) else cls.RELEVANT if asked else cls.NONE

    def counts(self, parts: "ScoreParts") -> bool:
        """Whether a record with this score counts."""
        return self is Touch.SELECTED or (self is Touch.RELEVANT and parts.is_relevant)


class Candidate(NamedTuple):
    """A record that some index proposed.

    Args: key: the row; overlap: of query and record words, in [0, 1]; cosine: None without an embedder; legs: what
        proposed it (recent, lexical, vector, around: next to a hit by words); turn_of: the session that it is a turn of,
        None for what is no turn; around: keys of the turns around it, each with its distance from 1; timely: whether it is
        of the time that is asked about.
    """

    key: int
    id: str
    tier: Tier
    created_at: datetime
    importance: float
    overlap: float = 0.0
    cosine: float | None = None
    legs: frozenset[str] = frozenset()
    turn_of: int | None = None
    around: Sequence[tuple[int, int]] = ()
    timely: bool = False


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """The parts of a score before weighting, and their weighted sum.

    Args: shares: what words, meaning, the turns around, the session and the time add to `semantic`; empty by the specification's rule;
        renewal: what was added to the sum because the record says anew what a better one said before; relevance: what a
        reranker says, on its own scale, None where none was asked.
    """

    semantic: float
    overlap: float
    cosine: float | None
    recency: float
    importance: float
    total: float
    shares: Mapping[str, float] = field(default_factory=dict)
    renewal: float = 0.0
    relevance: float | None = None

    @property
    def is_relevant(self) -> bool:
        """Whether the query found the record, rather than its age: by a word, more than chance likeness, a walk, or a point."""
        if self.overlap > 0 or (self.cosine is not None and self.cosine >= RELEVANT_COSINE):
            return True
        return any(self.shares.get(leg, 0.0) > 0 for leg in _FURTHER)


class Scored(NamedTuple):
    """A candidate with its score."""

    candidate: Candidate
    parts: ScoreParts


@dataclass(frozen=True, slots=True)
class Candidates:
    """Candidates of one query, compared as columns; one is made when it is looked at, since most never are.

    Args: columns: what compares them with each other, cosines from -1 to 1; the other columns: of the same length;
        made: makes the candidate at a place.
    """

    columns: Columns
    ids: Sequence[str]
    created_at: Sequence[datetime]
    importance: Sequence[float]
    made: Callable[[int], Candidate]

    @classmethod
    def of(cls, rows: Iterable[Candidate]) -> "Candidates":
        """Candidates that are there one by one."""
        sound = [_sound(row) for row in rows]
        return cls(
            Columns.of(sound),
            [row.id for row in sound],
            [row.created_at for row in sound],
            [row.importance for row in sound],
            sound.__getitem__,
        )

    def __len__(self) -> int:
        """How many there are."""
        return len(self.ids)

    def __iter__(self) -> Iterator[Candidate]:
        """All of them, in no order."""
        return map(self.made, range(len(self)))


class Ranking(Sequence[Scored]):
    """Scored candidates, best first; each is made when it is looked at, and kept.

    Args: made: makes the one at a place; order: places, best first.
    """

    def __init__(self, made: Callable[[int], Scored], order: Sequence[int]) -> None:
        self._made = made
        self._order = order
        self._seen: dict[int, Scored] = {}

    @overload
    def __getitem__(self, at: int) -> Scored: ...
    @overload
    def __getitem__(self, at: slice) -> list[Scored]: ...
    def __getitem__(self, at: int | slice) -> Scored | list[Scored]:
        """One by its rank from 0, or several."""
        if isinstance(at, slice):
            return [self._at(place) for place in self._order[at]]
        return self._at(self._order[at])

    def __len__(self) -> int:
        """As many as there are candidates."""
        return len(self._order)

    def __iter__(self) -> Iterator[Scored]:
        """All of them, best first."""
        return map(self._at, self._order)

    def _at(self, place: int) -> Scored:
        found = self._seen.get(place)
        if found is None:
            found = self._seen[place] = self._made(place)
        return found


def lexical_overlap(query_terms: Collection[int | str], doc_terms: Collection[int | str]) -> float:
    """Return the shared terms over the larger of both sets, 0 when either is empty."""
    query, doc = frozenset(query_terms), frozenset(doc_terms)
    if not query or not doc:
        return 0.0
    return len(query & doc) / max(len(query), len(doc))


def rarity_weight(having: int, of: int) -> float:
    """Return what a word weighs that `having` of `of` records have, as in BM25; never below 0."""
    return math.log1p((max(of, having) - having + 0.5) / (having + 0.5))


def rarity_match(shared_weight: Floats, query_weight: float, size: NDArray[np.int64], typical_size: float) -> Floats:
    """Return how much of a query's information each record has: BM25 over distinct words, scaled into [0, 1].

    A plain overlap rates a greeting above the sentence that answers, since every word counts the same and length only
    divides. Here rare words count more and length only dampens.

    Args: shared_weight: of each record, query_weight: sums of the weights of the shared and of all query words; size: words
        of each record; typical_size: mean words of the records it is compared with. k1 0.9 and b 0.4 are the usual values
        for short texts (Anserini's defaults).
    """
    if query_weight <= 0:
        return np.zeros_like(shared_weight, np.float64)
    length = size / typical_size if typical_size > 0 else np.ones_like(size, np.float64)
    dampening = (1 + _K1 * (1 - _B)) / (1 + _K1 * (1 - _B + _B * length))
    return np.where(shared_weight > 0, np.minimum(1.0, shared_weight / query_weight * dampening), 0.0)


def spec_tokens(text: str) -> frozenset[str]:
    """Split as the specification's own ranking does: at white space, in lower case, at least 2 bytes of UTF-8."""
    words = text.lower().split()
    return frozenset(word for word in words if len(word.encode("utf-8", "replace")) >= _SPEC_WORD_BYTES)


def recency(created_at: datetime, now: datetime) -> float:
    """Return exp(-age / 168 h): 1 for now and for the future."""
    return _recencies([created_at], now)[0]


def _recencies(moments: Iterable[datetime], now: datetime) -> list[float]:
    ages = ((now - moment).total_seconds() / 3600 for moment in moments)
    return [math.exp(-age / RECENCY_HOURS) if age > 0 else 1.0 for age in ages]


def score(candidate: Candidate, weights: RecallWeights, now: datetime, lexical: Lexical = Lexical.RARITY) -> ScoreParts:
    """Score one candidate by itself. Args: lexical: how its overlap was measured, which says how its cosine joins it."""
    sound = _sound(candidate)
    if lexical is Lexical.OVERLAP:
        semantic = max(sound.overlap, sound.overlap if sound.cosine is None else sound.cosine)
    else:
        semantic = mean_of_both(sound.overlap, sound.cosine)
    return _parts(sound, Likeness(semantic), weights, now)


def _sound(candidate: Candidate) -> Candidate:
    """The candidate with a cosine that is one, or none."""
    cosine = candidate.cosine
    if cosine is None or -1.0 <= cosine <= 1.0:
        return candidate
    return candidate._replace(cosine=None if math.isnan(cosine) else min(1.0, max(-1.0, cosine)))


def _parts(candidate: Candidate, likeness: Likeness, weights: RecallWeights, now: datetime) -> ScoreParts:
    fresh = recency(candidate.created_at, now)
    importance = min(1.0, max(0.0, candidate.importance))
    total = weights.semantic * likeness.value + weights.recency * fresh + weights.importance * importance
    return ScoreParts(likeness.value, candidate.overlap, candidate.cosine, fresh, importance, total, likeness.shares)


def rank(
    candidates: Iterable[Candidate] | Candidates,
    weights: RecallWeights,
    now: datetime,
    lexical: Lexical = Lexical.RARITY,
) -> Ranking:
    """Order candidates by score, best first; equal scores by id, then key.

    Args: lexical: as for `score`; by RARITY candidates are compared with each other, as `likenesses` says.
    """
    if lexical is Lexical.OVERLAP:
        scored = [Scored(candidate, score(candidate, weights, now, lexical)) for candidate in candidates]
        keys = [(-item.parts.total, item.candidate.id, item.candidate.key) for item in scored]
        return Ranking(scored.__getitem__, sorted(range(len(scored)), key=keys.__getitem__))
    asked = candidates if isinstance(candidates, Candidates) else Candidates.of(candidates)
    alike = likenesses(asked.columns)
    fresh = np.array(_recencies(asked.created_at, now), np.float64)
    importance = np.clip(np.array(asked.importance, np.float64), 0.0, 1.0)
    totals = weights.semantic * alike.values + weights.recency * fresh + weights.importance * importance

    def made(place: int) -> Scored:
        candidate = asked.made(place)
        return Scored(candidate, _parts(candidate, alike[place], weights, now))

    best_first = sorted(zip((-totals).tolist(), asked.ids, asked.columns.keys, range(len(totals)), strict=True))
    return Ranking(made, [place for _, _, _, place in best_first])


def select(scored: Sequence[Scored], budget: RecallBudget) -> list[Scored]:
    """Choose what a recall returns.

    Args: scored: best first, as `rank` returns it; a row that comes twice counts once.
    Returns: at most `budget.total` items, oldest first (created_at, id). Levels switched off give none; a share the
        caller gave is a minimum, as far as the level has records; the rest is filled by score from all levels.
    """
    normal = budget.normalize()
    total = normal.total or 0
    off = frozenset(tier for tier in Tier if normal.is_off(tier))
    chosen: dict[int, Scored] = {}
    for tier in Tier:
        if least := normal.minimum(tier):
            _take(chosen, (item for item in scored if item.candidate.tier is tier), len(chosen) + least)
    _take(chosen, (item for item in scored if item.candidate.tier not in off), total)
    return sorted(chosen.values(), key=lambda item: (item.candidate.created_at, item.candidate.id, item.candidate.key))


def _take(chosen: dict[int, Scored], scored: Iterable[Scored], until: int) -> None:
    """Choose the best until there are so many; the rest is not looked at."""
    for item in scored:
        if len(chosen) >= until:
            return
        chosen.setdefault(item.candidate.key, item)
