import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.tier.heat import add
from isotherm.pipeline.tier.policy import (
    Policy,
    RecordState,
    expired_reason,
    next_tier_on_demote,
    should_demote,
    should_promote,
    target_tier,
)
from isotherm.pipeline.tier.records import Reason, Tier
from isotherm.pipeline.tier.weights import RecallWeights

NOW = datetime(2026, 7, 1, tzinfo=UTC)
DEFAULT = Policy()
HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def state(tier: Tier, count: int = 0, idle: timedelta = timedelta(0), **changes: Any) -> RecordState:
    heat_log = add(None, NOW - idle, count) if count else None
    return RecordState(tier, heat_log=heat_log, last_access_at=NOW - idle, **changes)


def test_tier_t11_promotion_needs_heat_and_is_blocked_by_a_pin() -> None:
    assert should_promote(state(Tier.WARM, 3), DEFAULT, NOW)
    assert not should_promote(state(Tier.WARM, 2), DEFAULT, NOW)
    assert not should_promote(state(Tier.HOT, 10), DEFAULT, NOW)
    assert not should_promote(state(Tier.WARM, 10, pinned=True), DEFAULT, NOW)


def test_tier_t12_a_hot_record_over_capacity_is_due() -> None:
    assert should_demote(state(Tier.HOT), 51, DEFAULT, NOW)
    assert not should_demote(state(Tier.HOT, pinned=True), 51, DEFAULT, NOW)


def test_tier_t13_a_warm_record_idle_for_8_days_is_due() -> None:
    assert should_demote(state(Tier.WARM, 1, 8 * DAY), 1, DEFAULT, NOW)


def test_tier_t14_a_warm_record_with_5_accesses_is_due_for_hot() -> None:
    assert target_tier(state(Tier.WARM, 5), {Tier.WARM: 1}, DEFAULT, NOW) is Tier.HOT


def test_tier_t16_the_tier_below() -> None:
    assert [next_tier_on_demote(tier) for tier in Tier] == [Tier.WARM, Tier.COLD, None]


def test_tier_t17_a_single_level_policy_moves_nothing() -> None:
    policy, record = Policy.single_level(), state(Tier.WARM, 100, 365 * DAY)
    assert not should_promote(record, policy, NOW)
    assert not should_demote(record, 100_000, policy, NOW)
    assert target_tier(record, {Tier.WARM: 100_000}, policy, NOW) is Tier.WARM


def test_tier_x03_a_hot_record_idle_for_25_hours_goes_warm() -> None:
    record = state(Tier.HOT, idle=25 * HOUR)
    assert expired_reason(record, DEFAULT, NOW) is Reason.TTL
    assert target_tier(record, {}, DEFAULT, NOW) is Tier.WARM


def test_tier_x05_a_record_too_old_for_hot_is_not_lifted_back() -> None:
    for idle in (25 * HOUR, 8 * DAY):
        assert not should_promote(state(Tier.WARM, 100, idle), DEFAULT, NOW)


def test_a_record_that_is_leaving_warm_is_not_lifted() -> None:
    assert not should_promote(state(Tier.WARM, 100, 8 * DAY), Policy(hot_ttl=None), NOW)


def test_tier_x09_cold_needs_twice_the_heat() -> None:
    assert target_tier(state(Tier.COLD, 6), {}, DEFAULT, NOW) is Tier.WARM
    assert target_tier(state(Tier.COLD, 5), {}, DEFAULT, NOW) is Tier.COLD


def test_tier_x11_limits_are_strict() -> None:
    assert not should_demote(state(Tier.HOT, idle=24 * HOUR), 50, DEFAULT, NOW)
    assert should_demote(state(Tier.HOT, idle=24 * HOUR + timedelta(microseconds=1)), 50, DEFAULT, NOW)


def test_tier_weak_01_cold_age_counts_from_the_later_of_access_and_move() -> None:
    policy = Policy(cold_ttl=10 * DAY)
    record = state(Tier.COLD, idle=30 * DAY, moved_at=NOW - 5 * DAY)
    assert expired_reason(record, policy, NOW) is None
    assert expired_reason(state(Tier.COLD, idle=30 * DAY), policy, NOW) is Reason.TTL
    assert expired_reason(state(Tier.COLD, idle=30 * DAY), DEFAULT, NOW) is None


def test_warm_reasons_name_the_rule_that_fired() -> None:
    assert expired_reason(state(Tier.WARM, idle=8 * DAY), DEFAULT, NOW) is Reason.IDLE
    assert expired_reason(state(Tier.WARM, idle=31 * DAY), DEFAULT, NOW) is Reason.TTL
    assert DEFAULT.warm_age == 7 * DAY
    assert Policy.single_level().warm_age is None


def test_an_unknown_last_access_never_expires() -> None:
    assert not any(should_demote(RecordState(tier), 1, Policy(cold_ttl=DAY), NOW) for tier in Tier)


def test_heat_decays_below_the_threshold() -> None:
    policy = Policy(hot_ttl=None, demote_idle=None)
    assert should_promote(state(Tier.WARM, 6, 7 * DAY), policy, NOW)
    assert should_promote(state(Tier.WARM, 3, HOUR), policy, NOW), "accesses need not come at one moment"
    assert not should_promote(state(Tier.WARM, 3, 6 * HOUR), policy, NOW)


def test_shipped_policy_keeps_cold_and_the_specification_policy_evicts() -> None:
    assert (DEFAULT.hot_capacity, DEFAULT.warm_capacity, DEFAULT.cold_capacity) == (50, 500, None)
    assert not DEFAULT.evicts
    assert Policy.go_default().cold_capacity == 5_000
    assert Policy.go_default().evicts
    assert Policy(cold_ttl=DAY).evicts


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hot_capacity", -1),
        ("cold_capacity", -5),
        ("hot_ttl", timedelta(seconds=-1)),
        ("cooldown", "soon"),
        ("promote_access", 0),
        ("batch_size", 0),
        ("max_moves", 0),
        ("hot_capacit", 5),
    ],
)
def test_tier_t56_bad_settings_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(RejectedError, match=rf"^Policy: {field}: "):
        Policy.parse({field: value})
    with pytest.raises(ValidationError, match=field):
        Policy(**{field: value})


def test_tier_weak_19_none_is_off_and_zero_keeps_nothing() -> None:
    policy = Policy(hot_capacity=0, warm_capacity=None, promote_access=None, hot_ttl=None)
    assert should_demote(state(Tier.HOT), 1, policy, NOW)
    assert not should_demote(state(Tier.WARM), 10**9, policy, NOW)
    assert not should_promote(state(Tier.WARM, 10**6), policy, NOW)


def test_tier_t06_default_weights() -> None:
    """Replaced on purpose: weights that are not given are all above 0 and an explicit 0 is off; the original took 0 for
    the default, so that no part could be switched off.
    """
    weights = RecallWeights(semantic=None, recency=None, importance=None)
    assert weights == RecallWeights()
    assert (weights.semantic, weights.recency, weights.importance) == (0.5, 0.3, 0.2)
    assert RecallWeights(recency=0).recency == 0
    assert RecallWeights(semantic=0, recency=0, importance=0).model_dump() == {
        "semantic": 0,
        "recency": 0,
        "importance": 0,
    }


def test_tier_t32_weights_are_not_rescaled() -> None:
    weights = RecallWeights(semantic=2, recency=2, importance=2)
    assert (weights.semantic, weights.recency, weights.importance) == (2, 2, 2)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_bad_weights_are_refused_by_name(value: float) -> None:
    with pytest.raises(RejectedError, match=r"^RecallWeights: recency: "):
        RecallWeights.parse({"recency": value})
