"""Rows of the specification of interests that need the stages, the database or a model server."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hash_embedder import HashEmbedder
from inprocess import STAGES, drive
from model_server import Answer, model_server, said
from numpy.typing import NDArray
from sessions import ATLAS, FORGE, ingest, session

from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.interest.questions import Merged
from isotherm.pipeline.interest.ranking import Span
from isotherm.pipeline.ports import Question
from isotherm.storage.models import factory
from isotherm.storage.models.chat import HttpChatModel
from isotherm.storage.models.http import ModelServer
from isotherm.storage.models.usage import collect
from isotherm.storage.opened import Storage
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import interest_tend, produce_interest, producers


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


class Embedder(HashEmbedder):
    """Vectors of a test's own for some texts; it can be away."""

    def __init__(self) -> None:
        super().__init__(8, "test")
        self.own: dict[str, list[float]] = {}
        self.error: Exception | None = None

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.error is not None:
            raise self.error
        found = super().embed(texts)
        for row, text in enumerate(texts):
            for word, vec in self.own.items():
                if word in text:
                    found[row] = np.array([*vec, *[0.0] * (8 - len(vec))], dtype=np.float32) / np.linalg.norm(vec)
        return found


@pytest.fixture
def embedder(memory: Storage) -> Iterator[Embedder]:
    made = Embedder()
    factory.use_embedder(memory.settings, made)
    yield made
    factory.use_embedder(memory.settings, None)


class Model:
    """A chat model that answers by the kind of question, and counts what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def ask(self, question: Question[Any]) -> Any:
        self.asked.append(question.name)
        answer = self.answers[question.name]
        if isinstance(answer, Exception):
            raise answer
        return question.answer.model_validate(answer(question) if callable(answer) else answer)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Model:
    made = Model(interest_s1={"merges": []}, interest_v1_2={"decisions": []})
    monkeypatch.setattr(factory, "chat_model", lambda _: made)
    return made


def extracted(*topics: str, **more: Any) -> dict[str, Any]:
    item = {"confidence": 0.8, "first_turn": 0, "last_turn": 0, **more}
    return {"items": [{"topic": t, "reason": f"about {t}", **item} for t in topics]}


def run(name: str, *words: str, day: int = 0, agent: str = "atlas") -> UUID:
    operation_id = ingest(session(name, *(words or ("Hello.",)), day=day, agent=agent))
    drive(operation_id)
    return operation_id


def names() -> dict[str, int]:
    return {one.name: one.sessions for one in produce_interest.interests(ATLAS)}


def point(name: str) -> UUID:
    [(found,)] = fetch_all("SELECT id FROM interest_points WHERE name = %(name)s", {"name": name})
    return UUID(str(found))


def test_interest_s1_6_groups_are_asked_about_side_by_side(embedder: Embedder, model: Model) -> None:
    embedder.own = {"red": [1, 0], "crimson": [0.9, 0.1], "oak": [0, 1], "elm": [0.1, 0.9]}
    model.answers["interest_extract"] = extracted("red", "crimson", "oak", "elm")
    both_asked = threading.Barrier(2, timeout=10)

    def answer(_: object) -> dict[str, Any]:
        both_asked.wait()
        return {"merges": []}

    model.answers["interest_s1"] = answer
    operation_id = run("s1")
    assert model.asked.count("interest_s1") == 2
    assert producers.operation(operation_id).state == "done"


def test_interest_s1_8_without_vectors_the_run_waits_and_goes_on_when_they_come(embedder: Embedder) -> None:
    embedder.error = TransientError("away")
    operation_id = ingest(session("s1", "I love tea."))
    for stage in (stages.INDEX, stages.TIER_EMBED, stages.EXTRACT, stages.S1_FOLD):
        [(step, trace)] = fetch_all(
            """SELECT s.id, o.trace_id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
               WHERE s.stage = %(s)s""",
            {"s": stage},
        )
        receipt = STAGES[stage]({"step_id": step, "operation_id": str(operation_id), "trace_id": str(trace)})
    assert receipt["state"] == "postponed"
    assert names() == {}
    embedder.error = None
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now()")
    drive(operation_id)
    assert names() == {"tea": 1}


def test_interest_v_1_a_vector_is_stored_with_unit_length(embedder: Embedder) -> None:
    embedder.own = {"tea": [3, 4, 0]}
    run("s1", "I love tea.")
    [(stored,)] = fetch_all("SELECT embedding FROM interest_points WHERE name = 'tea'")
    np.testing.assert_allclose(stored.to_numpy()[:3], [0.6, 0.8, 0], atol=1e-3)  # 16-bit numbers
    assert fetch_all("SELECT embedding FROM interest_points WHERE name = 'coffee'") == []


def test_interest_v_2_new_words_replace_the_vector_of_that_agent_s_point_only(embedder: Embedder, model: Model) -> None:
    embedder.own = {"tea": [1, 0], "black tea": [0, 1]}
    model.answers["interest_extract"] = extracted("tea")
    run("s1")
    run("s1", agent="forge")
    model.answers["interest_extract"] = extracted("teas")
    model.answers["interest_v1_2"] = {
        "decisions": [{"point": "n1", "action": "merge", "target": "h1", "topic": "black tea"}]
    }
    run("s2", "More.", day=1)
    rows = fetch_all(
        "SELECT b.agent, p.name, p.embedding FROM interest_points AS p JOIN banks AS b ON b.id = p.bank_id ORDER BY 1"
    )
    assert [(agent, name) for agent, name, _ in rows] == [("atlas", "black tea"), ("forge", "tea")]
    assert [vec.to_numpy()[:2].round(2).tolist() for *_, vec in rows] == [[0, 1], [1, 0]]


@pytest.fixture
def server_waits() -> list[float]:
    return []


def chat(url: str, waits: list[float]) -> HttpChatModel:
    return HttpChatModel(ModelServer(url, timeout=5, sleep=waits.append), "test")


def test_interest_l_1_errors_of_a_server_are_tried_four_times_and_refusals_once(
    monkeypatch: pytest.MonkeyPatch, server_waits: list[float]
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    question = Question("interest_s1", "Judge.", "n1", Merged)
    with model_server(Answer(status=500), said('{"merges": []}')) as script:
        assert chat(script.url, server_waits).ask(question) == Merged(merges=[])
        assert len(script.asked) == 2
        assert len(server_waits) == 1
        assert server_waits[0] > 0  # spread by chance, so that many callers do not come back at once
    with model_server(Answer(status=500)) as script:
        with pytest.raises(TransientError):
            chat(script.url, server_waits).ask(question)
        assert len(script.asked) == 4
    with model_server(Answer(status=401)) as script:
        with pytest.raises(RejectedError):
            chat(script.url, server_waits).ask(question)
        assert len(script.asked) == 1


def test_interest_l_2_replaced_a_text_is_embedded_once_by_each_model_and_a_question_paid_once(
    embedder: Embedder, model: Model
) -> None:
    model.answers["interest_extract"] = extracted("tea")
    run("s1")
    with connection() as conn:
        for table in ("interest_points", "operations", "interest_evidence"):
            conn.execute(f"DELETE FROM {table}")  # type: ignore[arg-type]
    before, asked = list(embedder.asked), list(model.asked)
    run("s1")
    assert names() == {"tea": 1}
    assert embedder.asked == before
    assert model.asked == asked
    embedder.model = "another"
    with connection() as conn:
        conn.execute("DELETE FROM operations")
        conn.execute("UPDATE interest_points SET embedding = NULL, embedding_model = NULL, embedding_dim = NULL")
    interest_tend.due()
    drive()
    assert embedder.asked == [*before, "tea\nabout tea"]


def test_copies_of_what_models_said_go_with_whatever_is_forgotten_of_their_bank(
    embedder: Embedder, model: Model
) -> None:
    model.answers["interest_extract"] = extracted("tea")
    run("s1")
    run("s2", day=1)
    run("s1", agent="forge")
    assert embedder.asked
    accepted = producers.forget(producers.Namespace.of("atlas", "s1"))
    drive(accepted.operation_id)
    left = fetch_all(
        """SELECT b.agent, (SELECT count(*) FROM interest_answers AS a WHERE a.bank_id = b.id) > 0,
                  (SELECT count(*) FROM interest_vectors AS v WHERE v.bank_id = b.id) > 0 FROM banks AS b ORDER BY 1"""
    )
    assert left == [("atlas", False, False), ("forge", True, True)]


def test_interest_st_1_replaced_a_contradiction_is_one_edge_found_from_both_ends(embedder: Embedder) -> None:
    run("s1", "I'm vegetarian.")
    run("s2", "I eat fish again.", day=1)
    assert embedder.model == "test"
    [(source, target)] = fetch_all("SELECT source_id, target_id FROM interest_edges WHERE kind = 'contradicts'")
    assert {source, target} == {point("vegetarian"), point("eat fish again")}
    assert source < target
    [told] = produce_interest.contradictions(ATLAS)
    assert {told.left.interest.id, told.right.interest.id} == {source, target}


def test_interest_st_2_replaced_the_log_is_read_page_by_page_and_nothing_falls_out_of_it(memory: Storage) -> None:
    run("s1", *(f"I love topic{n}x." for n in range(5)))
    run("s2", "I love topic4x.", day=1)
    every = memory.interest.log(ATLAS)
    assert [one.action for one in every] == ["update", *["create"] * 5]
    assert memory.interest.log(ATLAS, limit=2, offset=1) == every[1:3]
    assert memory.interest.log(FORGE) == []
    assert [one.action for one in memory.interest.log(ATLAS, point=point("topic4x"))] == ["update", "create"]
    for wrong in ({"limit": 0}, {"offset": -1}):
        with pytest.raises(RejectedError):
            memory.interest.log(ATLAS, **wrong)


def test_interest_st_3_an_archived_point_is_followed_to_the_one_that_is_current(
    embedder: Embedder, model: Model
) -> None:
    archive = {"decisions": [{"point": "n1", "action": "archive", "target": "h1"}]}
    embedder.own = {"lives in": [1, 0]}
    for n, city in enumerate(("Kiel", "Bergen", "Oslo")):
        model.answers |= {"interest_extract": extracted(f"lives in {city}"), "interest_v1_2": archive}
        run(f"s{n}", f"Hello from {city}.", day=n)
    assert names() == {"lives in Oslo": 1}
    assert [i.interest.name for i in produce_interest.recall_interests(ATLAS, "Kiel").items] == ["lives in Oslo"]
    edges = fetch_all("SELECT source_id, target_id FROM interest_edges WHERE kind = 'sequel' ORDER BY created_at")
    assert edges == [
        (point("lives in Kiel"), point("lives in Bergen")),
        (point("lives in Bergen"), point("lives in Oslo")),
    ]


def test_interest_r_1_and_r_2_replaced_only_what_is_like_the_query_is_recalled_and_at_once(embedder: Embedder) -> None:
    embedder.own = {"tea": [0.9, 0.436], "anvils": [0.1, 0.995], "beverage": [1, 0]}
    run("s1", "I love tea.", "I love anvils.")
    assert [i.interest.name for i in produce_interest.recall_interests(ATLAS, "beverage").items] == ["tea"]
    # No copy of an answer: what a run wrote is recalled by the next call.
    embedder.own["cocoa"] = [0.9, -0.436]
    run("s2", "I love cocoa.", day=1)
    found = [i.interest.name for i in produce_interest.recall_interests(ATLAS, "beverage").items]
    assert sorted(found) == ["cocoa", "tea"]


def test_interest_r_3_a_span_of_time_leaves_out_what_was_said_before_and_after(memory: Storage) -> None:
    run("s1", "I love green tea.")
    run("s2", "I love black tea.", day=1)
    run("s3", "I love green tea.", day=4)
    at = {day: session("x", "x", day=day)[0].time for day in (0, 1, 4)}
    hour = timedelta(hours=1)

    def recalled(span: Span, now: int = 4) -> set[str]:
        items = memory.interest.recall(ATLAS, "tea", span=span, now=at[now] + hour).items  # type: ignore[operator]
        return {item.interest.name for item in items}

    assert recalled(Span()) == {"green tea", "black tea"}
    assert recalled(Span(after=at[1])) == {"green tea", "black tea"}
    assert recalled(Span(after=at[1], before=at[4])) == {"black tea"}
    assert recalled(Span(before=at[1])) == {"green tea"}
    assert recalled(Span(days=1)) == {"green tea"}
    assert recalled(Span(days=1), now=1) == {"green tea", "black tea"}
    shown = produce_interest.interest_context(ATLAS, "tea", span=Span(before=at[1]))
    assert "green tea" in shown.text
    assert "black tea" not in shown.text
    assert "message " in shown.text
    assert produce_interest.interest_context(ATLAS, "tea", budget=10).text == ""


def test_interest_p_1_one_candidate_becomes_one_point_with_its_evidence(embedder: Embedder, model: Model) -> None:
    model.answers["interest_extract"] = extracted("tea", ttl_days=30, subjective=True)
    operation_id = run("s1")
    assert fetch_all("SELECT name, ttl_days, subjective, status, seen_count FROM interest_points") == [
        ("tea", 30, True, "active", 1)
    ]
    assert fetch_all("SELECT count(*) FROM interest_evidence") == [(1,)]
    result = producers.operation(operation_id).result
    assert result is not None
    assert (result["created"], result["archived"], result["contradictions"]) == (1, 0, 0)
    assert embedder.asked.count("tea\nabout tea") == 1


def test_interest_x_11_the_same_session_once_more_changes_nothing(embedder: Embedder, model: Model) -> None:
    model.answers["interest_extract"] = extracted("tea", "sea kayaking")
    run("s1")

    def everything() -> list[Any]:
        return [
            fetch_all(f"SELECT to_jsonb(t) FROM {name} AS t ORDER BY to_jsonb(t)::text")
            for name in ("interest_points", "interest_evidence", "interest_edges", "interest_log")
        ]

    before = everything()
    with connection() as conn:
        conn.execute("DELETE FROM operations")
    run("s1")
    assert everything() == before
    assert "interest_v1_2" not in model.asked
    assert embedder.dimension == 8


def test_words_of_a_model_for_a_stored_point_that_nothing_joins_are_written_and_can_be_taken_back(
    embedder: Embedder, model: Model
) -> None:
    embedder.own = {"kelp": [1, 0], "seaweed": [0.9, 0.1]}
    model.answers["interest_extract"] = extracted("kelp")
    run("s1")
    update = {"target": "h1", "topic": "kelp forests", "reason": "clearer"}
    model.answers["interest_extract"] = extracted("seaweed")
    model.answers["interest_v1_2"] = {"decisions": [{"point": "n1", "action": "keep", "updates": [update]}]}
    run("s2", "More.", day=1)
    assert names() == {"kelp forests": 1, "seaweed": 1}
    [entry] = [one for one in produce_interest.storage.open().interest.log(ATLAS) if one.action == "update"]
    assert produce_interest.undo_change(ATLAS, entry.id).made is None
    assert names() == {"kelp": 1, "seaweed": 1}


@pytest.fixture
def merged(embedder: Embedder, model: Model) -> int:
    """Two sessions of which a model made one point; returns the entry of the log."""
    embedder.own = {"kelp": [1, 0], "dulse": [0.9, 0.1]}
    model.answers["interest_extract"] = extracted("kelp")
    run("s1")
    model.answers["interest_extract"] = extracted("dulse")
    decided = {"decisions": [{"point": "n1", "action": "merge", "target": "h1", "topic": "seaweeds", "reason": "both"}]}
    model.answers["interest_v1_2"] = decided
    run("s2", "More.", day=1)
    assert names() == {"seaweeds": 2}
    [entry] = [one for one in produce_interest.storage.open().interest.log(ATLAS) if one.undoable]
    return entry.id


def test_a_merge_is_taken_back_with_all_that_was_said_and_once_only(merged: int, embedder: Embedder) -> None:
    with pytest.raises(RejectedError, match="not known"):
        produce_interest.undo_change(FORGE, merged)
    done = produce_interest.undo_change(ATLAS, merged)
    assert names() == {"kelp": 1, "seaweeds": 1}
    assert (done.point, done.made) == (point("kelp"), point("seaweeds"))
    rows = fetch_all(
        """SELECT p.name, n.session, p.first_seen_at = e.event_time, p.last_seen_at = e.event_time
           FROM interest_evidence AS e JOIN interest_points AS p ON p.id = e.point_id
           JOIN namespaces AS n ON n.id = e.namespace_id ORDER BY 1"""
    )
    assert rows == [("kelp", "s1", True, True), ("seaweeds", "s2", True, True)]
    for entry in (merged, 999_999):
        with pytest.raises(RejectedError):
            produce_interest.undo_change(ATLAS, entry)
    assert interest_tend.due() == {"banks": 1}
    assert interest_tend.due() == {"banks": 0}
    drive()
    assert fetch_all("SELECT count(*) FROM interest_points WHERE embedding IS NULL") == [(0,)]
    assert fetch_all("SELECT kind FROM interest_edges") in ([], [("related",)])
    assert embedder.asked


def test_an_archived_point_comes_back_without_its_successor(embedder: Embedder, model: Model) -> None:
    embedder.own = {"lives in": [1, 0]}
    model.answers["interest_extract"] = extracted("lives in Kiel")
    run("s1")
    archive = {"decisions": [{"point": "n1", "action": "archive", "target": "h1"}]}
    model.answers |= {"interest_extract": extracted("lives in Oslo"), "interest_v1_2": archive}
    run("s2", "More.", day=1)
    assert names() == {"lives in Oslo": 1}
    [entry] = [one for one in produce_interest.storage.open().interest.log(ATLAS) if one.action == "archive"]
    assert entry.undoable
    produce_interest.undo_change(ATLAS, entry.id)
    assert names() == {"lives in Oslo": 1, "lives in Kiel": 1}
    assert fetch_all("SELECT count(*) FROM interest_edges WHERE kind = 'sequel'") == [(0,)]
    with pytest.raises(RejectedError):
        produce_interest.undo_change(ATLAS, entry.id)
    interest_tend.due()
    drive()
    assert fetch_all("SELECT kind, weight FROM interest_edges") == [("related", 1.0)]


def test_a_contradiction_is_settled_and_opened_again(embedder: Embedder) -> None:
    run("s1", "I'm vegetarian.")
    run("s2", "I eat fish again.", day=1)
    assert embedder.model == "test"
    [told] = produce_interest.contradictions(ATLAS)
    older = "left" if told.left.interest.name == "vegetarian" else "right"
    with pytest.raises(RejectedError):
        produce_interest.resolve_contradiction(FORGE, told.id)
    with pytest.raises(RejectedError):
        produce_interest.resolve_contradiction(ATLAS, told.id, side="up")
    assert produce_interest.resolve_contradiction(ATLAS, told.id, side=older)
    assert not produce_interest.resolve_contradiction(ATLAS, told.id)
    assert produce_interest.contradictions(ATLAS) == []
    [now] = produce_interest.contradictions(ATLAS, resolved=True)
    assert now.current is not None
    assert (now.current.interest.name, now.because, now.status) == ("vegetarian", "decided by hand", "resolved")
    assert {one.name: one.contested for one in produce_interest.interests(ATLAS)} == {
        "vegetarian": False, "eat fish again": True,
    }  # fmt: skip
    # What is said again does not open it.
    run("s3", "I eat fish again.", day=2)
    assert produce_interest.contradictions(ATLAS) == []
    assert produce_interest.reopen_contradiction(ATLAS, told.id)
    assert not produce_interest.reopen_contradiction(ATLAS, told.id)
    [again] = produce_interest.contradictions(ATLAS)
    assert again.current is not None
    assert (again.current.interest.name, again.because) == ("eat fish again", "said later")


def test_what_could_not_be_judged_is_judged_when_the_judge_is_back(embedder: Embedder, model: Model) -> None:
    embedder.own = {"kelp": [1, 0], "Kelp": [1, 0], "dulse": [0.9, 0.1]}
    model.answers["interest_extract"] = extracted("kelp")
    run("s1")
    model.answers |= {"interest_extract": extracted("Kelp  forests", "dulse"), "interest_v1_2": RejectedError("no")}
    run("s2", "More.", day=1)
    assert {one.status.value for one in produce_interest.interests(ATLAS)} == {"active", "pending_review"}
    with connection() as conn:
        conn.execute("UPDATE interest_points SET updated_at = now() - interval '1 hour'")
    # Still away: nothing changes, and nothing is lost.
    assert interest_tend.due() == {"banks": 1}
    drive()
    assert len(names()) == 3
    with connection() as conn:
        conn.execute("UPDATE operations SET finished_at = now() - interval '1 hour'")

    def answer(question: Question[Any]) -> dict[str, Any]:
        merge = "Kelp" in question.user.split("h1")[0]
        action = {"action": "merge", "target": "h1"} if merge else {"action": "keep"}
        return {"decisions": [{"point": "n1", **action}]}

    model.answers["interest_v1_2"] = answer
    assert interest_tend.due() == {"banks": 1}
    drive()
    assert names() == {"kelp": 2, "dulse": 1}
    assert {one.status.value for one in produce_interest.interests(ATLAS)} == {"active"}
    assert [i.interest.name for i in produce_interest.recall_interests(ATLAS, "forests").items][:1] == ["kelp"]
    assert fetch_all("SELECT turn_of FROM interest_banks") == [(None,)]


@pytest.mark.parametrize("dimension", [8, 16])
def test_another_model_embeds_interests_again_in_batches_that_do_not_wait_for_each_other(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch, dimension: int
) -> None:
    monkeypatch.setattr(interest_tend, "_VECTORS_MAX", 2)
    embedder.own = {"kelp": [1, 0], "dulse": [0, 1], "moss": [0, 0, 1]}
    for number, name in enumerate(embedder.own):
        run(f"s{number}", f"I am interested in {name}.", day=number)
    stored = fetch_all("SELECT id, version FROM interest_points ORDER BY id")
    assert len(stored) == 3
    with connection() as conn:
        conn.execute("UPDATE interest_points SET placed_at = now()")
        conn.execute("UPDATE operations SET finished_at = now() - interval '1 hour'")
    assert interest_tend.due() == {"banks": 0}
    embedder.model, embedder.dimension, embedder.own = "fresh", dimension, {}
    stamps = "SELECT embedding_model, count(*) FROM interest_points GROUP BY 1 ORDER BY 1"
    for left in (1, 0):
        assert interest_tend.due() == {"banks": 1}
        drive()
        assert dict(fetch_all(stamps)).get("fresh") == 3 - left
    assert interest_tend.due() == {"banks": 0}
    assert fetch_all("SELECT id, version FROM interest_points ORDER BY id") == stored
    assert fetch_all("SELECT count(*) FROM interest_points WHERE placed_at IS NULL") == [(0,)]


def test_a_judge_that_always_says_yes_is_not_asked_about_what_is_far_away(embedder: Embedder, model: Model) -> None:
    embedder.own = {"tax law": [1, 0], "kelp": [0, 1]}
    model.answers["interest_extract"] = extracted("tax law")
    run("s1")
    told = fetch_all("SELECT id, name, status, version FROM interest_points")
    handles = re.compile(r"\b[hn]\d+\b")

    def yes(question: Question[Any]) -> dict[str, Any]:
        seen = sorted({*handles.findall(question.user), "h1"})
        pairs = [{"left": "n1", "right": h, "description": "yes"} for h in seen if h != "n1"]
        decided = [{"point": "n1", "action": "merge", "target": "h1"}]
        return {"decisions": decided, "contradictions": pairs}

    model.answers["interest_v1_2"] = yes
    model.answers["interest_extract"] = extracted("kelp")
    run("s2", "I never want to hear of tax law.", day=1)
    assert set(names()) == {"tax law", "kelp"}
    assert produce_interest.contradictions(ATLAS) == []
    assert told == fetch_all("SELECT id, name, status, version FROM interest_points WHERE name = 'tax law'")


def test_interests_grow_old_by_themselves_and_expire_where_a_time_was_set(embedder: Embedder, model: Model) -> None:
    model.answers["interest_extract"] = extracted("on holiday", ttl_days=30)
    run("s1")
    model.answers["interest_extract"] = extracted("tea")
    run("s2", "More.", day=1)
    assert embedder.model == "test"

    def after(days: int) -> dict[str, Any]:
        with connection() as conn:
            conn.execute(
                """UPDATE interest_points SET last_seen_at = now() - make_interval(days => %s),
                          first_seen_at = now() - make_interval(days => %s), look_at = now()""",
                (days, days),
            )
        return interest_tend.age()

    def levels() -> list[tuple[Any, ...]]:
        return fetch_all("SELECT name, freshness, status FROM interest_points ORDER BY name")

    assert after(10)["changed"] == 0
    assert after(40)["changed"] == 1
    assert levels() == [("on holiday", "aging", "active"), ("tea", "fresh", "active")]
    assert interest_tend.age()["changed"] == 0
    assert after(100)["changed"] == 2
    assert after(121) == {"changed": 0, "expired": 1, "copies": 0}
    assert levels() == [("on holiday", "stale", "archived"), ("tea", "aging", "active")]
    assert after(10_000)["expired"] == 0
    [entry] = [one for one in produce_interest.storage.open().interest.log(ATLAS) if one.action == "archive"]
    assert (entry.detail, entry.undoable) == ({"rule": "expired"}, True)
    produce_interest.undo_change(ATLAS, entry.id)
    assert after(10_000)["expired"] == 0
    assert "on holiday" in names()


def test_points_are_grouped_by_theme_in_the_background_and_a_new_one_finds_its_own(embedder: Embedder) -> None:
    embedder.own = {
        "kayak": [1],
        "paddl": [0.8, 0.6],
        "bread": [0, 0, 1],
        "dough": [0, 0, 0.8, 0.6],
        "tax": [0, 0, 0, 0, 1],
    }
    run("s1", "I love kayaks.", "I love wide paddles.", "I love bread.", "I love rye doughs.", "I love tax law.")
    assert produce_interest.storage.open().interest.themes(ATLAS) == []
    assert interest_tend.due() == {"banks": 1}
    drive()
    found = produce_interest.storage.open().interest.themes(ATLAS)
    assert {frozenset(one.names) for one in found} == {
        frozenset({"kayaks", "wide paddles"}),
        frozenset({"bread", "rye doughs"}),
    }
    assert {one.points for one in found} == {2}
    joined = "SELECT p.name FROM interest_points AS p JOIN interest_theme_points AS t ON t.point_id = p.id"
    assert "tax law" not in {name for (name,) in fetch_all(joined)}
    with connection() as conn:
        conn.execute("UPDATE operations SET finished_at = now() - interval '1 hour'")
    embedder.own["canoe"] = [0.8, -0.6]
    run("s2", "I love canoes.", day=1)
    assert interest_tend.due() == {"banks": 1}
    drive()
    assert sorted(one.points for one in produce_interest.storage.open().interest.themes(ATLAS)) == [2, 3]
    assert produce_interest.storage.open().interest.themes(FORGE) == []
    accepted = producers.forget(producers.Namespace.of("atlas", "s1"))
    drive(accepted.operation_id)
    assert fetch_all("SELECT count(*) FROM interest_themes") == [(0,)]


def test_a_run_says_what_its_models_cost_and_a_question_asked_before_costs_nothing(
    embedder: Embedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    answer = json.dumps(extracted("tea"))
    with model_server(said(answer)) as script:
        monkeypatch.setattr(
            factory, "chat_model", lambda _: HttpChatModel(ModelServer(script.url, timeout=5), "test", observer=collect)
        )
        first = producers.operation(run("s1", *(f"Note {n}." for n in range(7)))).result
        assert first is not None
        assert (first["model_calls"], first["input_tokens"], first["output_tokens"]) == (2, 22, 14)
        with connection() as conn:
            conn.execute("DELETE FROM operations")
        again = producers.operation(run("s1", *(f"Note {n}." for n in range(7)))).result
        assert again is not None
        assert "model_calls" not in again
        assert len(script.asked) == 2
    assert embedder.asked.count("tea\nabout tea") == 1
