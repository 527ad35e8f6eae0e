"""Joining the legs of a search into one order, with the share of each leg kept for explanation."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

RRF_K: Final = 60
# What scores of 0 and below add, by their rank: enough to keep their order, and nothing beside any other score.
_LEAST: Final = 1e-6

Key = TypeVar("Key", bound=Hashable)


class Fusion(StrEnum):
    """How legs are joined. Sums of scores keep how much better a hit is; reciprocal ranks forget it."""

    SCORES = "scores"
    RRF = "rrf"


@dataclass(frozen=True, slots=True)
class Share:
    """What one leg says of a hit: its score there, its rank from 0, and what it adds to the fused score."""

    score: float
    rank: int
    added: float


@dataclass(frozen=True, slots=True)
class Fused(Generic[Key]):
    """A hit with its fused score, the sum of what each leg added."""

    key: Key
    score: float
    shares: Mapping[str, Share]


def fuse(
    legs: Mapping[str, Sequence[tuple[Key, float]]], method: Fusion = Fusion.SCORES, *, rrf_k: int = RRF_K
) -> list[Fused[Key]]:
    """Join legs of equal weight, best first.

    Scores are divided by the largest of their leg, since BM25 and cosines have no common scale; those of 0 and below add
    next to nothing, so that they come last, in their order. By RRF a hit gets 1 / (k + rank + 1) from each leg, ranks from 0.

    Args: legs: by name, (key, score) best first, each key once; rrf_k: values of 0 or less mean 60.
    """
    shares: dict[Key, dict[str, Share]] = {}
    for name, hits in legs.items():
        most = max((score for _, score in hits), default=0.0)
        for rank, (key, score) in enumerate(hits):
            if method is Fusion.RRF:
                added = 1 / ((rrf_k if rrf_k > 0 else RRF_K) + rank + 1)
            else:
                added = max(score / most, _LEAST) if score > 0 else _LEAST * (1 - rank / len(hits))
            shares.setdefault(key, {})[name] = Share(score, rank, added)
    found = [Fused(key, sum(share.added for share in each.values()), each) for key, each in shares.items()]
    # Sorting is stable: of equals, the one that an earlier leg found first stays first.
    return sorted(found, key=lambda hit: -hit.score)
