from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from inprocess import STAGES, drive
from sessions import ATLAS, FORGE, NEEDS_MODEL, ingest, sample, session
from typer.testing import CliRunner

from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.interest import questions
from isotherm.pipeline.interest.candidates import Status
from isotherm.storage.models import factory
from isotherm.storage.postgres import interest_turn, operations
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import interest_models, produce_interest, producers
from isotherm.tasks.cli import app

if TYPE_CHECKING:
    from isotherm.pipeline.ports import Question
    from isotherm.storage.opened import Storage

pytestmark = NEEDS_MODEL

STORED = (
    "interest_points",
    "interest_evidence",
    "interest_edges",
    "interest_contradictions",
    "interest_log",
    "interest_merges",
)


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_EMBEDDER": "offline"}


def run(lines: Sequence[Any]) -> UUID:
    """One session through all stages, to its end."""
    operation_id = ingest(lines)
    drive(operation_id)
    done = producers.operation(operation_id)
    assert done.state == "done", (done.state, done.error)
    return operation_id


def everything() -> dict[str, list[Any]]:
    return {name: fetch_all(f"SELECT to_jsonb(t) FROM {name} AS t ORDER BY to_jsonb(t)::text") for name in STORED}


def names(bank: Bank = ATLAS) -> dict[str, int]:
    """Points by name, with how many sessions said them."""
    return {one.name: one.sessions for one in produce_interest.interests(bank)}


def tensions(bank: Bank = ATLAS) -> set[tuple[str, str]]:
    """Contradictions as (what counted before, what counts now)."""
    found = set()
    for one in produce_interest.contradictions(bank):
        assert one.current is not None
        other = one.left if one.current is one.right else one.right
        found.add((other.interest.name, one.current.interest.name))
    return found


def forget_operations() -> None:
    """As after 30 days: no key remembers what was ingested."""
    with connection() as conn:
        conn.execute("DELETE FROM operations")


@pytest.fixture
def told(memory: Storage) -> Storage:
    """The sample, session by session."""
    for lines in sample().values():
        run(lines)
    return memory


def test_what_the_sample_says_again_in_other_words_is_one_point_with_evidence_from_each_session(told: Storage) -> None:
    found = names()
    assert found["sea kayaking"] == 4
    assert {name: found[name] for name in ("learn Norwegian properly", "bake sourdough", "shoot film")} == {
        "learn Norwegian properly": 2,
        "bake sourdough": 2,
        "shoot film": 2,
    }
    assert not [name for name in found if "Paddling" in name or "Tordis" in name or "cinnamon" in name]
    [kayaking] = [one for one in produce_interest.interests(ATLAS) if one.name == "sea kayaking"]
    said = told.interest.evidence(ATLAS, [kayaking.id])[kayaking.id]
    assert [e.session for e in said] == ["bergen-plans", "flat-in-sandviken", "first-week", "petra-visit"]
    assert [e.at for e in said] == sorted(e.at for e in said)
    assert said[1].quote == "Paddling in the fjords after work, from the end of my own lane"
    assert kayaking.reliability == pytest.approx(0.8)
    assert (kayaking.first_seen_at, kayaking.last_seen_at) == (said[0].at, said[-1].at)

    # The contradictions that are in the sample, the newer side current, and none that are not.
    assert tensions() == {
        ("vegetarian", "not vegetarian anymore"),
        ("vegetarian", "eat fish again"),
        ("dark mode", "dislikes dark mode"),
        ("one-to-one with Ingrid on Tuesdays at 10:00", "one-to-one with Ingrid on Thursdays at 13:00"),
    }
    assert tensions(FORGE) == {("Postgres 15", "Postgres 17"), ("docs site dark", "docs site light")}
    for bank in (ATLAS, FORGE):
        for one in produce_interest.contradictions(bank):
            assert (one.status, one.because) == ("open", "said later")
            assert one.left.evidence is not None
            assert one.right.evidence is not None
            assert one.left.evidence.quote
            assert one.right.evidence.session

    # The same again changes nothing, whether the keys of the operations are still there or not.
    before = everything()
    for lines in sample().values():
        assert produce_interest.ingest_session(Namespace.of(lines[0].agent, lines[0].session), lines).new is False
    assert everything() == before
    forget_operations()
    for lines in sample().values():
        run(lines)
    assert everything() == before


def test_recall_ranks_what_was_said_often_and_shows_how(told: Storage) -> None:
    found = produce_interest.recall_interests(ATLAS, "hobbies on the water")
    assert found.items[0].interest.name == "sea kayaking"
    assert found.degraded == ()
    best = found.items[0].score
    assert best.total == pytest.approx(
        0.7 * best.similarity + 0.1 * (best.freshness + best.sessions + best.reliability), abs=1e-6
    )
    totals = [item.score.total for item in found.items]
    assert totals == sorted(totals, reverse=True)
    eats = [i.interest for i in produce_interest.recall_interests(ATLAS, "is she vegetarian?").items]
    assert {one.name: one.contested for one in eats[:2]} == {"not vegetarian anymore": False, "vegetarian": True}
    assert produce_interest.recall_interests(ATLAS, "  ").items == ()
    assert produce_interest.recall_interests(Bank("acme", "atlas"), "kayak").items == ()
    assert told.interest.recall(ATLAS, "kayak", limit=1).items[0].interest.name == "sea kayaking"
    with pytest.raises(RejectedError, match="limit"):
        produce_interest.recall_interests(ATLAS, "kayak", limit=0)


@pytest.mark.usefixtures("told")
def test_the_command_line_shows_interests_and_contradictions_with_what_was_said() -> None:
    shown = CliRunner(env={"COLUMNS": "140"}).invoke(app, ["interests", "--agent", "atlas"]).stdout
    assert "sea kayaking" in shown
    assert "Paddling in the fjords after work" in shown
    assert "flat-in-sandviken 2026-08-24" in shown
    told = json.loads(CliRunner().invoke(app, ["interests", "kayak", "--agent", "atlas", "--json"]).stdout)
    assert told[0]["name"] == "sea kayaking"
    assert len(told[0]["evidence"]) == 4
    assert told[0]["score"]["total"] > 0.4
    shown = CliRunner(env={"COLUMNS": "140"}).invoke(app, ["contradictions", "--agent", "forge"]).stdout
    assert "Postgres 15" in shown
    assert "said later" in shown
    told = json.loads(CliRunner().invoke(app, ["contradictions", "--agent", "forge", "--json"]).stdout)
    assert {one["rule"] for one in told} == {"number", "opposite_words"}
    assert CliRunner().invoke(app, ["interests", "--agent", "nobody"]).stdout.startswith("no interests of nobody")


@pytest.mark.usefixtures("memory")
def test_a_session_that_grew_is_read_as_a_whole_and_folds_into_what_is_there() -> None:
    start = session("s1", "I love sea kayaking.", "I'm vegetarian.")
    run(start)
    before = names()
    rest = session("s1", "I bake sourdough.", "Sea kayaking is still the best thing, imagine.", first=2)
    run([*start, *rest])
    assert names() == {**before, "bake sourdough": 1}
    assert fetch_all("SELECT count(*) FROM interest_evidence") == [(4,)]
    before_all = everything()
    run([*start, *rest, *session("s1", "Bye.", first=4)])
    assert everything() == before_all


@pytest.mark.usefixtures("memory")
def test_interest_x_10_two_agents_know_nothing_of_each_other() -> None:
    run(session("s1", "I'm vegetarian.", agent="atlas"))
    run(session("s1", "I eat fish again.", "I'm vegetarian.", day=1, agent="forge"))
    assert names(ATLAS) == {"vegetarian": 1}
    assert tensions(ATLAS) == set()
    assert len(fetch_all("SELECT DISTINCT bank_id FROM interest_points")) == 2


@pytest.mark.usefixtures("memory")
def test_interest_x_13_every_point_has_the_time_of_its_session() -> None:
    lines = session("s1", "I love tea.", day=3)
    run(lines)
    assert fetch_all("SELECT first_seen_at, last_seen_at FROM interest_points") == [(lines[0].time, lines[0].time)]
    assert fetch_all("SELECT turn, event_time FROM interest_evidence") == [(0, lines[0].time)]


@pytest.mark.usefixtures("memory")
def test_a_session_without_anything_to_learn_ends_done() -> None:
    operation_id = run(session("s1", "Hello.", "Which key for the upsert?"))
    assert producers.operation(operation_id).state == "done"
    assert names() == {}


@pytest.mark.usefixtures("memory")
def test_a_long_session_is_read_in_parts_side_by_side() -> None:
    said = [f"Note {n} is done." for n in range(250)]
    said[3], said[120], said[240] = "I love sea kayaking.", "I'm vegetarian.", "I bake sourdough."
    operation_id = run(session("s1", *said))
    with connection() as conn:
        steps = [(s.stage, s.unit) for s in operations.steps_of(conn, operation_id)]
    assert [unit for stage, unit in steps if stage == stages.EXTRACT] == ["", "0", "1"]
    assert names() == {"sea kayaking": 1, "vegetarian": 1, "bake sourdough": 1}
    turns = dict(
        fetch_all("SELECT p.name, e.turn FROM interest_evidence AS e JOIN interest_points AS p ON p.id = e.point_id")
    )
    assert turns == {"sea kayaking": 6, "vegetarian": 240, "bake sourdough": 480}


def test_a_session_is_one_operation_and_stored_with_the_first_step_of_its_run(memory: Storage) -> None:
    operation_id = ingest(session("s1", "I love tea."))
    assert memory.settings.embedder == "offline"
    assert fetch_all("SELECT id, kind, state FROM operations") == [(operation_id, "session.ingest", "accepted")]
    assert fetch_all("SELECT count(*) FROM tier_records") == [(2,)]
    assert {stage for (stage,) in fetch_all("SELECT stage FROM operation_steps")} == {
        stages.INDEX, stages.TIER_EMBED, stages.EXTRACT,
    }  # fmt: skip


def test_a_message_has_the_same_id_however_it_came_in(memory: Storage) -> None:
    lines = session("s1", "I love tea.")
    one = producers.remember_messages(lines)
    other = produce_interest.ingest_session(Namespace.of("atlas", "s1"), lines)
    assert one.ids == other.ids
    assert other.written == 0
    assert memory.tier.get(Namespace.of("atlas", "s1"), one.ids[0]).content == "I love tea."
    with pytest.raises(RejectedError, match="session"):
        produce_interest.ingest_session(Namespace.of("atlas"), lines)


def step_of(operation_id: UUID, stage: str) -> dict[str, Any]:
    [(step_id, trace)] = fetch_all(
        """SELECT s.id, o.trace_id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
           WHERE o.id = %(id)s AND s.stage = %(stage)s""",
        {"id": operation_id, "stage": stage},
    )
    return {"step_id": step_id, "operation_id": str(operation_id), "trace_id": str(trace)}


def until(operation_id: UUID, stage: str) -> None:
    """Run the steps of an operation that come before a stage."""
    for one in (stages.INDEX, stages.TIER_EMBED, stages.EXTRACT, stages.S1_FOLD, stages.S1_JUDGE, stages.S2_CLUSTER):
        if one == stage:
            return
        if fetch_all("SELECT 1 FROM operation_steps WHERE operation_id = %(id)s AND stage = %(s)s AND state = 'pending'",
                     {"id": operation_id, "s": one}):  # fmt: skip
            STAGES[one](step_of(operation_id, one))


@pytest.mark.usefixtures("memory")
def test_interest_w_1_of_one_agent_s_sessions_one_decides_at_a_time_and_the_next_is_called_when_it_is_done() -> None:
    first, second = ingest(session("s1", "I love sea kayaking.")), ingest(session("s2", "I love sea kayaking.", day=1))
    for one in (first, second):
        until(one, stages.S2_CLUSTER)
    STAGES[stages.S2_CLUSTER](step_of(first, stages.S2_CLUSTER))
    assert STAGES[stages.S2_CLUSTER](step_of(second, stages.S2_CLUSTER))["state"] == "postponed"
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now() + interval '1 hour' WHERE waits > 0")
        conn.execute("DELETE FROM outbox")
    drive(first)
    called = fetch_all("SELECT payload -> 'job' ->> 'operation_id' FROM outbox WHERE builder = 'step'")
    assert called == [(str(second),)]
    drive(second)
    assert names() == {"sea kayaking": 2}
    assert {producers.operation(one).state for one in (first, second)} == {"done"}
    with connection() as conn:
        [(bank,)] = conn.execute("SELECT bank_id FROM interest_banks WHERE turn_of IS NULL").fetchall()
        assert interest_turn.version(conn, bank) == 2


@pytest.mark.usefixtures("memory")
def test_the_turn_of_a_run_that_was_stopped_is_free() -> None:
    first, second = ingest(session("s1", "I love tea.")), ingest(session("s2", "I love tea.", day=1))
    until(first, stages.S2_CLUSTER)
    STAGES[stages.S2_CLUSTER](step_of(first, stages.S2_CLUSTER))
    producers.cancel(first)
    drive(second)
    assert names() == {"tea": 1}


@pytest.mark.usefixtures("memory")
def test_sessions_decide_in_the_order_in_which_they_came_however_fast_they_were_read() -> None:
    first, second = ingest(session("s1", "I love tea.")), ingest(session("s2", "I love  TEA.", day=1))
    until(second, stages.S2_CLUSTER)
    assert STAGES[stages.S2_CLUSTER](step_of(second, stages.S2_CLUSTER))["state"] == "postponed"
    drive(first)
    drive(second)
    assert names() == {"tea": 2}


@pytest.mark.usefixtures("memory")
def test_a_session_that_is_late_for_long_is_not_waited_for() -> None:
    ingest(session("s1", "I love tea."))
    with connection() as conn:
        conn.execute("UPDATE operations SET created_at = now() - interval '1 hour'")
    drive(ingest(session("s2", "I love  TEA.", day=1)))
    assert names() == {"TEA": 1}


@pytest.mark.usefixtures("memory")
def test_a_part_that_failed_for_good_keeps_its_points_for_review_and_a_retry_settles_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run(session("s1", "I'm vegetarian."))

    def broken(*_: object) -> None:
        raise RejectedError("never")

    with monkeypatch.context() as patched:
        patched.setattr(interest_models, "relate_by_rules", broken)
        operation_id = ingest(session("s2", "I eat fish again.", "I bake sourdough.", day=1))
        drive(operation_id)
    ended = producers.operation(operation_id)
    assert ended.state == "partial"
    found = {one.name: one.status for one in produce_interest.interests(ATLAS)}
    assert found == {
        "vegetarian": Status.ACTIVE, "eat fish again": Status.PENDING_REVIEW, "bake sourdough": Status.ACTIVE,
    }  # fmt: skip
    assert producers.retry(operation_id) == 2
    drive(operation_id)
    assert producers.operation(operation_id).state == "done"
    assert {one.status for one in produce_interest.interests(ATLAS)} == {Status.ACTIVE}
    assert names() == {"vegetarian": 1, "eat fish again": 1, "bake sourdough": 1}
    assert tensions() == {("vegetarian", "eat fish again")}


@pytest.mark.usefixtures("memory")
def test_retrying_an_early_stage_writes_the_later_ones_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [f"Note {n} is done." for n in range(250)]
    said[3], said[240] = "I love sea kayaking.", "I bake sourdough."
    seen: list[int] = []

    def second_part_broken(self: object, window: Any) -> Any:
        assert self is not None
        seen.append(window.first)
        if window.first >= 400:
            raise RejectedError("never")
        return extract(self, window)

    extract = interest_models.Readers.extract
    with monkeypatch.context() as patched:
        patched.setattr(interest_models.Readers, "extract", second_part_broken)
        operation_id = ingest(session("s1", *said))
        drive(operation_id)
    assert producers.operation(operation_id).state == "partial"
    assert names() == {"sea kayaking": 1}
    producers.retry(operation_id)
    drive(operation_id)
    assert producers.operation(operation_id).state == "done"
    assert names() == {"sea kayaking": 1, "bake sourdough": 1}
    assert fetch_all("SELECT count(*) FROM interest_log WHERE action = 'create'") == [(2,)]


@pytest.mark.usefixtures("memory")
def test_interest_x_12_a_run_that_ends_in_the_middle_of_writing_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise TransientError("away")

    with monkeypatch.context() as patched:
        patched.setattr("isotherm.storage.postgres.interest_write.PlanWriter._log", broken)
        operation_id = ingest(session("s1", "I love tea."))
        for stage in (stages.INDEX, stages.TIER_EMBED, stages.EXTRACT, stages.S1_FOLD, stages.S2_CLUSTER):
            STAGES[stage](step_of(operation_id, stage))
        assert STAGES[stages.V1_3_PERSIST](step_of(operation_id, stages.V1_3_PERSIST))["state"] == "postponed"
    assert everything() == {name: [] for name in STORED}
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now()")
    drive(operation_id)
    assert names() == {"tea": 1}


@pytest.mark.usefixtures("memory")
def test_evidence_outlives_its_message_without_a_quote() -> None:
    run(session("s1", "I love tea."))
    with connection() as conn:
        conn.execute("DELETE FROM tier_postings")
        conn.execute("DELETE FROM tier_records")
    [point] = produce_interest.interests(ATLAS)
    shown = CliRunner(env={"COLUMNS": "140"}).invoke(app, ["interests", "--agent", "atlas"]).stdout
    assert point.sessions == 1
    assert "the message is gone" in shown


class Model:
    """A chat model that answers by the kind of question, and counts."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def ask(self, question: Question[Any]) -> Any:
        self.asked.append(question.name)
        answer = self.answers[question.name]
        if isinstance(answer, Exception):
            raise answer
        return question.answer.model_validate(answer(question) if callable(answer) else answer)


def extracted(*topics: str) -> dict[str, Any]:
    return {
        "items": [
            {"topic": t, "reason": f"likes {t}", "confidence": 0.8, "first_turn": 0, "last_turn": 0} for t in topics
        ]
    }


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    made = Model()
    monkeypatch.setattr(factory, "chat_model", lambda _: made)
    return made


@pytest.mark.usefixtures("memory")
def test_a_model_reads_and_judges_and_archives_with_a_successor(model: Model) -> None:
    model.answers = {"interest_extract": extracted("lives in Kiel")}
    run(session("s1", "Hello from Kiel."))
    decided = {"decisions": [{"point": "n1", "action": "archive", "target": "h1"}]}
    model.answers = {"interest_extract": extracted("lives in Kiel and Bergen"), "interest_v1_2": decided}
    run(session("s2", "Hello from Bergen.", day=1))
    assert names() == {"lives in Kiel and Bergen": 1}
    assert fetch_all("SELECT name, status, embedding IS NULL FROM interest_points ORDER BY created_at") == [
        ("lives in Kiel", "archived", True),
        ("lives in Kiel and Bergen", "active", False),
    ]
    assert fetch_all("SELECT kind FROM interest_edges") == [("sequel",)]
    # A query that finds the old one is answered with the new one.
    assert [i.interest.name for i in produce_interest.recall_interests(ATLAS, "Kiel").items] == [
        "lives in Kiel and Bergen"
    ]
    # A topic that was archived comes back as a new point after the old one.
    decided = {"decisions": [{"point": "n1", "action": "keep"}]}
    model.answers = {"interest_extract": extracted("Lives in KIEL"), "interest_v1_2": decided}
    run(session("s3", "Hello again.", day=2))
    assert fetch_all("SELECT revival FROM interest_points WHERE canonical = 'lives in kiel' ORDER BY revival") == [
        (0,),
        (1,),
    ]
    assert fetch_all("SELECT count(*) FROM interest_edges WHERE kind = 'sequel'") == [(2,)]


@pytest.mark.usefixtures("memory")
def test_a_model_that_cannot_answer_loses_nothing(model: Model) -> None:
    model.answers = {"interest_extract": RejectedError("no")}
    run(session("s1", "I'm vegetarian.", "I love sea kayaking."))
    assert names() == {"vegetarian": 1, "sea kayaking": 1}
    model.answers = {"interest_extract": RejectedError("no"), "interest_v1_2": RejectedError("no")}
    operation_id = ingest(session("s2", "I eat fish again.", day=1))
    drive(operation_id)
    ended = producers.operation(operation_id)
    assert (ended.state, ended.error) == (
        "partial",
        f"{stages.V1_2_ADJUDICATE}/c0: refused: the model gave no usable answer",
    )
    assert {one.name: one.status for one in produce_interest.interests(ATLAS)}[
        "eat fish again"
    ] == Status.PENDING_REVIEW
    assert tensions() == set()


@pytest.mark.usefixtures("memory")
def test_a_group_is_merged_in_a_model_s_words_and_each_member_s_evidence_stays(model: Model) -> None:
    merged = {"merges": [{"members": [1, 2], "topic": "paddling at sea", "reason": "both"}]}
    model.answers = {"interest_extract": extracted("sea kayaking", "kayaking at sea"), "interest_s1": merged}
    run(session("s1", "Hello."))
    assert names() == {"paddling at sea": 1}
    assert fetch_all("SELECT count(*) FROM interest_evidence") == [(2,)]
    assert fetch_all("SELECT embedding IS NULL FROM interest_points") == [(False,)]


@pytest.mark.usefixtures("memory")
def test_what_a_model_answered_before_it_went_away_is_not_asked_again(model: Model) -> None:
    away = TransientError("busy")
    calls = itertools.count(1)

    def second_fails(_: object) -> dict[str, Any]:
        number = next(calls)
        if number == 2:
            raise away
        return extracted(f"topic {number}")

    model.answers = {
        "interest_extract": second_fails,
        "interest_v1_2": {"decisions": []},
        "interest_s1": {"merges": []},
    }
    operation_id = ingest(session("s1", *(f"Note {n}." for n in range(12))))
    for stage in (stages.INDEX, stages.TIER_EMBED):
        STAGES[stage](step_of(operation_id, stage))
    assert STAGES[stages.EXTRACT](step_of(operation_id, stages.EXTRACT))["state"] == "postponed"
    asked = model.asked.count("interest_extract")
    assert fetch_all("SELECT count(*) FROM interest_answers") == [(asked - 1,)]
    assert asked in {2, 3}  # the third may have been under way
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now()")
    drive(operation_id)
    assert producers.operation(operation_id).state == "done"
    assert model.asked.count("interest_extract") == 4
    assert questions.CANDIDATES_MAX == 20


@pytest.mark.usefixtures("memory")
def test_a_point_said_lately_is_fresh_and_one_of_long_ago_is_stale() -> None:
    run(session("s1", "I love tea."))
    [point] = produce_interest.interests(ATLAS)
    ages = [point.freshness(point.last_seen_at + timedelta(days=d)).value for d in (1, 100, 200)]
    assert ages == ["fresh", "aging", "stale"]
