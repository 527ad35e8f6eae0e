from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.payloads import FanOut, Payload, StepJob, StepRef, TailRefresh
from isotherm.storage import settings as settings_module
from isotherm.storage.postgres.outbox import STEP
from isotherm.storage.tier import TAIL_REFRESH
from isotherm.tasks import app, canvas
from isotherm.tasks.stage import StageTask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery import Task

ID = UUID("01a22a71-c772-7551-97f4-cab9c58384fc")
LONGEST_COUNTDOWN_S = 30.0


@pytest.fixture(autouse=True)
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The app with all its tasks. Nothing listens at the addresses, and nobody is asked."""
    monkeypatch.setenv("ISOTHERM_POSTGRES_DSN", "postgresql://127.0.0.1:1/none")
    monkeypatch.setenv("ISOTHERM_REDIS_URL", "redis://127.0.0.1:1/0")
    settings_module.settings.cache_clear()
    app.loader.import_default_modules()
    yield
    settings_module.settings.cache_clear()


def own_tasks() -> dict[str, Task]:
    return {name: task for name, task in app.tasks.items() if not name.startswith("celery.")}


def test_every_task_has_a_route_and_every_route_a_task() -> None:
    assert set(own_tasks()) == set(app.conf.task_routes)


def test_every_route_leads_to_a_declared_queue_that_has_its_own_routing_key() -> None:
    keys = {queue.name: queue.routing_key for queue in app.conf.task_queues}
    assert len(set(keys.values())) == len(keys) == len(stages.Queue)
    for route in app.conf.task_routes.values():
        assert route == {"queue": route["queue"], "routing_key": keys[route["queue"]]}


def test_no_queue_is_made_by_a_wrong_name_and_the_default_is_a_declared_one() -> None:
    names = {queue.name for queue in app.conf.task_queues}
    assert app.conf.task_create_missing_queues is False
    assert app.conf.task_default_queue in names


def test_every_beat_entry_names_a_tick() -> None:
    entries = app.conf.beat_schedule.values()
    assert {entry["task"] for entry in entries} <= set(stages.TICKS) & set(own_tasks())
    # The worker compares clocks of two machines; what is dropped must be older than clocks differ.
    assert {entry["options"]["expires"] for entry in entries} == {300.0}


def test_every_stage_is_a_task_that_runs_as_a_step() -> None:
    assert all(isinstance(own_tasks()[stage], StageTask) for stage in stages.STAGES)
    assert not any(isinstance(own_tasks()[tick], StageTask) for tick in stages.TICKS)


def test_every_builder_of_a_message_has_its_name_in_storage() -> None:
    assert set(canvas.BUILDERS) == {STEP, TAIL_REFRESH, canvas.FAN_OUT}


def fan_out(lines: list[list[StepRef]]) -> Any:
    wanted = FanOut(trace_id=ID, operation_id=ID, header=lines, body=StepRef(step_id=99, stage=stages.REPORT))
    return canvas.fan_out(wanted.model_dump(mode="json"))


@given(st.lists(st.integers(min_value=1, max_value=2), min_size=1, max_size=20))
def test_fan_out_is_a_flat_chord_with_an_immutable_body_that_hears_of_errors(lengths: list[int]) -> None:
    names = [stages.SUMMARIZE, stages.ARCHIVE]
    built = fan_out([[StepRef(step_id=10 * n + i, stage=names[i]) for i in range(k)] for n, k in enumerate(lengths)])
    body = built.body
    assert body.immutable
    assert body.task == stages.REPORT
    assert [one.task for one in body.options["link_error"]] == [stages.REPORT]
    assert all(one.immutable for one in body.options["link_error"])
    members = built.tasks if isinstance(built.tasks, (list, tuple)) else built.tasks.tasks
    assert len(members) == len(lengths)
    for member, length in zip(members, lengths, strict=True):
        links = list(member.tasks) if member.task == "celery.chain" else [member]
        assert [link.task for link in links] == names[:length]
        assert all(link.immutable for link in links)
        assert all(StepJob.parse(link.args[0]).operation_id == ID for link in links)


def test_message_comes_back_only_after_its_task_can_no_longer_run() -> None:
    visible_again = app.conf.broker_transport_options["visibility_timeout"]
    assert visible_again > app.conf.task_time_limit + LONGEST_COUNTDOWN_S - 1
    assert app.conf.task_soft_time_limit < app.conf.task_time_limit


def test_message_is_acknowledged_after_its_work_and_given_to_another_when_its_process_was_lost() -> None:
    assert app.conf.task_acks_late
    assert app.conf.task_reject_on_worker_lost
    assert app.conf.worker_prefetch_multiplier == 1
    assert app.conf.worker_soft_shutdown_timeout > 0


def test_only_json_is_written_and_read() -> None:
    assert app.conf.accept_content == ["json"]
    assert {app.conf.task_serializer, app.conf.result_serializer, app.conf.event_serializer} == {"json"}


PAYLOADS: dict[type[Payload], dict[str, Any]] = {
    StepJob: {"trace_id": str(ID), "operation_id": str(ID), "step_id": 7},
    TailRefresh: {"trace_id": str(ID), "namespace_ids": [1, 2]},
    FanOut: {
        "trace_id": str(ID),
        "operation_id": str(ID),
        "header": [[{"step_id": 1, "stage": stages.MIGRATE}]],
        "body": {"step_id": 2, "stage": stages.REPORT},
    },
}
MARKED = st.text(st.characters(codec="ascii", categories=("L", "N")), max_size=20).map("Xylophone{}".format)


@given(kind=st.sampled_from(sorted(PAYLOADS, key=lambda k: k.__name__)), value=MARKED, data=st.data())
def test_error_of_a_payload_names_the_field_and_never_repeats_its_value(
    kind: type[Payload], value: str, data: st.DataObject
) -> None:
    field = data.draw(st.sampled_from(sorted(PAYLOADS[kind])))
    with pytest.raises(RejectedError) as caught:
        kind.parse({**PAYLOADS[kind], field: value})
    assert f"{kind.__name__}: invalid {field}" in str(caught.value)
    assert value not in repr(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("kind", sorted(PAYLOADS, key=lambda k: k.__name__))
def test_payload_with_an_unknown_field_or_another_version_is_refused(kind: type[Payload]) -> None:
    assert kind.parse(PAYLOADS[kind])
    with pytest.raises(RejectedError, match="invalid extra"):
        kind.parse({**PAYLOADS[kind], "extra": 1})
    with pytest.raises(RejectedError, match="invalid schema_version"):
        kind.parse({**PAYLOADS[kind], "schema_version": 2})
