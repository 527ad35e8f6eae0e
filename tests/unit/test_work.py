from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.work import OperationState, StepState, backoff, derive_state

STEPS = st.lists(st.sampled_from(StepState), max_size=6)


@pytest.mark.parametrize(
    ("steps", "state"),
    [
        ("", "accepted"),
        ("pending pending", "accepted"),
        ("pending done", "running"),
        ("running", "running"),
        ("dead pending", "running"),
        ("done done", "done"),
        ("done failed", "partial"),
        ("done dead", "partial"),
        ("failed", "failed"),
        ("dead failed", "dead"),
        ("done cancelled", "cancelled"),
    ],
)
def test_state_of_an_operation_follows_from_its_steps(steps: str, state: str) -> None:
    assert derive_state(StepState(s) for s in steps.split()) == state


@given(STEPS)
def test_an_operation_is_final_exactly_when_all_its_steps_are(steps: list[StepState]) -> None:
    open_states = {OperationState.ACCEPTED, OperationState.RUNNING}
    unfinished = not steps or any(s in {StepState.PENDING, StepState.RUNNING} for s in steps)
    assert (derive_state(steps) in open_states) == unfinished


@given(STEPS)
def test_order_of_steps_does_not_matter(steps: list[StepState]) -> None:
    assert derive_state(steps) == derive_state(reversed(steps))


@given(st.integers(0, 10_000), st.floats(0, 1))
def test_backoff_grows_to_its_cap_and_never_beyond_the_jitter(tries: int, jitter: float) -> None:
    base, cap = timedelta(seconds=2), timedelta(minutes=5)
    wait = backoff(tries, base, cap, jitter)
    assert base <= wait <= cap * 1.25
    assert backoff(tries, base, cap) <= backoff(tries + 1, base, cap)
