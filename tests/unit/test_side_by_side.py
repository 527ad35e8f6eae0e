from __future__ import annotations

import threading
from contextvars import ContextVar
from functools import partial

import pytest

from isotherm.storage.interest_meter import BoundedChat
from isotherm.tasks.side_by_side import side_by_side

WHO: ContextVar[str] = ContextVar("who")


@pytest.mark.parametrize("most", [1, 3, 50])
def test_each_call_is_made_once_and_sees_the_context_of_its_caller(most: int) -> None:
    WHO.set("kim")
    calls = {str(n): partial(lambda n: (WHO.get(), n), n) for n in range(12)}
    assert dict(side_by_side(calls, most)) == {str(n): ("kim", n) for n in range(12)}
    assert list(side_by_side({}, most)) == []


def test_calls_go_side_by_side_but_not_more_than_that() -> None:
    together = threading.Barrier(3, timeout=10)
    calls = {str(n): together.wait for n in range(6)}
    assert sorted(dict(side_by_side(calls, 3)).values()) == [0, 0, 1, 1, 2, 2]


def test_after_a_failure_no_other_call_begins_and_what_was_under_way_is_given() -> None:
    begun: list[str] = []
    both, failed = threading.Barrier(2, timeout=10), threading.Event()

    def fail() -> None:
        begun.append("fails")
        both.wait()
        failed.set()
        raise LookupError

    def slow() -> None:
        begun.append("slow")
        both.wait()
        failed.wait(10)

    given: list[str] = []
    with pytest.raises(LookupError):
        given.extend(
            name for name, _ in side_by_side({"fails": fail, "slow": slow, **dict.fromkeys("abcdef", fail)}, 2)
        )
    assert given == ["slow"]
    assert begun.count("slow") == 1
    assert len(begun) == 2


def test_a_model_has_no_more_questions_at_a_time_than_there_are_places() -> None:
    inside, most, lock = 0, 0, threading.Lock()
    pair = threading.Barrier(2, timeout=10)

    class Model:
        def ask(self, question: object) -> object:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
            pair.wait()
            with lock:
                inside -= 1
            return question

    chat = BoundedChat(Model(), threading.Semaphore(2))  # type: ignore[arg-type]
    asked = dict(side_by_side({str(n): partial(chat.ask, n) for n in range(8)}, 8))  # type: ignore[arg-type]
    assert len(asked) == 8
    assert most == 2
