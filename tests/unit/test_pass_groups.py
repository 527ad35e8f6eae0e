from __future__ import annotations

from itertools import pairwise
from uuid import uuid4

from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.events import QuotaExceeded
from isotherm.pipeline.tier.plan import MigrationPlan, Move
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Reason, Tier
from isotherm.storage.postgres.steps import ClaimedStep
from isotherm.tasks.tier_pass import Pass, in_groups

# Moves, most moves of a batch, and whether it is for a quota.
PASSES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12), st.booleans()), max_size=12)


def made(number: int, count: int, batch_size: int, *, is_for_quota: bool) -> Pass:
    step = ClaimedStep(number, uuid4(), "tier.plan", "", {}, 1, 1, None, 0, None, None, uuid4())
    moves = tuple(Move(n, 1, Tier.HOT, Tier.WARM, Reason.CAPACITY) for n in range(min(count, batch_size)))
    over = QuotaExceeded(None, 1, 1, len(moves)) if is_for_quota else None
    return Pass(step, Policy.single_level().model_copy(update={"batch_size": batch_size}), MigrationPlan(moves), over)


@given(PASSES)
def test_groups_keep_the_order_hold_one_batch_and_leave_quotas_alone(given_passes: list[tuple[int, int, bool]]) -> None:
    passes = [made(n, count, size, is_for_quota=quota) for n, (count, size, quota) in enumerate(given_passes)]
    groups = list(in_groups(passes))
    assert [each for group in groups for each in group] == passes
    for group in groups:
        assert sum(len(each.planned.moves) for each in group) <= group[-1].policy.batch_size
        assert len(group) == 1 or not any(each.over for each in group)
    for before, after in pairwise(groups):
        joined = sum(len(each.planned.moves) for each in [*before, after[0]])
        quota = any(each.over for each in [*before, after[0]])
        assert quota or joined > after[0].policy.batch_size, "no group ends before it is full"
