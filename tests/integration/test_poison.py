"""One record that cannot be moved is set aside by itself, whatever it does to the step that it is in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
from inprocess import _READY, STAGES, drive, run_pass
from tiering import NS, policy, tiers

from isotherm import storage
from isotherm.pipeline.errors import RejectedError, TransientError, UnavailableError
from isotherm.pipeline.tier.cold import Summary
from isotherm.pipeline.tier.plan import Move
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage.models import factory
from isotherm.storage.models.http import StatusRejectedError
from isotherm.storage.postgres import sweep, tier_move, tier_passes, tier_plan
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.postgres.tier_held import SetAside
from isotherm.tasks import producers, ticks

if TYPE_CHECKING:
    from uuid import UUID

    from isotherm.pipeline.ports import Question
    from isotherm.storage.opened import Storage

TO_COLD = policy(warm_capacity=0)
POISON = "poison"


class Died(BaseException):
    """What ends a runner without a word."""


class Model:
    """Summarizes every text, and counts how often it was asked for each; `poison` is what it does for the one."""

    def __init__(self) -> None:
        self.poison: BaseException | None = None
        self.everywhere: BaseException | None = None
        self.asked: Counter[str] = Counter()

    def ask(self, question: Question[Any]) -> Summary:
        name = question.user.split("\n")[1].split()[0]
        self.asked[name] += 1
        error = self.everywhere or (self.poison if name == POISON else None)
        if error is not None:
            raise error
        return Summary(summary=f"summary of {name}")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    made = Model()
    with monkeypatch.context() as patched:
        patched.setattr(factory, "chat_model", lambda _: made)
        yield made


def store(*names: str, tier: Tier = Tier.WARM, size: int = 300) -> None:
    old = datetime.now(UTC) - timedelta(hours=1)
    texts = {name: f"{name} " + f"kelp of {name} grows in the cold water " * (size // 30) for name in names}
    producers.remember_records(NS, [NewRecord(name, text, old, tier=tier) for name, text in texts.items()])
    drive()


def aside() -> SetAside:
    (one,) = producers.set_aside(None)
    return one


def over() -> None:
    """Let the time of everything that waits be over."""
    with connection() as conn:
        conn.execute("UPDATE tier_set_aside SET held_until = now()")
        conn.execute("UPDATE operation_steps SET not_before = now() WHERE state = 'pending'")


def run_next(operation_id: UUID) -> str:
    """Run the first step of an operation that is pending; returns its stage."""
    step_id, operation, trace, stage = fetch_all(_READY, {"operation": operation_id})[0]
    STAGES[stage]({"step_id": step_id, "operation_id": str(operation), "trace_id": str(trace)})
    return str(stage)


def test_text_that_the_code_fails_at_is_set_aside_alone(memory: Storage, model: Model) -> None:
    assert memory
    store("a", "b", POISON, "c", size=6_000)
    model.poison = ValueError("of the text itself")
    report = run_pass(NS, TO_COLD)
    assert (report["demoted"], report["set_aside"], report["unfinished"]) == (3, 1, 0)
    assert tiers() == {"a": Tier.COLD, "b": Tier.COLD, "c": Tier.COLD, POISON: Tier.WARM}
    assert (aside().id, aside().attempts) == (POISON, 1)
    assert aside().reason.startswith("summary ValueError in test_poison.py:")
    assert producers.plan(NS, TO_COLD).moves == (), "it is left alone for a time"
    assert set(model.asked.values()) == {1}
    model.poison = None
    over()
    assert run_pass(NS, TO_COLD)["demoted"] == 1


def test_refusal_of_the_server_is_told_with_the_record(memory: Storage, model: Model) -> None:
    assert memory
    store("a", POISON, size=6_000)
    model.poison = StatusRejectedError("chat/completions", 401)
    assert run_pass(NS, TO_COLD)["set_aside"] == 1
    assert aside().reason == "summary declined: chat/completions: the model server answered 401"


def test_text_that_ends_every_runner_takes_no_answer_of_another_with_it(memory: Storage, model: Model) -> None:
    """Two runners are enough: the second one comes from the other end."""
    assert memory
    store("a", "b", POISON, "c", "d", size=6_000)
    model.poison = Died()
    accepted = producers.reconcile(NS, TO_COLD)
    run_next(accepted.operation_id)
    for _ in range(2):
        with pytest.raises(Died):
            run_next(accepted.operation_id)
        with connection() as conn:
            conn.execute("UPDATE operation_steps SET state = 'pending', lease_until = NULL WHERE state = 'running'")
    with pytest.raises(Died):
        run_next(accepted.operation_id)
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET lease_until = now() - interval '1 s' WHERE state = 'running'")
        assert len(sweep.expired(conn, cap=3, delay=timedelta(0), nudge_after=timedelta(0)).dead) == 1
    drive(accepted.operation_id)
    assert producers.operation(accepted.operation_id).state == "partial"
    assert tiers() == {"a": Tier.COLD, "b": Tier.COLD, "c": Tier.COLD, "d": Tier.COLD, POISON: Tier.WARM}
    assert aside().reason.startswith("no summary: its runner was lost 3 times")
    assert model.asked == {"a": 1, "b": 1, "c": 1, "d": 1, POISON: 3}


def test_text_that_the_server_never_answers_is_set_aside_once_it_answered_for_the_others(
    memory: Storage, model: Model
) -> None:
    assert memory
    store("a", POISON, "c", size=6_000)
    model.poison = TransientError("the model server answered 500")
    accepted = producers.reconcile(NS, TO_COLD)
    for _ in range(9):
        assert not producers.operation(accepted.operation_id).final
        over()
        run_next(accepted.operation_id)
    assert model.asked["a"] == model.asked["c"] == 1
    over()
    drive(accepted.operation_id)
    assert producers.operation(accepted.operation_id).state == "done"
    assert tiers() == {"a": Tier.COLD, "c": Tier.COLD, POISON: Tier.WARM}
    assert aside().reason == "summary unanswered"


@pytest.mark.parametrize("error", [UnavailableError("no connection"), TransientError("503")])
def test_server_that_is_away_sets_nothing_aside_before_the_patience_of_its_step_ends(
    memory: Storage, model: Model, error: TransientError
) -> None:
    assert memory
    store("a", "b", "c", size=6_000)
    model.everywhere = error
    accepted = producers.reconcile(NS, TO_COLD)
    run_next(accepted.operation_id)
    for _ in range(12):
        over()
        assert run_next(accepted.operation_id) == "cold.summarize"
    assert model.asked.total() <= 24, "after two texts it is known"
    assert producers.set_aside(None) == []
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET retry_until = now() WHERE stage = 'cold.summarize'")
    over()
    drive(accepted.operation_id)
    assert producers.operation(accepted.operation_id).state == "partial"
    assert {(s.id, s.reason) for s in producers.set_aside(None)} == {
        (name, f"no summary: gave up waiting: {error}") for name in "abc"
    }
    assert ticks.due() == {"namespaces": 0}, "no pass comes before they may be looked at again"


def test_setting_that_is_missing_holds_only_what_needs_it_and_is_named(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("ISOTHERM_CHAT", "openai")
    memory: Storage = request.getfixturevalue("memory")
    assert memory
    store("short")
    store("long", "longer", size=6_000)
    store("hot", tier=Tier.HOT)
    accepted = producers.reconcile(NS, policy(warm_capacity=0, hot_capacity=0))
    drive(accepted.operation_id)
    assert tiers() == {"hot": Tier.WARM, "short": Tier.COLD, "long": Tier.WARM, "longer": Tier.WARM}
    assert {s.reason for s in producers.set_aside(None)} == {
        "no summary: settings: ISOTHERM_CHAT=openai needs ISOTHERM_CHAT_URL"
    }
    assert producers.operation(accepted.operation_id).state == "partial"


@pytest.fixture
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTHERM_MAX_ATTEMPTS", "1")


def _fails_at(poison: int, change: Callable[..., Any], error: Exception) -> Callable[..., Any]:
    def failing(conn: Any, *given: Any, **more: Any) -> Any:
        moves: Iterable[Move] = chain(*given[0].values()) if isinstance(given[0], dict) else given[1]
        if any(move.key == poison for move in moves):
            raise error
        return change(conn, *given, **more)

    return failing


@pytest.mark.parametrize(
    ("change", "tier", "limits"),
    [("archive", Tier.WARM, {"warm_capacity": 0}), ("shift_together", Tier.HOT, {"hot_capacity": 0})],
)
@pytest.mark.parametrize("error", [ValueError("a bug"), RejectedError("refused")])
@pytest.mark.usefixtures("one_attempt")
def test_record_that_stops_its_whole_batch_is_alone_the_next_time(
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    *,
    change: str,
    tier: Tier,
    limits: dict[str, int],
    error: Exception,
) -> None:
    memory: Storage = request.getfixturevalue("memory")
    assert memory
    store("a", POISON, "b", "c", tier=tier)
    ((key,),) = fetch_all("SELECT key FROM tier_records WHERE id = 'poison'")
    before = tiers()
    with monkeypatch.context() as patched:
        patched.setattr(tier_move, change, _fails_at(key, getattr(tier_move, change), error))
        accepted = producers.reconcile(NS, policy(**limits))
        drive(accepted.operation_id)
        report = producers.operation(accepted.operation_id).result
        assert report is not None
        assert (report["set_aside"], report["unfinished"], tiers()) == (4, 1, before)
        assert ticks.due() == {"namespaces": 0}
        assert producers.plan(NS, policy(**limits)).moves == ()
        over()
        drive(producers.reconcile(NS, policy(**limits)).operation_id)
    assert sum(t is not tier for t in tiers().values()) == 3
    state = "failed: refused" if isinstance(error, RejectedError) else "dead: ValueError in test_poison.py:"
    assert (aside().id, aside().attempts) == (POISON, 2)
    assert f" {state}" in aside().reason
    over()
    assert run_pass(NS, policy(**limits))["demoted"] == 1
    assert storage.open().settings.max_attempts == 1


@pytest.mark.usefixtures("one_attempt")
def test_what_a_model_answered_for_a_pass_that_was_stopped_is_not_paid_for_again(
    request: pytest.FixtureRequest, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory: Storage = request.getfixturevalue("memory")
    store("a", "b", "c", size=6_000)
    cancelled = producers.reconcile(NS, TO_COLD).operation_id
    assert [run_next(cancelled) for _ in range(2)] == ["tier.plan", "cold.summarize"]
    producers.cancel(cancelled)
    with monkeypatch.context() as patched:
        ((key,),) = fetch_all("SELECT key FROM tier_records WHERE id = 'b'")
        patched.setattr(tier_move, "archive", _fails_at(key, tier_move.archive, ValueError("a bug")))
        drive(producers.reconcile(NS, TO_COLD).operation_id)
    assert set(tiers().values()) == {Tier.WARM}
    producers.remember_records(NS, [NewRecord("c", "c again " * 800, datetime.now(UTC), tier=Tier.WARM)])
    drive()
    over()
    assert run_pass(NS, TO_COLD)["demoted"] == 3
    assert model.asked == {"a": 1, "b": 1, "c": 2}, "what changed is another text"
    assert memory.tier.get(NS, "a").summary == "summary of a"


@pytest.mark.usefixtures("one_attempt")
def test_namespace_whose_passes_cannot_be_planned_is_tried_less_and_less_often(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory: Storage = request.getfixturevalue("memory")
    assert memory
    store("a")
    waits = []
    with monkeypatch.context() as patched:
        patched.setattr(tier_plan, "begin_passes", _refuse)
        for _ in range(3):
            assert ticks.due() == {"namespaces": 1}
            drive()
            assert ticks.due() == {"namespaces": 0}
            waits.append(_let_the_wait_be_over())
    assert waits == [10, 20, 40]
    assert ticks.due() == {"namespaces": 1}
    drive()
    ended = "SELECT state FROM operations WHERE kind = 'tier.reconcile' ORDER BY id"
    assert [state for (state,) in fetch_all(ended)] == ["failed"] * 3 + ["done"]


def _refuse(*_: object) -> None:
    raise RejectedError("no plan")


def _let_the_wait_be_over() -> int:
    """Ended passes go back in time until the namespace is due; returns by how many minutes."""
    for minutes in range(5, 100, 5):
        with connection() as conn:
            conn.execute(
                "UPDATE operations SET finished_at = finished_at - interval '5 minutes' WHERE state = 'failed'"
            )
            if tier_passes.due(conn):
                return minutes
    raise AssertionError("it never is")


@pytest.mark.parametrize("error", [ValueError("a bug"), RejectedError("refused")])
def test_record_that_stops_a_plan_that_moves_at_once_is_alone_in_the_end(
    memory: Storage, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    assert memory
    store("a", POISON, "b", "c", tier=Tier.HOT)
    limits = policy(hot_capacity=0)
    ((key,),) = fetch_all("SELECT key FROM tier_records WHERE id = 'poison'")
    with monkeypatch.context() as patched:
        patched.setattr(tier_move, "shift_together", _fails_at(key, tier_move.shift_together, error))
        for _ in range(2):
            operation_id = producers.reconcile(NS, limits).operation_id
            for _ in range(20):
                over()
                if not producers.operation(operation_id).final:
                    run_next(operation_id)
            assert producers.operation(operation_id).state == "partial"
            over()
    assert tiers() == {"a": Tier.WARM, "b": Tier.WARM, "c": Tier.WARM, POISON: Tier.HOT}
    assert (aside().id, aside().attempts) == (POISON, 2)
    assert run_pass(NS, limits)["demoted"] == 1


def test_record_that_changed_before_its_pass_gave_up_is_not_set_aside(memory: Storage, model: Model) -> None:
    assert memory
    store("a", "b", size=6_000)
    accepted = producers.reconcile(NS, TO_COLD)
    run_next(accepted.operation_id)
    producers.remember_records(NS, [NewRecord("a", "kelp", datetime.now(UTC), tier=Tier.WARM)])
    with connection() as conn:
        conn.execute(
            """UPDATE operation_steps SET state = 'failed', finished_at = now(), last_error = 'refused'
               WHERE stage = 'cold.archive' AND operation_id = %s""",
            (accepted.operation_id,),
        )
    drive(accepted.operation_id)
    assert (aside().id, aside().reason) == ("b", "cold.archive failed: refused")
    assert model.asked
