from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.pipeline.tier.heat import add, value_log
from isotherm.pipeline.tier.plan import (
    BatchKind,
    MigrationPlan,
    MigrationReport,
    Move,
    Snapshot,
    State,
    plan_batches,
    plan_migration,
    victim_order,
)
from isotherm.pipeline.tier.policy import Policy, expired_reason, should_promote
from isotherm.pipeline.tier.records import Reason, Tier

NOW = datetime(2026, 7, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOT, WARM, COLD = Tier
# Capacities are what most cases are about; ages and heat are off unless a case turns them on.
QUIET = Policy.single_level()


def policy(**changes: Any) -> Policy:
    return QUIET.model_copy(update=changes)


def state(
    key: int, tier: Tier, *, idle: timedelta = timedelta(0), count: int = 0, importance: float = 0.5, **more: Any
) -> State:
    seen = NOW - idle
    value: float | None = value_log(importance, seen)
    value = add(value, seen, count)
    assert value is not None
    base = State(
        key=key,
        id=f"id-{key:04}",
        tier=tier,
        version=1,
        pinned=False,
        heat_log=add(None, seen, count),
        value_log=value,
        importance=importance,
        created_at=seen,
        last_access_at=seen,
    )
    return replace(base, **more)


def snapshot(rows: Iterable[State], rules: Policy, now: datetime = NOW) -> Snapshot:
    """What storage reads: whole lists here, since the namespaces are small."""
    held = list(rows)
    aged = [row for row in held if expired_reason(row, rules, now)]
    return Snapshot(
        counts=Counter(row.tier for row in held),
        expired=[row for row in aged if row.tier is not COLD],
        weakest={
            tier: sorted((row for row in held if row.tier is tier and not row.pinned), key=victim_order)
            for tier in Tier
        },
        hottest=[row for row in held if should_promote(row, rules, now)],
        evictable=[row for row in aged if row.tier is COLD],
        sunken=[row for row in held if row.pinned and row.tier is COLD],
    )


def planned(rows: Iterable[State], rules: Policy, now: datetime = NOW) -> MigrationPlan:
    return plan_migration(snapshot(rows, rules, now), rules, now)


def applied(rows: Iterable[State], plan: MigrationPlan, now: datetime = NOW) -> list[State]:
    moves = {move.key: move for move in plan.moves}
    kept: list[State] = []
    for row in rows:
        move = moves.get(row.key)
        if move is None:
            kept.append(row)
        elif move.target is not None:
            kept.append(replace(row, tier=move.target, version=row.version + 1, moved_at=now, moved_from=row.tier))
    return kept


def steps(plan: MigrationPlan) -> list[tuple[int, Tier | None, Reason]]:
    return [(move.key, move.target, move.reason) for move in plan.moves]


def test_tier_t10_exactly_the_overflow_is_demoted() -> None:
    rows = [state(1, HOT, idle=HOUR), state(2, HOT)]
    assert steps(planned(rows, policy(hot_capacity=1))) == [(1, WARM, Reason.CAPACITY)]


def test_tier_t21_a_demoted_record_is_still_there() -> None:
    """The plan's half; that both outlive a lost hot side is asserted where there is one to lose (integration)."""
    rows = [state(1, HOT, idle=HOUR), state(2, HOT)]
    after = applied(rows, planned(rows, policy(hot_capacity=1, warm_capacity=10)))
    assert [(row.key, row.tier) for row in after] == [(1, WARM), (2, HOT)]


def test_tier_x01_a_hot_record_idle_for_8_days_moves_one_step_and_is_never_lost() -> None:
    rows, rules = [state(1, HOT, idle=8 * DAY)], Policy()
    plan = planned(rows, rules)
    assert plan.report == MigrationReport(promoted=0, demoted=1, evicted=0)
    rows = applied(rows, plan)
    assert steps(planned(rows, rules)) == [(1, COLD, Reason.IDLE)]
    rows = applied(rows, planned(rows, rules))
    assert not planned(rows, rules, NOW + 3650 * DAY).moves
    assert not planned(rows, Policy.go_default(), NOW + 3650 * DAY).moves


def test_tier_x02_a_warm_record_idle_for_8_days_stays_in_cold() -> None:
    rows = [state(1, WARM, idle=8 * DAY)]
    assert planned(rows, Policy()).report == MigrationReport(0, 1, 0)
    assert [row.tier for row in applied(rows, planned(rows, Policy()))] == [COLD]


def test_tier_x03_a_hot_record_idle_for_25_hours_goes_warm() -> None:
    assert steps(planned([state(1, HOT, idle=25 * HOUR)], Policy())) == [(1, WARM, Reason.TTL)]


def test_tier_x04_the_older_record_is_demoted_not_the_newest() -> None:
    rows = [state(1, HOT), state(2, HOT, idle=HOUR)]
    assert steps(planned(rows, policy(hot_capacity=1))) == [(2, WARM, Reason.CAPACITY)]


@pytest.mark.parametrize("idle", [25 * HOUR, 8 * DAY])
def test_tier_x05_an_old_record_with_accesses_does_not_oscillate(idle: timedelta) -> None:
    rows = [state(1, HOT, idle=idle, count=100)]
    seen: list[Move] = []
    for hours in range(0, 24 * 30, 2):
        plan = planned(rows, Policy(), NOW + hours * HOUR)
        seen += plan.moves
        rows = applied(rows, plan, NOW + hours * HOUR)
    assert [move.target for move in seen] == [WARM, COLD]


def test_tier_x06_a_new_record_in_full_tiers_stays_hot_and_nothing_is_evicted_for_it_at_once() -> None:
    rules = policy(hot_capacity=2, warm_capacity=2, cold_capacity=2)
    rows = [state(key, tier, idle=key * HOUR) for key, tier in enumerate([HOT, HOT, HOT, WARM, WARM, COLD, COLD])]
    plan = planned(rows, rules)
    assert steps(plan) == [(2, WARM, Reason.CAPACITY)]
    plan = planned(rows := applied(rows, plan), rules)
    assert steps(plan) == [(4, COLD, Reason.CAPACITY)]
    plan = planned(rows := applied(rows, plan), rules)
    assert steps(plan) == [(6, None, Reason.CAPACITY)]
    assert not planned(applied(rows, plan), rules).moves


def test_tier_x07_what_overflow_demotes_is_not_promoted_back() -> None:
    rules = policy(hot_capacity=1, promote_access=3)
    rows = [state(key, HOT, count=3, idle=key * timedelta(minutes=1)) for key in range(3)]
    plan = planned(rows, rules)
    assert steps(plan) == [(2, WARM, Reason.CAPACITY), (1, WARM, Reason.CAPACITY)]
    assert not planned(applied(rows, plan), rules).moves


def test_tier_x08_pinned_records_count_and_stay() -> None:
    rows = [state(1, HOT, idle=9 * DAY, pinned=True), state(2, HOT, idle=HOUR), state(3, HOT)]
    assert steps(planned(rows, policy(hot_capacity=1))) == [(2, WARM, Reason.CAPACITY), (3, WARM, Reason.CAPACITY)]


def test_tier_x09_cold_is_lifted_at_twice_the_heat() -> None:
    rows = [state(1, COLD, count=6), state(2, COLD, count=5)]
    plan = planned(rows, Policy())
    assert steps(plan) == [(1, WARM, Reason.ACCESS)]
    assert plan.report == MigrationReport(promoted=1, demoted=0, evicted=0)


def test_tier_x10_a_promotable_cold_record_is_lifted_not_evicted() -> None:
    rows = [state(1, COLD, count=6), state(2, COLD, idle=DAY)]
    assert steps(planned(rows, policy(cold_capacity=1, promote_access=3))) == [(1, WARM, Reason.ACCESS)]


def test_tier_x11_nothing_moves_at_exact_limits() -> None:
    assert not planned([state(1, HOT, idle=24 * HOUR)], Policy(hot_capacity=1)).moves


def test_tier_x26_pinning_lifts_a_cold_record_to_warm_and_there_it_stays() -> None:
    """The original left it cold for ever; here pinned means never below warm."""
    rows = [state(1, COLD, idle=365 * DAY, count=9, pinned=True), state(2, COLD), state(3, COLD, idle=HOUR)]
    plan = planned(rows, policy(cold_capacity=1, cold_ttl=30 * DAY))
    assert steps(plan) == [(1, WARM, Reason.PIN), (3, None, Reason.CAPACITY)]
    [lifted] = [row for row in applied(rows, plan) if row.key == 1]
    assert not planned([lifted], Policy(hot_capacity=0, warm_capacity=0, cold_capacity=0), NOW + 365 * DAY).moves


def test_tier_weak_01_eviction_needs_an_explicit_request() -> None:
    rows = [state(key, COLD, idle=3650 * DAY) for key in range(5)]
    assert not planned(rows, Policy()).moves
    assert len(planned(rows, policy(cold_ttl=DAY)).moves) == 5
    assert [move.reason for move in planned(rows, policy(cold_capacity=3)).moves] == [Reason.CAPACITY] * 2
    both = planned(rows, policy(cold_capacity=3, cold_ttl=DAY))
    assert [move.reason for move in both.moves] == [Reason.TTL] * 5


def test_tier_weak_07_victims_are_the_least_valuable_with_stable_ties() -> None:
    rows = [
        state(1, HOT, importance=0.9),
        state(2, HOT, importance=0.2),
        state(3, HOT, importance=0.2),
        state(4, HOT, count=5, importance=0.1),
        state(5, HOT, idle=30 * DAY, importance=1.0),
    ]
    plan = planned(rows, policy(hot_capacity=1))
    assert [move.key for move in plan.moves] == [5, 2, 3, 1]


def test_tier_weak_08_promotion_into_a_full_tier_must_beat_the_weakest() -> None:
    rules = policy(hot_capacity=1, promote_access=3)
    strong, weak = state(1, HOT, count=9), state(2, HOT, count=1, idle=DAY)
    caller = state(3, WARM, count=4)
    assert not planned([strong, caller], rules).moves
    assert steps(planned([weak, caller], rules)) == [(3, HOT, Reason.ACCESS), (2, WARM, Reason.CAPACITY)]
    assert not planned([replace(caller, key=1, tier=HOT), caller], rules).moves


def test_tier_weak_08_a_move_is_not_reversed_within_the_cool_down() -> None:
    rules = policy(hot_capacity=5, promote_access=3, cooldown=HOUR)
    fallen = state(1, WARM, count=9, moved_at=NOW - timedelta(minutes=59), moved_from=HOT)
    assert not planned([fallen], rules).moves
    assert planned([replace(fallen, moved_at=NOW - HOUR)], rules).moves
    assert planned([replace(fallen, moved_from=COLD)], rules).moves
    assert planned([fallen], rules.model_copy(update={"cooldown": None})).moves


def test_a_victim_in_its_cool_down_is_replaced_by_the_next_weakest() -> None:
    lifted = state(1, HOT, idle=DAY, moved_at=NOW, moved_from=WARM)
    rows = [lifted, state(2, HOT, idle=HOUR), state(3, HOT)]
    assert steps(planned(rows, policy(hot_capacity=2, cooldown=HOUR))) == [(2, WARM, Reason.CAPACITY)]


def test_a_plan_tells_when_a_held_move_may_be_made() -> None:
    rules = policy(hot_capacity=5, promote_access=3, cooldown=HOUR)
    rows = [state(key, WARM, count=9, moved_at=NOW - key * timedelta(minutes=10), moved_from=HOT) for key in (1, 2)]
    assert planned(rows, rules).held_until == NOW + timedelta(minutes=40)
    assert planned(rows, rules, NOW + timedelta(minutes=40)).moves
    assert planned(rows, policy(cooldown=HOUR)).held_until is None


def test_promotions_fill_the_room_there_is_the_most_valuable_first() -> None:
    rows = [state(1, HOT, count=99)] + [state(key, WARM, count=key) for key in (3, 5, 4)]
    plan = planned(rows, policy(hot_capacity=3, promote_access=3))
    assert steps(plan) == [(5, HOT, Reason.ACCESS), (4, HOT, Reason.ACCESS)]


def test_exchanges_stop_at_the_first_candidate_that_is_worth_less() -> None:
    rows = [state(1, HOT, count=4), state(2, HOT, count=6), state(3, WARM, count=5), state(4, WARM, count=5)]
    plan = planned(rows, policy(hot_capacity=2, promote_access=3))
    assert steps(plan) == [(4, HOT, Reason.ACCESS), (1, WARM, Reason.CAPACITY)]


def test_overflow_counts_what_leaves_by_age_first() -> None:
    rows = [state(1, HOT, idle=2 * DAY), state(2, HOT, idle=HOUR), state(3, HOT)]
    rules = policy(hot_capacity=2, hot_ttl=DAY)
    assert steps(planned(rows, rules)) == [(1, WARM, Reason.TTL)]


def test_records_coming_down_take_room_from_records_going_up() -> None:
    rules = policy(warm_capacity=1, hot_ttl=DAY, promote_access=1)
    rows = [state(1, HOT, idle=2 * DAY), state(2, COLD, count=2)]
    assert steps(planned(rows, rules)) == [(1, WARM, Reason.TTL)]


def test_zero_capacity_keeps_nothing() -> None:
    rules = policy(hot_capacity=0, warm_capacity=0, promote_access=1)
    rows = [state(1, HOT, count=50), state(2, WARM, count=50), state(3, COLD, count=50)]
    assert {(move.key, move.target) for move in planned(rows, rules).moves} == {(1, WARM), (2, COLD)}


def test_a_pass_is_bounded_and_says_so() -> None:
    rows = [state(key, HOT, idle=2 * DAY) for key in range(10)]
    plan = planned(rows, Policy(max_moves=4))
    assert len(plan.moves) == 4
    assert plan.truncated
    assert not planned(rows, Policy(max_moves=10)).truncated
    assert plan_migration(Snapshot(counts={}, truncated=True), Policy(), NOW) == MigrationPlan((), truncated=True)


def test_stale_rows_in_a_snapshot_move_nothing() -> None:
    fresh = state(1, WARM)
    wrong = Snapshot({WARM: 1}, expired=[fresh], weakest={HOT: [fresh]}, hottest=[fresh], evictable=[fresh])
    assert not plan_migration(wrong, Policy(cold_ttl=DAY, hot_capacity=0), NOW).moves


def test_pinned_rows_in_a_snapshot_move_nothing() -> None:
    held = state(1, HOT, idle=9 * DAY, count=9, pinned=True)
    wrong = Snapshot({HOT: 1}, expired=[held], weakest={HOT: [held]}, hottest=[held], evictable=[held])
    assert not plan_migration(wrong, Policy(hot_capacity=0), NOW).moves


def test_batches_hold_one_kind_of_work_each() -> None:
    kinds = [(HOT, WARM), (WARM, HOT), (WARM, COLD), (COLD, WARM), (COLD, None)] * 3
    plan = MigrationPlan(tuple(Move(key, 1, source, target, Reason.IDLE) for key, (source, target) in enumerate(kinds)))
    batches = plan_batches(plan, 2)
    assert [(batch.kind, len(batch.moves)) for batch in batches] == [
        (BatchKind.LIFT_AND_LOWER, 2),
        (BatchKind.LIFT_AND_LOWER, 2),
        (BatchKind.LIFT_AND_LOWER, 2),
        (BatchKind.ARCHIVE, 2),
        (BatchKind.ARCHIVE, 1),
        (BatchKind.RESTORE, 2),
        (BatchKind.RESTORE, 1),
        (BatchKind.EVICT, 2),
        (BatchKind.EVICT, 1),
    ]
    assert Counter(move.key for batch in batches for move in batch.moves) == Counter(range(15))
    assert plan_batches(MigrationPlan(), 5) == []
    with pytest.raises(ValueError, match="at least 1"):
        plan_batches(plan, 0)


def test_what_failed_before_goes_apart_in_the_smallest_batches() -> None:
    plan = MigrationPlan(tuple(Move(key, 1, HOT, WARM, Reason.IDLE) for key in range(300)))
    batches = plan_batches(plan, 200, apart={3, 7})
    assert [len(batch.moves) for batch in batches] == [200, 98, 1, 1]
    assert [move.key for batch in batches[2:] for move in batch.moves] == [3, 7]
    many = plan_batches(plan, 200, archive_size=8, apart=range(300))
    assert {len(batch.moves) for batch in many} == {5}, "never more than side by side"
    assert Counter(move.key for batch in many for move in batch.moves) == Counter(range(300))


durations = st.integers(0, 40 * 24).map(lambda hours: hours * HOUR)
maybe_duration = st.none() | durations
capacities = st.none() | st.integers(0, 6)
policies = st.builds(
    Policy,
    hot_capacity=capacities,
    warm_capacity=capacities,
    cold_capacity=capacities,
    hot_ttl=maybe_duration,
    warm_ttl=maybe_duration,
    demote_idle=maybe_duration,
    cold_ttl=maybe_duration,
    promote_access=st.none() | st.integers(1, 4),
    cooldown=st.none() | st.just(HOUR),
    max_moves=st.sampled_from([3, 5_000]),
)
tiers = st.sampled_from(Tier)
row_values = st.tuples(
    tiers, durations, st.integers(0, 12), st.sampled_from([0.2, 0.5, 1.0]), st.booleans(), st.none() | tiers, durations
)


def row_of(key: int, values: tuple[Tier, timedelta, int, float, bool, Tier | None, timedelta]) -> State:
    tier, idle, count, importance, pinned, moved_from, moved = values
    return state(
        key,
        tier,
        idle=idle,
        count=count,
        importance=importance,
        pinned=pinned and key % 3 == 0,
        moved_from=moved_from,
        moved_at=None if moved_from is None else NOW - moved,
    )


namespaces = st.lists(row_values, max_size=25).map(
    lambda listed: [row_of(key, values) for key, values in enumerate(listed)]
)
relaxed = settings(deadline=None, max_examples=200)


@relaxed
@given(namespaces, policies)
def test_a_pass_moves_each_record_once_and_one_step(rows: list[State], rules: Policy) -> None:
    plan = planned(rows, rules)
    by_key = {row.key: row for row in rows}
    assert len({move.key for move in plan.moves}) == len(plan.moves)
    for move in plan.moves:
        row = by_key[move.key]
        assert (move.source, move.version) == (row.tier, row.version)
        assert not row.pinned or (move.source, move.target, move.reason) == (COLD, WARM, Reason.PIN)
        assert abs((move.target.rank if move.target else 0) - move.source.rank) == 1
        assert move.target is not None or rules.evicts
    sunken = {row.key for row in rows if row.pinned and row.tier is COLD}
    assert plan.truncated or sunken <= {move.key for move in plan.moves}


@relaxed
@given(namespaces, policies, st.randoms(use_true_random=False))
def test_the_order_of_a_snapshot_does_not_matter(rows: list[State], rules: Policy, source: Any) -> None:
    plain = snapshot(rows, rules)
    mixed = Snapshot(
        plain.counts,
        source.sample(plain.expired, len(plain.expired)),
        {tier: source.sample(listed, len(listed)) for tier, listed in plain.weakest.items()},
        source.sample(plain.hottest, len(plain.hottest)),
        source.sample(plain.evictable, len(plain.evictable)),
        source.sample(plain.sunken, len(plain.sunken)),
    )
    assert plan_migration(mixed, rules, NOW) == plan_migration(plain, rules, NOW)


@relaxed
@given(namespaces, policies)
def test_passes_end_and_capacities_are_respected(rows: list[State], rules: Policy) -> None:
    now = NOW
    for _ in range(100):
        plan = planned(rows, rules, now)
        if not plan.moves:
            break
        rows = applied(rows, plan, now)
        now += timedelta(seconds=1)
    assert not plan.moves
    for tier in Tier:
        capacity = rules.capacity(tier)
        stuck = sum(
            row.pinned or (row.moved_at is not None and now - row.moved_at < HOUR) for row in rows if row.tier is tier
        )
        held = sum(row.tier is tier for row in rows)
        assert capacity is None or held <= max(capacity, stuck)


@relaxed
@given(namespaces)
def test_fewer_rows_than_capacity_and_nothing_old_demotes_nothing(rows: list[State]) -> None:
    rules = Policy(hot_capacity=25, warm_capacity=25, cold_capacity=25, hot_ttl=None, warm_ttl=None, demote_idle=None)
    assert planned(rows, rules).report.demoted == 0
    assert planned(rows, rules).report.evicted == 0


@relaxed
@given(namespaces, policies)
def test_a_pass_demotes_by_capacity_no_more_than_overflow_and_exchanges(rows: list[State], rules: Policy) -> None:
    plan = planned(rows, rules)
    for tier in (HOT, WARM):
        capacity = rules.capacity(tier)
        out = [move for move in plan.moves if move.source is tier and move.reason is Reason.CAPACITY]
        lifted = sum(move.target is tier and move.reason in {Reason.ACCESS, Reason.PIN} for move in plan.moves)
        held = sum(row.tier is tier for row in rows)
        assert len(out) <= (0 if capacity is None else max(0, held - capacity) + lifted)
