from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from isotherm.pipeline import stages
from isotherm.storage.postgres.outbox import STEP, Message, step_payload
from isotherm.tasks import onward
from isotherm.tasks.canvas import FAN_OUT, TAIL_REFRESH
from isotherm.tasks.onward import go_on, going_on

MINE, OTHER, TRACE = UUID(int=1), UUID(int=2), UUID(int=3)
STEP_OF_MINE: Any = SimpleNamespace(operation_id=MINE)


def one(step_id: int, stage: str, operation: UUID = MINE) -> Message:
    return Message(10 * step_id, STEP, step_payload(stage, step_id, operation, TRACE))


def many(*header: list[tuple[int, str]], body: tuple[int, str]) -> Message:
    lines = [[{"step_id": n, "stage": stage} for n, stage in line] for line in header]
    ids = {"operation_id": str(MINE), "trace_id": str(TRACE), "schema_version": 1}
    return Message(700, FAN_OUT, {**ids, "header": lines, "body": {"step_id": body[0], "stage": body[1]}})


class Seen:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[tuple[str, int]] = []
        self.sent: list[int] = []
        self.removed: list[int] = []
        self.next: dict[int, Message] = {}
        monkeypatch.setattr(onward, "publish_and_remove", lambda some: self.sent.extend(m.id for m in some))
        monkeypatch.setattr(onward, "_remove", self.removed.extend)
        monkeypatch.setattr(onward, "after_commit", lambda *_: None)

    def deliver(self, stage: str, job: dict[str, Any]) -> None:
        self.ran.append((stage, job["step_id"]))
        if job["step_id"] in self.next:
            go_on(STEP_OF_MINE, [self.next[job["step_id"]]])

    def go(self, stage: str, *messages: Message) -> None:
        with going_on(stage, self.deliver, None):
            go_on(STEP_OF_MINE, messages)
            assert self.ran == []  # not within the step that let them out


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


def test_steps_in_a_row_are_done_by_the_process_that_let_them_out_and_so_is_what_they_let_out(seen: Seen) -> None:
    seen.next = {
        1: many([(2, stages.S1_JUDGE)], body=(3, stages.S2_CLUSTER)),
        3: one(4, stages.V1_3_PERSIST),
        4: one(9, stages.S2_CLUSTER, OTHER),
    }
    seen.go(stages.EXTRACT, one(1, stages.S1_FOLD))
    assert seen.ran == [
        (stages.S1_FOLD, 1), (stages.S1_JUDGE, 2), (stages.S2_CLUSTER, 3), (stages.V1_3_PERSIST, 4),
    ]  # fmt: skip
    assert seen.sent == [90]  # another run's turn
    assert seen.removed == [10, 700, 40]


@pytest.mark.parametrize(
    "message",
    [
        many([(2, stages.S1_JUDGE)], [(3, stages.S1_JUDGE)], body=(4, stages.S2_CLUSTER)),
        many([(2, stages.V1_2_ADJUDICATE), (3, stages.V1_2_ADJUDICATE)], body=(4, stages.V1_3_PERSIST)),
        Message(5, TAIL_REFRESH, {"operation_id": str(MINE)}),
    ],
    ids=["side by side", "a queue", "no step"],
)
def test_everything_else_goes_by_its_message(seen: Seen, message: Message) -> None:
    seen.go(stages.EXTRACT, message)
    assert (seen.ran, seen.sent, seen.removed) == ([], [message.id], [])


def test_a_worker_of_one_queue_does_not_do_what_another_one_is_for(seen: Seen) -> None:
    seen.go(stages.S2_CLUSTER, many([(2, stages.V1_2_ADJUDICATE)], body=(3, stages.V1_3_PERSIST)))
    assert (seen.ran, seen.sent) == ([], [700])


def test_after_a_while_the_task_ends_and_messages_go_on(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onward, "_QUICK_S", -1.0)
    seen.go(stages.EXTRACT, one(1, stages.S1_FOLD))
    assert (seen.ran, seen.sent) == ([], [10])


def test_a_process_that_dies_in_between_leaves_the_message_where_it_is(seen: Seen) -> None:
    def die(_: str, job: dict[str, Any]) -> None:
        if job["step_id"] == 2:
            raise SystemExit

    with pytest.raises(SystemExit), going_on(stages.EXTRACT, die, None):
        go_on(STEP_OF_MINE, [one(1, stages.S1_FOLD), one(2, stages.S1_FOLD)])
    assert seen.removed == [10]


def test_outside_of_a_task_messages_go_out(seen: Seen) -> None:
    go_on(STEP_OF_MINE, [one(1, stages.S1_FOLD)])
    assert seen.sent == [10]
