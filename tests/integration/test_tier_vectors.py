from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hash_embedder import HashEmbedder
from inprocess import _READY, STAGES, drive, run_pass
from numpy.typing import NDArray
from tiering import LONG

from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.answers import Recall
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord
from isotherm.storage.models import factory
from isotherm.storage.opened import Storage
from isotherm.storage.postgres import tier_candidates, tier_vectors, tier_write
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import produce_records, producers, ticks
from isotherm.tasks.commands.memory import recall_json, show_recall

NS, OTHER = Namespace.of("atlas", "s1"), Namespace.of("atlas", "s2")
T0 = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
TO_COLD = Policy(hot_capacity=0, warm_capacity=0, cooldown=None)


class Meaning:
    """Texts that name a subject stand near everything of that subject, whatever the words; the others near nothing."""

    SUBJECTS = ({"paddle", "kayak", "canoe"}, {"invoice", "bill", "billing"}, {"kelp", "algae"})

    def __init__(self, model: str = "meaning", dimension: int = 384) -> None:
        self.model, self.dimension = model, dimension
        self._noise = HashEmbedder(dimension)
        self.asked: list[list[str]] = []
        self.fault: Exception | None = None

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked.append(list(texts))
        if self.fault is not None:
            raise self.fault
        found = self._noise.embed(texts) * 0.3
        for row, text in enumerate(texts):
            for axis, subject in enumerate(self.SUBJECTS):
                found[row, axis] += 3.0 * bool(subject & set(text.lower().split()))
        return found / np.linalg.norm(found, axis=1, keepdims=True) if texts else found


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def model(memory: Storage) -> Iterator[Meaning]:
    """An embedder in the place of the settings' own, which is none."""
    own = Meaning()
    use(memory, own)
    yield own
    factory._made.forget()


def use(memory: Storage, own: Any) -> None:
    factory.use_embedder(memory.settings, own)


def put(*texts: str, namespace: Namespace = NS, first: int = 0, **more: Any) -> producers.Accepted:
    records = [NewRecord(f"r{n:03}", text, T0 + timedelta(minutes=n), **more) for n, text in enumerate(texts, first)]
    return producers.remember_records(namespace, records)


def states() -> dict[str, tuple[str, str | None, int | None]]:
    rows = fetch_all(
        """SELECT r.id, r.vector_state, v.model, v.dim FROM tier_records AS r
           LEFT JOIN tier_vectors AS v ON v.record_key = r.key ORDER BY r.id"""
    )
    return {i: (state, stamp, dimension) for i, state, stamp, dimension in rows}


def ids(answer: Recall) -> list[str]:
    return [item.record.id for item in answer.items]


def best(answer: Recall) -> Any:
    return max(answer.items, key=lambda item: item.score.semantic)


def steps_of(accepted: producers.Accepted) -> list[tuple[str, str]]:
    sql = "SELECT stage, state FROM operation_steps WHERE operation_id = %(id)s ORDER BY id"
    return [(stage, state) for stage, state in fetch_all(sql, {"id": accepted.operation_id})]


NOISE = [f"note {n} of nothing much" for n in range(60)]


def test_without_an_embedder_nothing_changes(memory: Storage) -> None:
    assert memory
    accepted = put("kelp")
    assert drive() == [stages.INDEX]
    assert steps_of(accepted) == [(stages.INDEX, "done")]
    assert states() == {"r000": ("none", None, None)}
    answer = producers.recall(NS, "kelp")
    assert (answer.items[0].score.cosine, answer.degraded) == (None, ())


def test_remembering_writes_a_second_step_with_a_message_of_its_own(model: Meaning) -> None:
    accepted = put("kelp grows", "moss")
    assert states() == {"r000": ("pending", None, None), "r001": ("pending", None, None)}
    rows = fetch_all(
        """SELECT s.stage, s.queue, s.input, o.payload FROM operation_steps AS s JOIN outbox AS o ON o.step_id = s.id
           ORDER BY s.id"""
    )
    keys = [key for (key,) in fetch_all("SELECT key FROM tier_records ORDER BY key")]
    assert [(r[0], r[1], r[2], r[3]["stage"]) for r in rows] == [
        (stages.INDEX, "db", {"keys": keys}, stages.INDEX),
        (stages.TIER_EMBED, "llm", {"keys": keys}, stages.TIER_EMBED),
    ]
    assert drive() == [stages.INDEX, stages.TIER_EMBED]
    assert steps_of(accepted) == [(stages.INDEX, "done"), (stages.TIER_EMBED, "done")]
    assert states() == {"r000": ("done", "meaning", 384), "r001": ("done", "meaning", 384)}
    assert model.asked == [["kelp grows", "moss"]]
    done = producers.operation(accepted.operation_id)
    assert (done.state, done.result) == ("done", {"records": 2, "indexed": 2})


def test_both_messages_are_given_to_the_publisher(model: Meaning, memory: Storage) -> None:
    assert model
    [place] = produce_records._placed([(NS, NewRecord("r", "kelp", T0))], memory.settings)
    stored = memory.tier.remember(produce_records._operation([place], NS, None, tier_write.KIND), [place])
    assert [m.payload["stage"] for m in stored.messages] == [stages.INDEX, stages.TIER_EMBED]


def test_record_is_found_by_meaning_in_other_words(model: Meaning) -> None:
    put("we went out by kayak", *NOISE)
    drive()
    for scope in (NS, Bank(None, "atlas")):
        answer = producers.recall(scope, "paddle", budget=RecallBudget(total=1))
        assert ids(answer) == ["r000"]
        score = answer.items[0].score
        assert score.overlap == 0
        assert score.cosine is not None
        assert score.semantic == score.cosine > 0.4
        assert answer.items[0].legs == {"vector"}
    assert model.asked[-1] == ["paddle"]


@pytest.mark.parametrize("exact", [tier_candidates.EXACT, 10])
def test_index_and_whole_comparison_find_the_same_nearest(
    model: Meaning, monkeypatch: pytest.MonkeyPatch, exact: int
) -> None:
    assert model
    monkeypatch.setattr(tier_candidates, "EXACT", exact)
    put(*NOISE, "we went out by kayak", "the canoe leaks", "an invoice came")
    put("a kayak of another session", namespace=OTHER, first=90)
    drive()
    found = producers.recall(NS, "paddle", budget=RecallBudget(total=2))
    assert ids(found) == ["r060", "r061"]
    assert set(ids(producers.recall(Bank(None, "atlas"), "paddle", budget=RecallBudget(total=3)))) == {
        "r060", "r061", "r090",
    }  # fmt: skip


def test_cosine_reaches_every_candidate_whichever_leg_proposed_it(model: Meaning) -> None:
    assert model
    put("kelp and kayak", *["kayak " + note for note in NOISE])
    drive()
    answer = producers.recall(NS, "kelp", budget=RecallBudget(total=50))
    assert all(item.score.cosine is not None for item in answer.items)
    by_legs = {legs for item in answer.items for legs in item.legs}
    assert by_legs == {"recent", "lexical", "vector"}


def test_record_without_a_vector_is_found_by_its_words(model: Meaning) -> None:
    put("kelp grows")
    [item] = producers.recall(NS, "kelp grows").items
    assert item.score.cosine is None
    assert item.score.overlap > 0
    assert model.asked == [["kelp grows"]]


def test_changed_text_loses_its_vector_at_once_and_gets_a_new_one(model: Meaning) -> None:
    put("by kayak", "the moss")
    drive()
    changed = put("an invoice came")
    assert states()["r000"] == ("pending", None, None)
    assert states()["r001"][0] == "done"
    [old] = [item for item in producers.recall(NS, "bill").items if item.record.id == "r000"]
    assert (old.score.cosine, old.legs) == (None, {"recent", "unindexed"})
    drive()
    assert steps_of(changed)[1] == (stages.TIER_EMBED, "done")
    answer = best(producers.recall(NS, "bill"))
    assert (answer.record.id, answer.score.cosine > 0.8) == ("r000", True)
    assert [texts for texts in model.asked if "the moss" in texts] == [["by kayak", "the moss"]]


def test_changed_metadata_embeds_nothing_again_and_a_changed_search_text_does(model: Meaning) -> None:
    put("by kayak")
    drive()
    accepted = put("by kayak", metadata={"color": "red"})
    assert drive() == [stages.INDEX]
    assert steps_of(accepted) == [(stages.INDEX, "done")]
    assert states()["r000"][0] == "done"
    put("by kayak", metadata={"searchable": "an invoice"})
    assert states()["r000"][0] == "pending"
    drive()
    assert model.asked == [["by kayak"], ["an invoice"]]


def test_same_text_again_asks_for_nothing(model: Meaning) -> None:
    put("by kayak")
    drive()
    again = put("by kayak")
    drive()
    assert steps_of(again) == [(stages.INDEX, "done")]
    assert model.asked == [["by kayak"]]


def test_text_that_changed_while_it_was_embedded_keeps_no_old_vector(model: Meaning) -> None:
    put("by kayak")
    with connection() as conn:
        found = tier_vectors.unembedded(conn, [key for (key,) in fetch_all("SELECT key FROM tier_records")])
    put("an invoice came")
    with connection() as conn:
        assert tier_vectors.write(conn, "meaning", found, model.embed(["by kayak"])) == 0
        assert tier_vectors.mark_failed(conn, found) == 0
    assert states()["r000"][0] == "pending"
    drive()
    assert states()["r000"][0] == "done"


def test_vector_that_is_left_over_from_an_older_text_is_not_compared(model: Meaning) -> None:
    """It can be written in the same moment as the new text, whose statement then does not see it."""
    put("by kayak", *NOISE)
    drive()
    with connection() as conn:
        conn.execute("UPDATE tier_records SET vector_state = 'pending' WHERE id = 'r000'")
    for exact in (tier_candidates.EXACT, 10):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tier_candidates, "EXACT", exact)
            found = [item for item in producers.recall(NS, "paddle kayak").items if item.record.id == "r000"]
        assert [(item.score.cosine, item.legs & {"vector"}) for item in found] == [(None, frozenset())]
    with connection() as conn:
        keys = [key for (key,) in fetch_all("SELECT key FROM tier_records WHERE id = 'r000'")]
        found_again = tier_vectors.unembedded(conn, keys)
        assert tier_vectors.write(conn, "another", found_again, model.embed(["by kayak"])) == 1
    assert states()["r000"] == ("done", "another", 384)


def test_record_that_is_gone_takes_its_vector_along(model: Meaning) -> None:
    assert model
    put("by kayak", "the moss")
    drive()
    with connection() as conn:
        conn.execute("DELETE FROM tier_records WHERE id = 'r000'")
        assert conn.execute("SELECT count(*) FROM tier_vectors").fetchall() == [(1,)]
        conn.rollback()  # its words would stay behind


def test_accesses_and_moves_between_hot_and_warm_leave_the_vectors_alone(model: Meaning) -> None:
    assert model
    put("by kayak", "the canoe leaks")
    drive()
    before = fetch_all("SELECT record_key, ctid::text, xmin::text FROM tier_vectors ORDER BY record_key")
    producers.recall(NS, "paddle")
    ticks.touch()
    run_pass(NS, TO_COLD)
    assert fetch_all("SELECT record_key, ctid::text, xmin::text FROM tier_vectors ORDER BY record_key") == before
    assert {tier for (tier,) in fetch_all("SELECT tier FROM tier_records")} == {2}


def test_record_that_went_cold_while_it_was_embedded_gets_its_vector(model: Meaning) -> None:
    put("kayak " + LONG)
    drive()
    with connection() as conn:
        conn.execute("DELETE FROM tier_vectors")
        conn.execute("UPDATE tier_records SET vector_state = 'pending'")
        found = tier_vectors.unembedded(conn, [key for (key,) in fetch_all("SELECT key FROM tier_records")])
    for _ in range(2):
        run_pass(NS, TO_COLD)
    with connection() as conn:
        assert tier_vectors.write(conn, "meaning", found, model.embed([r.text for r in found])) == 1


def test_vector_of_the_whole_text_stays_through_cold_and_back(model: Meaning) -> None:
    put("kayak " + LONG)
    drive()
    before = fetch_all("SELECT vector::text FROM tier_vectors")
    for _ in range(2):
        run_pass(NS, TO_COLD)
    shrunk = "SELECT tier, vector IS NULL, kept IS NULL, length(bits) = dim FROM tier_records JOIN tier_vectors ON record_key = key"
    assert fetch_all(shrunk) == [(1, True, True, True)]
    assert best(producers.recall(NS, "paddle")).score.cosine > 0.5
    accepted = producers.restore(NS, ["r000"])
    drive(accepted.operation_id)
    assert fetch_all("SELECT tier, vector::text, bits FROM tier_records JOIN tier_vectors ON record_key = key") == [
        (2, *before[0], None)
    ]
    assert len([texts for texts in model.asked if len(texts[0]) > 100]) == 2


def test_restored_record_is_found_by_its_signs_until_it_is_embedded_again(model: Meaning) -> None:
    put("kayak " + LONG)
    drive()
    for _ in range(2):
        run_pass(NS, TO_COLD)
    producers.restore(NS, ["r000"])
    (step_id, operation, trace, stage) = fetch_all(_READY, {"operation": None})[0]
    STAGES[stage]({"step_id": step_id, "operation_id": str(operation), "trace_id": str(trace)})
    assert fetch_all(
        "SELECT tier, vector_state, bits IS NULL FROM tier_records JOIN tier_vectors ON record_key = key"
    ) == [(2, "again", False)]
    assert best(producers.recall(NS, "paddle")).score.cosine > 0.5
    drive()
    assert fetch_all("SELECT vector_state, bits IS NULL FROM tier_records JOIN tier_vectors ON record_key = key") == [
        ("done", True)
    ]
    assert model.asked


def test_vector_of_another_model_comes_back_from_half_precision(model: Meaning) -> None:
    put("kayak " + LONG)
    drive()
    with connection() as conn:
        conn.execute("UPDATE tier_vectors SET model = 'of-somebody-else'")
    before = fetch_all("SELECT vector::text FROM tier_vectors")
    for _ in range(2):
        run_pass(NS, TO_COLD)
    assert fetch_all("SELECT vector IS NULL, kept::text FROM tier_vectors") == [(True, *before[0])]
    asked = len(model.asked)
    drive(producers.restore(NS, ["r000"]).operation_id)
    assert fetch_all("SELECT vector::text, bits IS NULL, kept IS NULL FROM tier_vectors") == [(*before[0], True, True)]
    assert len(model.asked) == asked


def test_cold_record_is_embedded_by_its_summary(memory: Storage) -> None:
    put("kayak " + LONG)
    drive()
    for _ in range(2):
        run_pass(NS, TO_COLD)
    with connection() as conn:
        [found] = tier_vectors.unembedded(conn, [key for (key,) in fetch_all("SELECT key FROM tier_records")])
    assert [found.text] == [summary for (summary,) in fetch_all("SELECT summary FROM tier_records")]
    assert memory


def test_vectors_of_another_model_or_length_are_not_compared(model: Meaning, memory: Storage) -> None:
    assert model
    put("by kayak")
    drive()
    for other in (Meaning("another"), Meaning("meaning", 8), Meaning("another", 8)):
        use(memory, other)
        [item] = producers.recall(NS, "paddle").items
        assert item.score.cosine is None, other
        assert "vector" not in item.legs
    put("the canoe leaks", first=1)
    drive()
    [old, new] = producers.recall(NS, "paddle").items
    assert (old.score.cosine, new.score.cosine > 0.5) == (None, True)
    assert states() == {"r000": ("done", "meaning", 384), "r001": ("done", "another", 8)}


@pytest.mark.parametrize("fault", [TransientError("busy"), RejectedError("no"), ValueError("a bug")])
def test_embedder_that_fails_degrades_a_recall(model: Meaning, fault: Exception) -> None:
    put("kelp grows")
    drive()
    model.fault = fault
    answer = producers.recall(NS, "kelp")
    assert (ids(answer), answer.degraded) == (["r000"], ("vectors",))
    assert answer.items[0].score.cosine is None
    assert answer.items[0].score.overlap > 0


def test_blank_query_asks_no_model(model: Meaning) -> None:
    put("kelp")
    for query in ("", "  ", "?!"):
        assert producers.recall(NS, query).degraded == ()
    assert model.asked == []


def test_embedder_that_is_busy_postpones_its_step_and_is_asked_again(model: Meaning) -> None:
    model.fault = TransientError("the model server answered 503")
    accepted = put("by kayak")
    assert drive_once(stages.INDEX) == "done"
    assert drive_once(stages.TIER_EMBED) == "pending"
    [(attempts, waits, error)] = fetch_all(
        "SELECT attempts, waits, last_error FROM operation_steps WHERE stage = 'tier.embed'"
    )
    assert (attempts, waits, error) == (0, 1, "the model server answered 503")
    assert states()["r000"][0] == "pending"
    assert ids(producers.recall(NS, "kayak")) == ["r000"]
    model.fault = None
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now()")
    assert drive_once(stages.TIER_EMBED) == "done"
    assert producers.operation(accepted.operation_id).state == "done"
    assert states()["r000"][0] == "done"


def test_embedder_that_refuses_fails_its_step_and_the_records_say_so(model: Meaning) -> None:
    model.fault = RejectedError("the model server answered 400")
    accepted = put("by kayak")
    drive()
    ended = producers.operation(accepted.operation_id)
    assert (ended.state, ended.error) == ("partial", "the model server answered 400")
    assert states()["r000"] == ("failed", None, None)
    model.fault = None
    producers.retry(accepted.operation_id)
    drive()
    assert producers.operation(accepted.operation_id).state == "done"
    assert states()["r000"][0] == "done"


def test_worker_without_an_embedder_says_so(model: Meaning, memory: Storage) -> None:
    assert model
    accepted = put("by kayak")
    use(memory, None)
    drive()
    assert "no embedder" in str(producers.operation(accepted.operation_id).error)
    assert states()["r000"][0] == "failed"


def test_second_delivery_embeds_nothing(model: Meaning) -> None:
    put("by kayak")
    drive()
    sql = "SELECT s.id, s.operation_id, o.trace_id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id"
    [(step, operation, trace)] = fetch_all(sql + " WHERE s.stage = 'tier.embed'")
    assert run_stage(stages.TIER_EMBED, step, operation, trace) == {"records": 1, "embedded": 1}
    assert model.asked == [["by kayak"]]


def test_access_counts_for_what_is_related_and_not_for_chance_likeness(model: Meaning) -> None:
    assert model
    put("by kayak", "note of nothing", "invoice")
    drive()
    producers.recall(NS, "paddle")
    ticks.touch()
    assert dict(fetch_all("SELECT id, access_count FROM tier_records")) == {"r000": 1, "r001": 0, "r002": 0}


def test_without_an_index_the_newest_are_compared_and_the_rest_is_said(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(memory, Meaning("short", 8))
    put("by kayak", *NOISE)
    drive()
    assert ids(producers.recall(NS, "paddle", budget=RecallBudget(total=1))) == ["r000"]
    assert not producers.recall(NS, "paddle").truncated
    monkeypatch.setattr(tier_vectors, "COMPARED", 30)
    answer = producers.recall(NS, "paddle", budget=RecallBudget(total=1))
    assert answer.truncated
    factory._made.forget()


def run_stage(stage: str, step: int, operation: Any, trace: Any) -> dict[str, Any]:
    found: dict[str, Any] = STAGES[stage]({"step_id": step, "operation_id": str(operation), "trace_id": str(trace)})
    return found


def drive_once(stage: str) -> str:
    """Run a stage's pending step once; returns the state of the step."""
    [(step, operation, trace)] = fetch_all(
        """SELECT s.id, s.operation_id, o.trace_id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
           WHERE s.stage = %(stage)s AND s.state = 'pending'""",
        {"stage": stage},
    )
    run_stage(stage, step, operation, trace)
    [(state,)] = fetch_all("SELECT state FROM operation_steps WHERE id = %(id)s", {"id": step})
    return str(state)


def test_command_line_shows_both_likenesses_and_which_part_is_away(
    model: Meaning, capsys: pytest.CaptureFixture[str]
) -> None:
    put("by kayak")
    drive()
    answer = producers.recall(NS, "paddle")
    score = recall_json(answer)["records"][0]["score"]
    assert (score["words"], score["cosine"]) == (0.0, answer.items[0].score.cosine)
    show_recall("paddle", answer)
    assert f"words 0.00, meaning {answer.items[0].score.cosine:.2f}, recency" in capsys.readouterr().out
    model.fault = TransientError("busy")
    show_recall("kayak", producers.recall(NS, "kayak"))
    said = capsys.readouterr()
    assert "meaning" not in said.out
    assert "without vectors: the embedder did not answer" in said.err
