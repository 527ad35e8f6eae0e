from __future__ import annotations

import pytest

from isotherm.storage.models import factory
from isotherm.storage.settings import Settings
from isotherm.tasks.interest_models import Readers
from isotherm.tasks.interest_run import MAX_PARTS, batches


@pytest.mark.parametrize(
    ("parallel", "windows", "parts"),
    [
        (4, 4, [4]),  # one round stays in one step
        (4, 9, [4, 4, 1]),
        (4, 60, [4] * 15),
        (16, 60, [16, 16, 16, 12]),
        (1, 20, [20]),  # rules, or one question at a time
        (1, 60, [20] * 3),
        (4, 1_000, [16] * 62 + [8]),
    ],
)
def test_a_step_holds_one_round_of_questions_so_that_a_large_session_is_spread_over_workers(
    parallel: int, windows: int, parts: list[int]
) -> None:
    who = Readers(None, None, factory.redactor(Settings()), parallel)
    cut = batches(range(windows), who.per_step)
    assert [len(part) for part in cut] == parts
    assert [n for part in cut for n in part] == list(range(windows))
    assert len(cut) <= MAX_PARTS
