import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.records import Tier

Numbers = tuple[int | None, int | None, int | None, int | None]


def budget(numbers: Numbers) -> RecallBudget:
    total, hot, warm, cold = numbers
    return RecallBudget(total=total, hot=hot, warm=warm, cold=cold)


def numbers(made: RecallBudget) -> Numbers:
    return made.total, made.hot, made.warm, made.cold


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((None, None, None, None), (20, 12, 5, 3)),
        ((20, None, None, None), (20, 12, 5, 3)),
        ((10, None, None, None), (10, 6, 2, 2)),
        ((8, None, None, None), (8, 4, 2, 2)),
        ((5, None, None, None), (5, 3, 1, 1)),
        ((4, None, None, None), (4, 2, 1, 1)),
        ((1, None, None, None), (1, 0, 0, 1)),
        ((2, None, None, None), (2, 1, 0, 1)),
        ((3, None, None, None), (3, 1, 0, 2)),
        ((100, None, None, None), (100, 60, 25, 15)),
        ((200, None, None, None), (200, 120, 50, 30)),
        ((2, 2, None, None), (2, 2, 0, 0)),
        ((1, None, 1, None), (1, 0, 1, 0)),
        ((3, 3, 3, 3), (3, 3, 0, 0)),
        ((5, 0, 0, 5), (5, 0, 0, 5)),  # an explicit 0 is off, not the default
        ((10, 8, 2, 0), (10, 8, 2, 0)),
        ((10, 10, None, None), (10, 10, 0, 0)),  # never negative
        ((20, 30, None, None), (20, 20, 0, 0)),  # never above the total
        ((10, 20, 3, 3), (10, 10, 0, 0)),
        ((200, 200, 200, 200), (200, 200, 0, 0)),
        ((0, None, None, None), (0, 0, 0, 0)),
        ((10, None, None, 8), (10, 2, 0, 8)),  # default shares give way before given ones
    ],
)
def test_tier_t06_normalized_budgets(given: Numbers, expected: Numbers) -> None:
    """Replaced on purpose: None is the default and an explicit 0 is off, where the original took 0 for the default."""
    assert numbers(budget(given).normalize()) == expected


def test_tier_t15_levels_sum_to_the_total() -> None:
    made = RecallBudget(total=10).normalize()
    assert sum(made.share(tier) for tier in Tier) == 10


def test_tier_t31_an_empty_budget_is_20() -> None:
    assert RecallBudget().normalize().total == 20


share = st.none() | st.integers(0, 60)


@settings(deadline=None)
@given(st.tuples(share, share, share, share))
def test_normalizing_is_idempotent_never_negative_and_within_the_total(given_numbers: Numbers) -> None:
    made = budget(given_numbers)
    normal = made.normalize()
    assert normal.normalize() == normal
    shares = [normal.share(tier) for tier in Tier]
    assert min(shares) >= 0
    assert normal.total is not None
    assert sum(shares) <= normal.total
    assert [made.share(tier) for tier in Tier] == shares
    for tier in Tier:
        assert made.is_off(tier) == normal.is_off(tier)
        assert normal.minimum(tier) in (0, normal.share(tier))


def test_tier_x12_a_total_of_1_switches_no_level_off() -> None:
    normal = RecallBudget(total=1).normalize()
    assert not any(normal.is_off(tier) for tier in Tier)
    assert not any(normal.minimum(tier) for tier in Tier)


def test_a_budget_survives_json() -> None:
    for made in (RecallBudget(total=5, hot=0), RecallBudget(total=5, hot=9).normalize()):
        assert RecallBudget.parse(made.model_dump(mode="json")) == made


def test_negative_shares_are_refused_by_name() -> None:
    with pytest.raises(RejectedError, match=r"^RecallBudget: warm: "):
        RecallBudget.parse({"warm": -1})
