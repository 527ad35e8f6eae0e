"""How like a query records are: by their own words and meaning, by the turns around them, their session and their time.

What answers a question is often not the turn that has its words but the one before or after it, and often stands in a
session that was about the matter. So a turn also gets a share of the words of its neighbors, and of the best of its session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from isotherm.pipeline import fusion

# How far the turns around a hit are looked at, and what their words count by distance.
REACH: Final = 2
_BY_STEP: Final = {1: 0.4, 2: 0.25}
_OF_SESSION: Final = 0.4
# What it counts to be of the time that is asked about, of what the best has.
_OF_TIME: Final = 0.3


class Likened(Protocol):
    """What is read of a candidate."""

    @property
    def key(self) -> int:
        """The row."""

    @property
    def overlap(self) -> float:
        """Of its words and the query's, in [0, 1]."""

    @property
    def cosine(self) -> float | None:
        """None without a vector."""

    @property
    def turn_of(self) -> int | None:
        """The session that it is a turn of; None for what is no turn of a conversation."""

    @property
    def around(self) -> Sequence[tuple[int, int]]:
        """Rows of the turns around it, each with its distance from 1."""

    @property
    def timely(self) -> bool:
        """Whether it is of the time that is asked about."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """How like a query a record is, in [0, 1], and what each leg adds: words, meaning, around, session and time sum to it."""

    value: float
    shares: Mapping[str, float] = field(default_factory=dict)


def mean_of_both(overlap: float, cosine: float | None) -> float:
    """The likeness of one record by itself. A vector that is missing is not held against it."""
    # A record waits seconds for its vector: were a missing one a cosine of 0, what was said last would be found last.
    # Below 0 a cosine says no more than at 0: unlike.
    return overlap if cosine is None else (overlap + max(0.0, cosine)) / 2


def likenesses(rows: Sequence[Likened]) -> list[Likeness]:
    """Compare candidates with each other.

    Their order follows from legs that are heard as far as their best stand out (`isotherm.pipeline.fusion`); the best one
    is as like the query as any is by the larger of overlap and cosine, so that age and importance keep their weight beside it.

    Args: rows: cosines in [-1, 1]. Returns: one for each row.
    """
    heard = fusion.weights(
        {
            "words": fusion.words(_best_first([row.overlap for row in rows])),
            "meaning": fusion.meaning(_best_first([row.cosine for row in rows if row.cosine is not None])),
        }
    )
    most_words = max((row.overlap for row in rows), default=0.0)
    most_alike = max((row.cosine for row in rows if row.cosine is not None), default=0.0)
    words = {row.key: row.overlap / most_words if most_words > 0 else 0.0 for row in rows}
    shares = [_own(row, words[row.key], most_alike, heard) for row in rows]
    best = _best_of_sessions(rows, shares)
    for row, share in zip(rows, shares, strict=True):
        around = sum(_BY_STEP.get(step, 0.0) * words.get(key, 0.0) for key, step in row.around)
        share["around"] = heard["words"] * around
        share["session"] = 0.0 if row.turn_of is None else _OF_SESSION * best[row.turn_of]
    most = max((sum(share.values()) for share in shares), default=0.0)
    for row, share in zip(rows, shares, strict=True):
        share["time"] = _OF_TIME * most if row.timely else 0.0
    return _scaled(shares, max((max(row.overlap, row.cosine or 0.0) for row in rows), default=0.0))


def _own(row: Likened, words: float, most_alike: float, heard: Mapping[str, float]) -> dict[str, float]:
    unknown = words  # what its vector will say
    known = max(0.0, row.cosine or 0.0) / most_alike if most_alike > 0 else 0.0
    alike = unknown if row.cosine is None else known
    return {"words": heard["words"] * words, "meaning": heard["meaning"] * alike}


def _best_of_sessions(rows: Sequence[Likened], shares: Sequence[Mapping[str, float]]) -> dict[int, float]:
    best: dict[int, float] = {}
    for row, share in zip(rows, shares, strict=True):
        if row.turn_of is not None:
            best[row.turn_of] = max(best.get(row.turn_of, 0.0), sum(share.values()))
    return best


def _scaled(shares: Sequence[Mapping[str, float]], level: float) -> list[Likeness]:
    most = max((sum(share.values()) for share in shares), default=0.0)
    factor = level / most if most > 0 else 0.0
    return [
        Likeness(factor * sum(share.values()), {leg: factor * part for leg, part in share.items()}) for share in shares
    ]


def _best_first(scores: Sequence[float]) -> list[tuple[int, float]]:
    return list(enumerate(sorted(scores, reverse=True)))
