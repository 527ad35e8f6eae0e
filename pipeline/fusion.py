"""Joining the legs of a search into one order, with the share of each leg kept for explanation.

One rule for every leg and every verb: a leg is heard as far as its best stand out of its field. Where a query's words are
everywhere, BM25 rates a hundred texts almost alike, and so says little about any of them; where one text alone has them, it
says a lot. The same holds of cosines, of a walk over a graph, and of whatever else brings scores. Besides, words are heard
as far as the best text has words that tell something: long questions in common words always have a best text.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

RRF_K: Final = 60
# The place whose score stands for a leg's field: well behind what a reader looks at.
FIELD: Final = 20
# Cosines of one model crowd: their best stand out of the field by a third of what the best by words do, as a rule.
COSINE_UNIT: Final = 3.0
# What the best text by words has of each word asked, by BM25, when all of them are heard: words that one in eight texts has.
TELLING: Final = 2.0
# A leg that cannot tell its hits apart is still heard a little, since to be found by it is more than not to be.
_FAINT: Final = 0.05

Key = TypeVar("Key", bound=Hashable)


class Fusion(StrEnum):
    """How legs are joined. Sums of scores keep how much better a hit is; reciprocal ranks forget it."""

    SCORES = "scores"
    RRF = "rrf"


@dataclass(frozen=True, slots=True)
class Ranked(Generic[Key]):
    """What one leg found.

    Args: hits: (key, score) best first, each key once, higher is better; unit: how much its confidence counts beside that
        of other legs; confidence: in [0, 1], how much it says of this query, None to take how far its best stand out;
        is_whole: whether it found all that it could, so that whatever is missing has a score of 0 there.
    """

    hits: Sequence[tuple[Key, float]]
    unit: float = 1.0
    confidence: float | None = None
    is_whole: bool = True


class Share(NamedTuple):
    """What one leg says of a hit: its score there, its rank from 0, and what it adds to the fused score."""

    score: float
    rank: int
    added: float


class Fused(NamedTuple, Generic[Key]):
    """A hit with its fused score, the sum of what each leg added."""

    key: Key
    score: float
    shares: Mapping[str, Share]


def words(hits: Sequence[tuple[Key, float]], told: float = 1.0) -> Ranked[Key]:
    """A leg that goes by shared words: what it leaves out shares none. Args: told: what `telling` says of them."""
    return Ranked(hits, unit=told)


def meaning(hits: Sequence[tuple[Key, float]]) -> Ranked[Key]:
    """A leg of cosines: what it leaves out is a little less alike than its last."""
    return Ranked(hits, unit=COSINE_UNIT, is_whole=False)


def telling(best: float, asked: int, whole: float = TELLING) -> float:
    """How much of what its words could tell a query found, in [0, 1].

    Args: best: what the best text has, each word by how rare it is; asked: words of the query; whole: of each word asked,
        when all are heard.
    """
    return min(1.0, max(0.0, best) / (whole * max(asked, 1)))


def peakedness(scores: Collection[float], *, is_whole: bool = True) -> float:
    """How far the best of a leg stand out of its field, in [0, 1]: 0 when all are alike, 1 when few have anything.

    Args: scores: best first; is_whole: whether what is not among them counts as 0.
    """
    ordered = list(scores)[: FIELD + 1]
    if not ordered or ordered[0] <= 0:
        return 0.0
    rest = 0.0 if is_whole and len(ordered) <= FIELD else ordered[-1]
    return min(1.0, max(0.0, 1 - rest / ordered[0]))


def weights(legs: Mapping[str, Ranked[Key]]) -> dict[str, float]:
    """How much each leg is heard, summing to 1 over those that found something; 0 for the others."""
    heard = {name: _heard(leg) for name, leg in legs.items()}
    total = sum(heard.values())
    return {name: value / total if total > 0 else 0.0 for name, value in heard.items()}


def fuse(legs: Mapping[str, Ranked[Key]], method: Fusion = Fusion.SCORES, *, rrf_k: int = RRF_K) -> list[Fused[Key]]:
    """Join legs, best first.

    By SCORES a leg's scores are divided by its largest, since they have no common scale, and multiplied by its weight;
    negative ones add nothing. By RRF a hit gets 1 / (k + rank + 1) from each leg, ranks from 0, all legs alike.

    Args: rrf_k: values of 0 or less mean 60.
    """
    heard = weights(legs)
    shares: dict[Key, dict[str, Share]] = {}
    for name, leg in legs.items():
        most = max((score for _, score in leg.hits), default=0.0)
        for rank, (key, score) in enumerate(leg.hits):
            if method is Fusion.RRF:
                added = 1 / ((rrf_k if rrf_k > 0 else RRF_K) + rank + 1)
            else:
                added = heard[name] * (max(score, 0.0) / most) if most > 0 else 0.0
            shares.setdefault(key, {})[name] = Share(score, rank, added)
    found = [Fused(key, sum(share.added for share in each.values()), each) for key, each in shares.items()]
    # Sorting is stable: of equals, the one that an earlier leg found first stays first.
    return sorted(found, key=lambda hit: -hit.score)


def _heard(leg: Ranked[Key]) -> float:
    if not any(score > 0 for _, score in leg.hits):
        return 0.0
    own = peakedness([score for _, score in leg.hits], is_whole=leg.is_whole)
    return leg.unit * max(_FAINT, own if leg.confidence is None else leg.confidence)
