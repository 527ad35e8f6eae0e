from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.pipeline.tier.plan import State
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.quotas import Amount, Quota, Sized, Usage, excess, plan_quota, quota_of
from isotherm.pipeline.tier.records import Reason, Tier

NOW = datetime(2026, 7, 1, tzinfo=UTC)
KEEPS, EVICTS = Policy(), Policy(cold_capacity=1_000_000)


def sized(key: int, tier: Tier, size: int = 10, *, pinned: bool = False, moved_from: Tier | None = None) -> Sized:
    moved = None if moved_from is None else NOW - timedelta(minutes=5)
    state = State(key, f"r{key}", tier, 1, pinned, None, float(key), 0.5, NOW, NOW, moved, moved_from)
    return Sized(state, size)


def usage_of(records: list[Sized]) -> Usage:
    usage: dict[Tier, Amount] = {}
    for one in records:
        usage[one.state.tier] = usage.get(one.state.tier, Amount()) + Amount(1, one.bytes)
    return usage


RECORDS = st.lists(st.tuples(st.sampled_from(list(Tier)), st.integers(0, 50), st.booleans()), max_size=25).map(
    lambda rows: [sized(n, tier, size, pinned=pinned) for n, (tier, size, pinned) in enumerate(rows)]
)
QUOTAS = st.builds(Quota, records=st.none() | st.integers(0, 20), bytes=st.none() | st.integers(0, 400))


@settings(deadline=None)
@given(RECORDS, QUOTAS, st.sampled_from([KEEPS, EVICTS]))
def test_passes_bring_a_tenant_to_its_quota_by_exactly_what_is_too_much(
    records: list[Sized], quota: Quota, policy: Policy
) -> None:
    now = {one.state.key: one for one in records}
    pinned = {key for key, one in now.items() if one.state.pinned}
    for _ in range(6):
        plan = plan_quota(usage_of(list(now.values())), list(now.values()), quota, policy, NOW)
        assert len({move.key for move in plan.moves}) == len(plan.moves), "one step for each record"
        assert not pinned & {move.key for move in plan.moves}
        assert {move.reason for move in plan.moves} <= {Reason.QUOTA}
        assert policy.evicts or all(move.target is not None for move in plan.moves)
        for move in plan.moves:
            old = now.pop(move.key)
            if move.target is not None:
                assert move.target.rank == move.source.rank - 1
                now[move.key] = sized(move.key, move.target, old.bytes)
        if not plan.moves:
            break
    left = list(now.values())
    free = {one.state.tier for one in left if not one.state.pinned}
    assert not excess(usage_of(left), quota).is_some or not free & {Tier.HOT, Tier.WARM}
    if policy.evicts:
        assert not excess(usage_of(left), quota, cold=True).is_some or Tier.COLD not in free


def test_the_least_valuable_go_wherever_they_are() -> None:
    records = [sized(3, Tier.HOT), sized(1, Tier.WARM), sized(2, Tier.HOT), sized(0, Tier.COLD)]
    plan = plan_quota(usage_of(records), records, Quota(records=1), KEEPS, NOW)
    assert [(move.key, move.target) for move in plan.moves] == [(1, Tier.COLD), (2, Tier.WARM)]


def test_bytes_count_as_records_do() -> None:
    records = [sized(n, Tier.WARM, size=100) for n in range(5)]
    assert len(plan_quota(usage_of(records), records, Quota(bytes=250), KEEPS, NOW).moves) == 3
    assert excess(usage_of(records), Quota(bytes=250)) == Amount(0, 250)


def test_cold_counts_only_where_the_policy_evicts() -> None:
    records = [sized(n, Tier.COLD) for n in range(5)]
    assert plan_quota(usage_of(records), records, Quota(records=2), KEEPS, NOW).moves == ()
    assert [m.target for m in plan_quota(usage_of(records), records, Quota(records=2), EVICTS, NOW).moves] == [None] * 3


def test_cool_down_holds_for_quotas_too() -> None:
    records = [sized(0, Tier.HOT, moved_from=Tier.WARM), sized(1, Tier.HOT)]
    assert [m.key for m in plan_quota(usage_of(records), records, Quota(records=1), KEEPS, NOW).moves] == [1]


def test_a_plan_is_cut_at_the_most_moves_of_a_pass() -> None:
    records = [sized(n, Tier.WARM) for n in range(9)]
    plan = plan_quota(usage_of(records), records, Quota(records=0), Policy(max_moves=4), NOW)
    assert (len(plan.moves), plan.truncated) == (4, True)


@pytest.mark.parametrize(
    ("tenant", "expected"), [("acme", 1), ("other", 2), (None, 2)]
)  # fmt: skip
def test_quota_is_the_tenants_own_or_that_of_every_other(tenant: str | None, expected: int) -> None:
    found = quota_of({"acme": Quota(records=1), "*": Quota(records=2)}, tenant)
    assert found is not None
    assert found.records == expected
    assert quota_of({"acme": Quota(records=1)}, "other") is None
