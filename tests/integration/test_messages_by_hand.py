"""A message that nobody here wrote is refused and told, and changes nothing: wrong shape, version, stage, operation, owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inprocess import STAGES, drive
from tiering import NS

from isotherm.pipeline.identity import Namespace
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import observe, producers, ticks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.pipeline.events import Event

SECRET = "xyzzyplugh"


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def told() -> Iterator[list[dict[str, Any]]]:
    """Refusals, as observers are told of them."""
    heard: list[dict[str, Any]] = []

    def hear(event: Event, _: dict[str, Any]) -> None:
        if event.name == "operations.delivery_refused":
            heard.append(dict(event.fields()))

    observe._observers.append(hear)
    yield heard
    observe._observers.remove(hear)


@pytest.fixture
def job(memory: Any) -> dict[str, Any]:
    """What a real message to `tier.index` says."""
    assert memory
    producers.remember(NS, "kelp", record_id="a")
    [[step, operation, trace]] = fetch_all(
        "SELECT s.id, s.operation_id, o.trace_id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id"
    )
    return {"step_id": step, "operation_id": str(operation), "trace_id": str(trace)}


def state() -> list[Any]:
    return [fetch_all("SELECT id, state, attempts, token FROM operation_steps ORDER BY id"),
            fetch_all("SELECT id, state FROM operations ORDER BY id")]  # fmt: skip


WRONG: dict[str, Any] = {
    "no step": {"step_id": None},
    "a later version": {"schema_version": 2},
    "a field of nobody": {SECRET: SECRET},
    "a text for a number": {"step_id": SECRET},
    "a far number": {"step_id": 10**30},
    "a negative number": {"step_id": -1},
    "no number": {"step_id": float("nan")},
    "no id": {"operation_id": SECRET},
    "another operation": {"operation_id": str(uuid4())},
    "a namespace of its own": {"namespace_id": 1},
    "riders that are none": {"more": [{"step_id": SECRET}]},
    "riders without end": {"more": [{"step_id": 1, "operation_id": str(uuid4()), "trace_id": str(uuid4())}] * 101},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_message_with_wrong_fields_is_refused_and_told(
    wrong: str, job: dict[str, Any], told: list[dict[str, Any]]
) -> None:
    before = state()
    answer = STAGES["tier.index"]({**job, **WRONG[wrong]})
    assert answer["state"] in {"refused", "skipped"}
    assert state() == before
    assert answer["state"] == "skipped" or len(told) == 1
    assert SECRET not in str([one["reason"] for one in told]) or wrong == "a field of nobody"
    drive()


@pytest.mark.parametrize("arguments", [(), ([],), (None,), ("x",), (b"x",), ({}, {})])
def test_message_that_is_no_payload_is_refused_and_told(
    arguments: tuple[Any, ...], job: dict[str, Any], told: list[dict[str, Any]]
) -> None:
    before = state()
    assert STAGES["tier.index"](*arguments) == {"state": "refused"}
    assert state() == before
    assert [one["stage"] for one in told] == ["tier.index"]
    assert STAGES["tier.index"](job)["records"] == 1
    drive()


def test_no_stage_runs_the_step_of_another_or_of_another_operation(
    job: dict[str, Any], told: list[dict[str, Any]]
) -> None:
    theirs = producers.remember(Namespace.of("boreas", "s1", tenant="acme"), "theirs")
    before = state()
    for name in sorted(set(STAGES) - {"tier.index"}):
        assert STAGES[name](job) == {"state": "refused"}, name
    assert STAGES["tier.index"]({**job, "operation_id": str(theirs.operation_id)}) == {"state": "refused"}
    assert state() == before
    assert len(told) == len(STAGES)
    drive()


@pytest.mark.parametrize("payload", [{}, {"namespace_ids": "all"}, {"namespace_ids": ["*"]}, [], None])
def test_tick_with_a_payload_that_is_none_is_refused(
    payload: Any, job: dict[str, Any], told: list[dict[str, Any]]
) -> None:
    assert job
    assert ticks.refresh(payload) == {"state": "refused"}
    assert len(told) == 1
    drive()


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_FIELDS = st.sampled_from(["step_id", "operation_id", "trace_id", "schema_version", "more"])


@settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(payload=_JSON | st.dictionaries(_FIELDS, _JSON, max_size=5), stage=st.sampled_from(sorted(STAGES)))
def test_any_json_is_refused_or_has_nothing_to_do(job: dict[str, Any], payload: Any, stage: str) -> None:
    assert job["step_id"] == 1
    before = state()
    assert STAGES[stage](payload)["state"] in {"refused", "skipped"}
    assert state() == before
