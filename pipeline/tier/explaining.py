"""Why a record of the in-process manager is where it is, and what comes next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from isotherm.pipeline.tier.answers import Recall
from isotherm.pipeline.tier.observers import RecordMove
from isotherm.pipeline.tier.plan import Move
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.ranking import ScoreParts
from isotherm.pipeline.tier.records import Reason, Record, Tier


@dataclass(frozen=True, slots=True)
class Rating:
    """How a query rates a record: its place from 1, of how many, its score, and what proposed it."""

    place: int
    of: int
    score: ScoreParts
    legs: frozenset[str]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A record and its way through the tiers.

    Args: moves: those this process has made of it, oldest first; capacity: of its tier, None for any number; leaves_at:
        when its age alone makes it leave its tier, None when it does not; needs_heat: from which heat it is lifted, None
        when it is not; next_move: target (None is eviction) and reason of what a pass would do now, None when nothing;
        rating: for the given query.
    """

    record: Record
    moves: tuple[RecordMove, ...]
    capacity: int | None
    leaves_at: datetime | None
    needs_heat: int | None
    next_move: tuple[Tier | None, Reason] | None
    rating: Rating | None = None


def explained(
    record: Record, policy: Policy, past: Sequence[RecordMove], planned: Sequence[Move], answer: Recall | None
) -> Explanation:
    """Put together what is known. Args: planned: its moves in the next pass, at most one; answer: of a recall for the query."""
    return Explanation(
        record=record,
        moves=tuple(past),
        capacity=policy.capacity(record.tier),
        leaves_at=_leaves_at(record, policy),
        needs_heat=None if record.pinned else policy.promotion_heat(record.tier),
        next_move=(planned[0].target, planned[0].reason) if planned else None,
        rating=None if answer is None else _rating(record, answer),
    )


def _leaves_at(record: Record, policy: Policy) -> datetime | None:
    age = {Tier.HOT: policy.hot_ttl, Tier.WARM: policy.warm_age, Tier.COLD: policy.cold_ttl}[record.tier]
    if record.pinned or age is None:
        return None
    begun = record.last_access_at
    if record.tier is Tier.COLD and record.moved_at is not None:
        begun = max(begun, record.moved_at)
    try:
        return begun + age
    except OverflowError:
        return None  # beyond the calendar: never


def _rating(record: Record, answer: Recall) -> Rating | None:
    ordered = sorted(answer.items, key=lambda item: (-item.score.total, item.record.id))
    for place, item in enumerate(ordered, start=1):
        if item.record.id == record.id:
            return Rating(place, len(ordered), item.score, item.legs)
    return None
