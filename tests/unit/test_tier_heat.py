import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.pipeline.tier.heat import (
    DECAY_PER_SECOND,
    EPOCH,
    EPOCH_SECONDS,
    HEAT_HALF_LIFE,
    add,
    combine,
    heat,
    heat_log_of,
    threshold_log,
    value_log,
)

T0 = datetime(2026, 7, 1, tzinfo=UTC)
moments = st.integers(0, 10**8).map(lambda seconds: T0 + timedelta(seconds=seconds))
accesses = st.lists(st.tuples(moments, st.integers(1, 50)), min_size=1, max_size=8)
relaxed = settings(deadline=None)


def logged(events: list[tuple[datetime, int]]) -> float:
    found: float | None = None
    for moment, count in events:
        found = add(found, moment, count)
    assert found is not None
    return found


def test_heat_equals_the_access_count_when_no_time_has_passed() -> None:
    log: float | None = None
    for count in range(1, 200):
        log = add(log, T0)
        assert heat(log, T0) == pytest.approx(count)
        assert log is not None
        assert log >= threshold_log(count, T0)
        assert log < threshold_log(count * 1.02, T0)


def test_heat_halves_with_each_half_life() -> None:
    log = add(None, T0, 8)
    assert heat(log, T0 + HEAT_HALF_LIFE) == pytest.approx(4)
    assert heat(log, T0 + 3 * HEAT_HALF_LIFE) == pytest.approx(1)


def test_a_record_that_was_never_accessed_has_no_heat() -> None:
    assert heat(None, T0) == 0
    assert add(None, T0, 0) is None
    assert combine(None, None) is None


@relaxed
@given(accesses)
def test_heat_is_the_sum_of_decayed_accesses(events: list[tuple[datetime, int]]) -> None:
    now = max(moment for moment, _ in events)
    direct = sum(count * 2 ** -((now - moment) / HEAT_HALF_LIFE) for moment, count in events)
    assert heat(logged(events), now) == pytest.approx(direct, rel=1e-9)


@relaxed
@given(accesses)
def test_touches_may_arrive_in_any_order_and_in_batches(events: list[tuple[datetime, int]]) -> None:
    single = [(moment, 1) for moment, count in events for _ in range(count)]
    assert logged(events[::-1]) == pytest.approx(logged(events), abs=1e-9)
    assert logged(single) == pytest.approx(logged(events), abs=1e-9)


@relaxed
@given(accesses, accesses, moments, moments)
def test_the_order_of_two_records_does_not_depend_on_the_time_of_asking(
    first: list[tuple[datetime, int]], second: list[tuple[datetime, int]], one: datetime, other: datetime
) -> None:
    gap_one = math.log(heat(logged(first), one)) - math.log(heat(logged(second), one))
    gap_other = math.log(heat(logged(first), other)) - math.log(heat(logged(second), other))
    assert gap_one == pytest.approx(gap_other, abs=1e-8)


@relaxed
@given(accesses, moments, st.integers(1, 100))
def test_an_access_never_cools(events: list[tuple[datetime, int]], moment: datetime, count: int) -> None:
    before = logged(events)
    after = add(before, moment, count)
    assert after is not None
    assert after >= before


def test_value_starts_with_importance_and_grows_with_access() -> None:
    low, high = value_log(0.2, T0), value_log(0.9, T0)
    assert low < high
    assert value_log(0.0, T0) == value_log(0.05, T0)
    assert value_log(0.2, T0 + timedelta(days=30)) > high
    touched = add(low, T0)
    assert touched is not None
    assert touched > high


def test_far_moments_do_not_overflow() -> None:
    log = add(None, datetime.max.replace(tzinfo=UTC))
    assert math.isfinite(heat(log, EPOCH))
    assert add(log, EPOCH) == log


def test_constants_are_those_the_queries_use() -> None:
    assert EPOCH.timestamp() == EPOCH_SECONDS
    assert heat_log_of(EPOCH) == 0
    assert math.log(2) / (7 * 86_400) == DECAY_PER_SECOND


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        add(None, T0, -1)
    with pytest.raises(ValueError, match="above 0"):
        threshold_log(0, T0)
