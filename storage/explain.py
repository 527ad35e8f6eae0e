"""Why a record is where it is, what the next pass would do with it, and how a query rates it. Nothing here writes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.plan import plan_migration
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.ranking import ScoreParts
from isotherm.pipeline.tier.records import Reason, Record, Tier
from isotherm.storage.postgres import namespaces, tier_list, tier_plan
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import of_owner
from isotherm.storage.postgres.tier_list import PastMove
from isotherm.storage.tier import TierMemory

# Records of an answer among which the place of this one is looked for.
_RATED = 500


@dataclass(frozen=True, slots=True)
class NextMove:
    """What the next pass would do. Target None is eviction."""

    target: Tier | None
    reason: Reason


@dataclass(frozen=True, slots=True)
class Rating:
    """How a query rates the record: its place in the answer from 1, of how many, its score, who proposed it.

    Args: place: None when no index proposes the record, and then there is no score.
    """

    place: int | None
    of: int
    score: ScoreParts | None = None
    legs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Explanation:
    """A record and its way through the tiers.

    Args: moves: the last ones, newest first; weaker: unpinned records of its tier that would leave before it, counted up to
        10,000; capacity: of its tier, None for any number; leaves_at: when its age alone makes it leave its tier, None when
        it does not; needs_heat: from which heat it is lifted, None when it is not; next_move: what a pass would do now;
        held_until: before this moment no pass moves it back to where it came from; set_aside: why passes leave it alone, None when they
        do not; rating: for the given query.
    """

    record: Record
    moves: tuple[PastMove, ...]
    weaker: int
    capacity: int | None
    leaves_at: datetime | None
    needs_heat: int | None
    next_move: NextMove | None
    held_until: datetime | None
    set_aside: str | None
    rating: Rating | None = None


@of_owner
def explain(
    memory: TierMemory,
    namespace: Namespace,
    record_id: str,
    policy: Policy,
    *,
    query: str | None = None,
    now: datetime | None = None,
) -> Explanation:
    """Explain one record under a policy.

    Args: query: also tell how it is rated for this text; asking counts as no access.
    Raises: RejectedError when the namespace has no such record; TransientError when PostgreSQL cannot be reached.
    """
    moment = now or datetime.now(UTC)
    record = memory.get(namespace, record_id, now=moment)
    scope = Scope(namespace=namespace)
    place = namespaces.find(namespace)
    with connection() as conn:
        standing = tier_list.standing(conn, scope, record_id)
        moves = tier_list.moves(conn, scope, record_id)
        seen = None if place is None else tier_plan.snapshot(conn, place.namespace_id, policy, moment)
    planned = None if seen is None else plan_migration(seen, policy, moment)
    mine = [m for m in (planned.moves if planned else ()) if standing is not None and m.key == standing.key]
    return Explanation(
        record=record,
        moves=tuple(moves),
        weaker=standing.weaker if standing else 0,
        capacity=policy.capacity(record.tier),
        leaves_at=_leaves_at(record, policy),
        needs_heat=None if record.pinned else policy.promotion_heat(record.tier),
        next_move=NextMove(mine[0].target, mine[0].reason) if mine else None,
        held_until=_held_until(record, policy, moment),
        set_aside=standing.set_aside if standing else None,
        rating=None if query is None else _rating(memory, scope, record_id, query, moment),
    )


def _leaves_at(record: Record, policy: Policy) -> datetime | None:
    if record.pinned:
        return None
    age = {Tier.HOT: policy.hot_ttl, Tier.WARM: policy.warm_age, Tier.COLD: policy.cold_ttl}[record.tier]
    begun = max(record.last_access_at, record.moved_at or record.last_access_at)
    return _after(begun if record.tier is Tier.COLD else record.last_access_at, age)


def _after(moment: datetime, age: timedelta | None) -> datetime | None:
    try:
        return None if age is None else moment + age
    except OverflowError:
        return None  # beyond the calendar: never


def _held_until(record: Record, policy: Policy, now: datetime) -> datetime | None:
    until = None if record.moved_at is None else _after(record.moved_at, policy.cooldown)
    return until if until is not None and until > now else None


def _rating(memory: TierMemory, scope: Scope, record_id: str, query: str, now: datetime) -> Rating:
    answer = memory.recall(scope, query, budget=RecallBudget(total=_RATED), now=now, touch=False)
    ordered = sorted(answer.items, key=lambda item: (-item.score.total, item.record.id))
    for place, item in enumerate(ordered, start=1):
        if item.record.id == record_id:
            return Rating(place, len(ordered), item.score, item.legs)
    return Rating(None, len(ordered))
