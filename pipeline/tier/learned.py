"""What was learned from records: points of the agent's interests, as a leg of recall and beside its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

LEARNED: Final = "learned"
# Points that a query takes along, and how like it the last of them is to the best at least.
POINTS: Final = 8
_NEAR_BEST: Final = 0.5


@dataclass(frozen=True, slots=True)
class LearnedPoint:
    """A point that was distilled from records, and was said by nobody in these words.

    Args: likeness: of the query, in [0, 1]; said_at: when something was last said for it; keys, records: the rows and ids
        of the records of the scope that it stands on, newest first.
    """

    id: UUID
    name: str
    summary: str
    likeness: float
    said_at: datetime
    keys: tuple[int, ...] = ()
    records: tuple[str, ...] = ()


def chosen(found: Sequence[LearnedPoint], least: float) -> tuple[LearnedPoint, ...]:
    """The points that a query takes along, most like it first. Args: least: likeness of what has to do with it at all."""
    ordered = sorted((p for p in found if p.keys), key=lambda p: (-p.likeness, str(p.id)))[:POINTS]
    best = ordered[0].likeness if ordered else 0.0
    return tuple(p for p in ordered if p.likeness >= max(least, _NEAR_BEST * best))


def of_records(points: Sequence[LearnedPoint]) -> Mapping[int, float]:
    """By row key of a record how like the query the best point is that stands on it."""
    found: dict[int, float] = {}
    for point in points:
        for key in point.keys:
            found[key] = max(found.get(key, 0.0), point.likeness)
    return found
