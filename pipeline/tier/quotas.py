"""Quotas of tenants: how much of what a tenant has may be hot and warm.

Over its quota a tenant's least valuable records go one tier colder, whichever namespace they are in; what is cold does not
count, since it is kept small. Only where the policy evicts does cold count too, and its least valuable records leave.
A write is never refused for a quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import Field

from isotherm.pipeline.tier.model import FrozenModel
from isotherm.pipeline.tier.plan import MigrationPlan, Move, State, victim_order
from isotherm.pipeline.tier.policy import Policy, next_tier_on_demote
from isotherm.pipeline.tier.records import Reason, Tier

EVERY_OTHER = "*"


class Quota(FrozenModel):
    """What a tenant may have. None is unlimited.

    Args: records: how many; bytes: of their texts, in UTF-8.
    """

    records: Annotated[int, Field(ge=0, strict=True)] | None = None
    bytes: Annotated[int, Field(ge=0, strict=True)] | None = None


@dataclass(frozen=True, slots=True)
class Amount:
    """Records and the bytes of their texts."""

    records: int = 0
    bytes: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.records + other.records, self.bytes + other.bytes)

    def over(self, quota: Quota) -> Amount:
        """What is more than the quota, 0 where nothing is."""
        return Amount(_over(self.records, quota.records), _over(self.bytes, quota.bytes))

    @property
    def is_some(self) -> bool:
        """Whether there is anything."""
        return self.records > 0 or self.bytes > 0


@dataclass(frozen=True, slots=True)
class Sized:
    """A record as a quota sees it, with the bytes of its text."""

    state: State
    bytes: int


Usage = Mapping[Tier, Amount]


def quota_of(quotas: Mapping[str, Quota], tenant: str | None) -> Quota | None:
    """The quota of a tenant: its own, else the one for every other tenant; None when it has none."""
    return quotas.get(tenant or "", quotas.get(EVERY_OTHER))


def is_over(usage: Usage, quota: Quota, policy: Policy) -> bool:
    """Whether a pass has anything to do for a quota."""
    return excess(usage, quota).is_some or (policy.evicts and excess(usage, quota, cold=True).is_some)


def excess(usage: Usage, quota: Quota, *, cold: bool = False) -> Amount:
    """What hot and warm hold beyond the quota; with `cold`, what all tiers hold beyond it."""
    tiers = [Tier.HOT, Tier.WARM, *([Tier.COLD] if cold else [])]
    return sum((usage.get(tier, Amount()) for tier in tiers), Amount()).over(quota)


def plan_quota(usage: Usage, weakest: Sequence[Sized], quota: Quota, policy: Policy, now: datetime) -> MigrationPlan:
    """Plan what brings a tenant to its quota: exactly what is too much, the least valuable first, one tier at most.

    Args: usage: all records of the tenant, by tier; weakest: the least valuable ones of each tier, in any order; now: what
    the cool-down is measured against. Pinned records stay, and so do those that a move would put back within the cool-down.
    """
    free = [
        one for one in sorted(weakest, key=lambda one: victim_order(one.state)) if _may_sink(one.state, policy, now)
    ]
    going = _enough([one for one in free if one.state.tier is not Tier.COLD], excess(usage, quota))
    leaving: list[Sized] = []
    if policy.evicts:
        leaving = _enough([one for one in free if one.state.tier is Tier.COLD], excess(usage, quota, cold=True))
    moves = [_move(one.state) for one in (*going, *leaving)]
    kept = tuple(moves[: policy.max_moves])
    return MigrationPlan(kept, truncated=len(moves) > len(kept))


def _enough(free: Iterable[Sized], over: Amount) -> list[Sized]:
    """The first ones that together are as many and as large as what is too much."""
    taken: list[Sized] = []
    records, size = over.records, over.bytes
    for one in free:
        if records <= 0 and size <= 0:
            break
        taken.append(one)
        records, size = records - 1, size - one.bytes
    return taken


def _may_sink(state: State, policy: Policy, now: datetime) -> bool:
    if state.pinned:
        return False
    target = next_tier_on_demote(state.tier)
    undoes = target is not None and state.moved_from is target and state.moved_at is not None
    return not (
        undoes and policy.cooldown is not None and state.moved_at is not None and now - state.moved_at < policy.cooldown
    )


def _move(state: State) -> Move:
    return Move(state.key, state.version, state.tier, next_tier_on_demote(state.tier), Reason.QUOTA, state.id)


def _over(value: int, limit: int | None) -> int:
    return 0 if limit is None else max(0, value - limit)
