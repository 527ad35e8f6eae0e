"""When a record is due to move. Every limit is strict: age equal to a TTL or a count equal to a capacity moves nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Protocol, Self

from pydantic import Field

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.tier.heat import threshold_log
from isotherm.pipeline.tier.model import FrozenModel
from isotherm.pipeline.tier.records import Reason, Tier

Capacity = Annotated[int, Field(ge=0, strict=True)]
Age = Annotated[timedelta, Field(ge=timedelta(0))]
COLD_PROMOTION_FACTOR = 2


class Policy(FrozenModel):
    """Limits of one namespace's tiers. None is unlimited or off; an explicit 0 capacity keeps nothing in that tier.

    A `cold_capacity` or a `cold_ttl` is the explicit request to evict; without both, cold keeps everything.

    Args: hot_ttl, warm_ttl, demote_idle: ages since the last access (hot_ttl for hot, the shorter of the others for
        warm); cold_ttl: age since the later of the last access and the last move; promote_access: heat that lifts warm
        to hot, twice of it lifts cold to warm; cooldown: how long a move is not reversed; batch_size: records per
        statement; max_moves: records per pass.
    """

    hot_capacity: Capacity | None = 50
    warm_capacity: Capacity | None = 500
    cold_capacity: Capacity | None = None
    hot_ttl: Age | None = timedelta(hours=24)
    warm_ttl: Age | None = timedelta(days=30)
    demote_idle: Age | None = timedelta(days=7)
    cold_ttl: Age | None = None
    promote_access: Annotated[int, Field(ge=1, strict=True)] | None = 3
    cooldown: Age | None = timedelta(hours=1)
    batch_size: Annotated[int, Field(ge=1, le=10_000, strict=True)] = 200
    max_moves: Annotated[int, Field(ge=1, le=100_000, strict=True)] = 5_000

    @classmethod
    def go_default(cls) -> Self:
        """The specification's numbers: cold holds 5,000 and evicts beyond them."""
        return cls(cold_capacity=5_000)

    @classmethod
    def single_level(cls) -> Self:
        """Nothing ever moves: for a store of one tier."""
        return cls(
            hot_capacity=None,
            warm_capacity=None,
            hot_ttl=None,
            warm_ttl=None,
            demote_idle=None,
            promote_access=None,
        )

    @property
    def evicts(self) -> bool:
        """Whether a pass may remove records."""
        return self.cold_capacity is not None or self.cold_ttl is not None

    @property
    def warm_age(self) -> timedelta | None:
        """The age at which a warm record goes cold: the shorter of `warm_ttl` and `demote_idle`."""
        ages = [age for age in (self.warm_ttl, self.demote_idle) if age is not None]
        return min(ages, default=None)

    def capacity(self, tier: Tier) -> int | None:
        """Return how many records the tier keeps, None for any number."""
        return {Tier.HOT: self.hot_capacity, Tier.WARM: self.warm_capacity, Tier.COLD: self.cold_capacity}[tier]

    def promotion_heat(self, source: Tier) -> int | None:
        """Return the heat that lifts a record out of `source`; None where nothing is lifted."""
        if self.promote_access is None or source is Tier.HOT:
            return None
        return self.promote_access * (COLD_PROMOTION_FACTOR if source is Tier.COLD else 1)

    def entry_age(self, target: Tier) -> timedelta | None:
        """Return the age above which a record lifted into `target` would be due to leave it at once."""
        return self.hot_ttl if target is Tier.HOT else self.warm_age


class RecordLike(Protocol):
    """What the rules read of a record."""

    @property
    def tier(self) -> Tier:
        """Where it is."""

    @property
    def pinned(self) -> bool:
        """Whether passes leave it alone."""

    @property
    def heat_log(self) -> float | None:
        """Its heat as stored, None when it was never accessed."""

    @property
    def last_access_at(self) -> datetime | None:
        """Its last access, None when unknown."""

    @property
    def moved_at(self) -> datetime | None:
        """Its last change of tier, None when there was none."""


@dataclass(frozen=True, slots=True)
class RecordState:
    """The smallest record the rules can judge; an unknown last access never expires."""

    tier: Tier
    pinned: bool = False
    heat_log: float | None = None
    last_access_at: datetime | None = None
    moved_at: datetime | None = None


def should_promote(record: RecordLike, policy: Policy, now: datetime) -> bool:
    """Whether the heat lifts the record one tier up.

    A record that is too old for its present or its next tier is not lifted: it would fall again at the next pass.
    """
    needed = policy.promotion_heat(record.tier)
    if record.pinned or needed is None or record.heat_log is None:
        return False
    target = Tier.from_rank(record.tier.rank + 1)
    too_old = _older(record.last_access_at, policy.entry_age(target), now)
    leaving = record.tier is Tier.WARM and _older(record.last_access_at, policy.warm_age, now)
    return not too_old and not leaving and record.heat_log >= threshold_log(needed, now)


def expired_reason(record: RecordLike, policy: Policy, now: datetime) -> Reason | None:
    """Return why the record's age makes it leave its tier (from cold: evicted), None while it may stay."""
    if record.pinned:
        return None
    if record.tier is Tier.HOT:
        return Reason.TTL if _older(record.last_access_at, policy.hot_ttl, now) else None
    if record.tier is Tier.COLD:
        moments = [moment for moment in (record.last_access_at, record.moved_at) if moment is not None]
        return Reason.TTL if _older(max(moments, default=None), policy.cold_ttl, now) else None
    if _older(record.last_access_at, policy.warm_ttl, now):
        return Reason.TTL
    return Reason.IDLE if _older(record.last_access_at, policy.demote_idle, now) else None


def should_demote(record: RecordLike, count: int, policy: Policy, now: datetime) -> bool:
    """Whether the record is due to leave its tier downwards; from cold that means eviction.

    Args: count: how many records its tier holds.
    """
    if record.pinned:
        return False
    capacity = policy.capacity(record.tier)
    return (capacity is not None and count > capacity) or expired_reason(record, policy, now) is not None


def target_tier(record: RecordLike, counts: Mapping[Tier, int], policy: Policy, now: datetime) -> Tier:
    """Return the tier the record alone is due for: promotion wins; a cold record due for eviction keeps its tier."""
    if should_promote(record, policy, now):
        return Tier.from_rank(record.tier.rank + 1)
    if should_demote(record, counts.get(record.tier, 0), policy, now):
        return next_tier_on_demote(record.tier) or record.tier
    return record.tier


def next_tier_on_demote(tier: Tier) -> Tier | None:
    """Return the tier below, None for cold."""
    return {Tier.HOT: Tier.WARM, Tier.WARM: Tier.COLD}.get(tier)


def reachable(policy: Policy, starts: Iterable[Tier] = (Tier.HOT,)) -> frozenset[Tier]:
    """The tiers in which records of a policy may come to be.

    Args: starts: where they are remembered.
    """
    found = set(starts)
    leaves_hot = policy.hot_capacity is not None or policy.hot_ttl is not None
    leaves_warm = policy.warm_capacity is not None or policy.warm_age is not None
    if Tier.HOT in found and leaves_hot:
        found.add(Tier.WARM)
    if Tier.COLD in found and policy.promote_access is not None:
        found.add(Tier.WARM)
    if Tier.WARM in found and leaves_warm:
        found.add(Tier.COLD)
    if Tier.WARM in found and policy.promote_access is not None:
        found.add(Tier.HOT)
    if Tier.HOT in found and leaves_hot:
        found.add(Tier.WARM)
    return frozenset(found)


def refuse_unkept(policy: Policy, levels: frozenset[Tier]) -> None:
    """Refuse a policy for a store of these tiers. Raises: RejectedError when it moves records into one that is none of them."""
    missing = sorted(reachable(policy, levels) - levels)
    if missing:
        raise RejectedError(f"the policy moves records to {missing[0]}, which the store does not keep")


def _older(moment: datetime | None, limit: timedelta | None, now: datetime) -> bool:
    return moment is not None and limit is not None and now - moment > limit
