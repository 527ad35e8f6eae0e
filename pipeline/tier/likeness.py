"""How like a query records are: by their own words and meaning, by the turns around them, their session and their time.

What answers a question is often not the turn that has its words but the one before or after it, and often stands in a
session that was about the matter. So a turn also gets a share of the words of its neighbors, and of the best of its session.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline import fusion

Floats = NDArray[np.float64]

# How far the turns around a hit are looked at, and what their words count by distance.
REACH: Final = 2
_BY_STEP: Final = (0.0, 0.4, 0.25)
_OF_SESSION: Final = 0.4
# What the meaning of the turns around it counts beside their words, and how steeply: of cosines, which crowd, only the best
# tell where the matter was spoken of.
_AROUND_MEANT: Final = 0.5
_AROUND_PEAK: Final = 8
# What the best by words has of each word asked when all of them are heard. Here words count once, so it is less than by BM25.
TELLING: Final = 1.5
# What it counts to be of the time that is asked about, of what the best has.
_OF_TIME: Final = 0.3
# What it counts that a matching point was learned from it, of what the best has.
_OF_LEARNED: Final = 0.3


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


class Likeness(NamedTuple):
    """How like a query a record is, in [0, 1], and what each leg adds: words, meaning, around, session, time and learned sum to it."""

    value: float
    shares: Mapping[str, float] = MappingProxyType({})


class Columns(NamedTuple):
    """Candidates as columns, entry i of each for candidate i: all of them are compared, and few are looked at.

    Args: cosine: NaN without a vector; around: of each turn beside a candidate the place of the candidate, the row of the
        turn, and its distance from 1; told: how far words are heard, see `fusion.telling`;
        learned: how like the query the best point is that was learned from it, in [0, 1], None without any; sums: the session that it
        is a summary of, None (for all of them) without any. The rest is as in `Likened`.
    """

    keys: Sequence[int]
    overlap: Floats
    cosine: Floats
    turn_of: Sequence[int | None]
    around: tuple[Sequence[int], Sequence[int], Sequence[int]]
    timely: Sequence[bool]
    told: float = 1.0
    learned: Floats | None = None
    sums: Sequence[int | None] | None = None

    @classmethod
    def of(cls, rows: Sequence[Likened]) -> Columns:
        """The columns of candidates that are there one by one."""
        around = [(place, key, step) for place, row in enumerate(rows) for key, step in row.around]
        return cls(
            [row.key for row in rows],
            np.array([row.overlap for row in rows], np.float64),
            np.array([np.nan if row.cosine is None else row.cosine for row in rows], np.float64),
            [row.turn_of for row in rows],
            ([place for place, _, _ in around], [key for _, key, _ in around], [step for _, _, step in around]),
            [row.timely for row in rows],
        )


class Likenesses(Sequence[Likeness]):
    """How like a query each candidate is; `values` has shape (n,), and shares are told apart where they are asked for."""

    def __init__(self, values: Floats, shares: Mapping[str, Floats]) -> None:
        self.values = values
        self._shares = shares

    @overload
    def __getitem__(self, at: int) -> Likeness: ...
    @overload
    def __getitem__(self, at: slice) -> list[Likeness]: ...
    def __getitem__(self, at: int | slice) -> Likeness | list[Likeness]:
        """One by its place, or several."""
        if isinstance(at, slice):
            return [self[place] for place in range(len(self))[at]]
        return Likeness(float(self.values[at]), {leg: float(parts[at]) for leg, parts in self._shares.items()})

    def __len__(self) -> int:
        """As many as there are candidates."""
        return len(self.values)

    def __iter__(self) -> Iterator[Likeness]:
        """All of them, in order."""
        return (self[place] for place in range(len(self)))


def mean_of_both(overlap: float, cosine: float | None) -> float:
    """The likeness of one record by itself. A vector that is missing is not held against it."""
    # A record waits seconds for its vector: were a missing one a cosine of 0, what was said last would be found last.
    # Below 0 a cosine says no more than at 0: unlike.
    return overlap if cosine is None else (overlap + max(0.0, cosine)) / 2


def likenesses(rows: Sequence[Likened] | Columns) -> Likenesses:
    """Compare candidates with each other.

    Their order follows from legs that are heard as far as their best stand out (`isotherm.pipeline.fusion`); the best one
    is as like the query as any is by the larger of overlap and cosine, so that age and importance keep their weight beside it.

    Args: rows: cosines in [-1, 1]. Returns: one for each row.
    """
    asked = rows if isinstance(rows, Columns) else Columns.of(rows)
    if not asked.keys:
        return Likenesses(np.zeros(0), {})
    unknown = np.isnan(asked.cosine)
    alike = np.where(unknown, 0.0, np.maximum(0.0, asked.cosine))
    heard = fusion.weights(
        {
            "words": fusion.words(_best(asked.overlap), asked.told),
            "meaning": fusion.meaning(_best(asked.cosine[~unknown])),
        }
    )
    words, meaning = _of_most(asked.overlap), _of_most(alike)
    shares = {
        "words": heard["words"] * words,
        "meaning": heard["meaning"] * np.where(unknown, words, meaning),  # unknown: what its vector will say
    }
    own = shares["words"] + shares["meaning"]
    beside = heard["words"] * words + heard["meaning"] * _AROUND_MEANT * meaning**_AROUND_PEAK
    shares["around"] = _around(asked, beside)
    shares["session"] = _OF_SESSION * _best_of_session(asked, own)
    total = own + shares["around"] + shares["session"]
    shares["time"] = np.where(asked.timely, _OF_TIME * total.max(), 0.0)
    total, level = total + shares["time"], max(asked.overlap.max(), alike.max())
    if asked.learned is not None:
        shares["learned"] = _OF_LEARNED * (total.max() or 1.0) * _of_most(asked.learned)
        total, level = total + shares["learned"], max(level, _OF_LEARNED * asked.learned.max())
    most = total.max()
    factor = level / most if most > 0 else 0.0
    return Likenesses(factor * total, {leg: factor * parts for leg, parts in shares.items()})


def _best(scores: Floats) -> list[tuple[int, float]]:
    """The scores that say how far a leg is heard, best first."""
    return list(enumerate(np.sort(scores)[: -fusion.FIELD - 2 : -1].tolist()))


def _of_most(scores: Floats) -> Floats:
    most = scores.max()
    return scores / most if most > 0 else np.zeros(len(scores))


def _around(asked: Columns, beside: Floats) -> Floats:
    """What the turns around each candidate count for it. Args: beside: what each counts for a turn next to it."""
    places, keys, steps = asked.around
    place_of = {key: place for place, key in enumerate(asked.keys)}
    there = np.array([place_of.get(key, -1) for key in keys], np.int64)
    counts = np.array([_BY_STEP[step] if step <= REACH else 0.0 for step in steps], np.float64)
    known = np.append(beside, 0.0)  # the last stands for turns that were not read
    return np.bincount(np.array(places, np.int64), counts * known[there], len(beside)).astype(np.float64)


def _best_of_session(asked: Columns, own: Floats) -> Floats:
    """For each turn the best of its session or what a summary of it has, 0 for what is no turn."""
    best: dict[int | None, float] = {}
    values = own.tolist()
    for sessions in (asked.turn_of, asked.sums or ()):
        for session, value in zip(sessions, values, strict=False):
            if value > best.get(session, 0.0):
                best[session] = value
    best[None] = 0.0
    return np.array([best.get(session, 0.0) for session in asked.turn_of])
