from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from inprocess import drive, run_pass
from model_server import model_server, said

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.messages import ChatMessage, ToolCall, message_record
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.ranking import Touch
from isotherm.pipeline.tier.records import NewRecord, Reason, Tier
from isotherm.pipeline.tier.weights import RecallWeights
from isotherm.storage.postgres import tier_candidates, tier_recall
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers, ticks

if TYPE_CHECKING:
    from isotherm.pipeline.tier.answers import Recall
    from isotherm.storage.opened import Storage

NS = Namespace.of("atlas", "s1")
T0 = datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)
TO_WARM = Policy(hot_capacity=0, cooldown=None)
TO_COLD = Policy(hot_capacity=0, warm_capacity=0, cooldown=None)
WORDS = ["kelp", "moss", "fern", "pine", "reed", "sedge"]


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def store(contents: list[str], tier: Tier = Tier.HOT, **more: Any) -> None:
    records = [
        NewRecord(f"{tier.value}{n:03}", content, T0 + timedelta(minutes=n), tier=tier, **more)
        for n, content in enumerate(contents)
    ]
    producers.remember_records(NS, records)


def ids(answer: Recall) -> list[str]:
    return [item.record.id for item in answer.items]


def only(**shares: int) -> RecallBudget:
    return RecallBudget(**shares)


def test_unindexed_records_are_found_by_their_words_before_any_worker_ran(memory: Storage) -> None:
    assert memory
    store(["kelp grows", *["noise"] * 50])
    answer = producers.recall(NS, "kelp", budget=only(total=1))
    assert ids(answer) == ["hot000"]
    assert answer.items[0].score.overlap > 0
    assert "unindexed" in answer.items[0].legs


def test_a_question_takes_three_statements_however_much_it_finds(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory
    store([f"kelp grows {n}" for n in range(60)])
    drive()
    producers.recall(NS, "kelp", budget=only(total=1))  # the connection's mode is set
    asked: list[object] = []
    execute = psycopg.Connection.execute

    def counting(conn: Any, query: Any, *given: Any, **more: Any) -> Any:
        asked.append(query)
        return execute(conn, query, *given, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", counting)
    assert len(ids(producers.recall(NS, "kelp", budget=only(total=40)))) == 40
    assert len(asked) == 3


def test_a_backlog_of_unindexed_records_is_said_to_hide_some(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory
    store(["kelp"] * 5)
    assert not producers.recall(NS, "kelp").truncated
    monkeypatch.setattr(tier_candidates, "UNINDEXED", 3)
    assert producers.recall(NS, "kelp").truncated
    drive()
    assert not producers.recall(NS, "kelp").truncated


def test_words_are_read_alike_by_session_and_by_bank(memory: Storage) -> None:
    assert memory
    store([f"{WORDS[n % 6]} {WORDS[n % 5]} note {n}" for n in range(240)])
    drive()
    scopes: tuple[Any, ...] = ((NS, None), (Bank(None, NS.agent), None), (Bank(None, NS.agent), [NS.session]))
    for query in ("kelp", "moss fern", "pine note 17", "reed sedge kelp 239", "nothing of it"):
        answers = [
            [(i.record.id, i.score.overlap) for i in producers.recall(scope, query, sessions=listed, touch=False).items]
            for scope, listed in scopes
        ]
        assert answers[0] == answers[1] == answers[2], query


def test_large_session_of_the_same_bank_takes_no_place(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Words are cut at a limit: within the session that was asked, not within its bank."""
    assert memory
    monkeypatch.setattr(tier_candidates, "PER_WORD", 5)
    store([*["kelp"] * 3, *["moss"] * 100])
    other = Namespace.of(NS.agent, "a later and larger one")
    at = datetime(2026, 7, 1, tzinfo=UTC)
    producers.remember_records(other, [NewRecord(f"o{n}", "kelp", at, "user") for n in range(50)])
    drive()
    assert ids(producers.recall(NS, "kelp", budget=only(total=3))) == ["hot000", "hot001", "hot002"]
    found = producers.recall(Bank(None, NS.agent), "kelp", sessions=[NS.session or ""], budget=only(total=3))
    assert ids(found) == ["hot000", "hot001", "hot002"]


def test_rare_word_is_found_by_postings_however_frequent_the_others_are(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert memory
    monkeypatch.setattr(tier_candidates, "PER_WORD", 5)
    store(["axolotl kelp", *["kelp moss"] * 120])
    drive()
    answer = producers.recall(NS, "axolotl kelp", budget=only(total=1))
    assert ids(answer) == ["hot000"]
    assert answer.items[0].legs == {"lexical"}


def test_level_switched_off_is_not_searched_and_uses_up_no_quota(memory: Storage) -> None:
    assert memory
    store(["kelp"], Tier.WARM)
    store(["kelp"] * 150)
    drive()
    assert ids(producers.recall(NS, "kelp", budget=only(total=5, hot=0))) == ["warm000"]
    assert ids(producers.recall(NS, "kelp", budget=only(total=5, hot=0, warm=0))) == []
    assert ids(producers.recall(NS, "kelp", budget=only(total=5, hot=0, warm=0, cold=0))) == []
    assert ids(producers.recall(NS, "kelp", budget=only(total=0))) == []


def test_given_share_is_a_minimum_and_the_rest_spills_over(memory: Storage) -> None:
    assert memory
    store(["kelp"] * 10)
    store(["moss"] * 3, Tier.WARM)
    drive()
    found = ids(producers.recall(NS, "kelp", budget=only(total=6, warm=2)))
    assert (len(found), sum(i.startswith("warm") for i in found)) == (6, 2)
    found = ids(producers.recall(NS, "kelp", budget=only(total=20, warm=10)))
    assert len(found) == 13


@pytest.mark.parametrize("total", [1, 3, 20])
def test_answers_are_oldest_first_and_never_above_the_total(memory: Storage, total: int) -> None:
    assert memory
    store([f"kelp {n}" for n in range(30)])
    drive()
    found = producers.recall(NS, "kelp", budget=only(total=total)).items
    assert len(found) == total
    order = [(i.record.created_at, i.record.id) for i in found]
    assert order == sorted(order)


def test_blank_query_gives_the_newest(memory: Storage) -> None:
    assert memory
    store(["kelp"] * 9, importance=0.5)
    for query in ("", "  \n", "?!"):
        assert ids(producers.recall(NS, query, budget=only(total=2))) == ["hot007", "hot008"]


def test_tier_t07_blank_query_with_a_budget_of_two(memory: Storage) -> None:
    assert memory
    store(["x"] * 5)
    assert len(producers.recall(NS, "", budget=only(total=2, hot=2)).items) == 2


def test_tier_t08_all_of_one_level_are_returned_whatever_the_shares_are(memory: Storage) -> None:
    assert memory
    store(["x"] * 8, Tier.WARM)
    assert len(producers.recall(NS, "", budget=only(total=8, hot=8, warm=4, cold=2)).items) == 8


def test_tier_t22_the_fact_is_found_by_its_words(memory: Storage) -> None:
    assert memory
    record = NewRecord("fact-1", "user prefers dark mode", T0, importance=0.8)
    producers.remember_records(NS, [record])
    assert ids(producers.recall(NS, "dark mode", budget=only(total=5))) == ["fact-1"]
    drive()
    assert ids(producers.recall(NS, "dark mode", budget=only(total=5))) == ["fact-1"]


def test_tier_t29_a_cold_record_is_found_by_the_words_of_its_summary(memory: Storage) -> None:
    assert memory
    store(["billing of march " + "and further words " * 400])
    drive()
    for _ in range(2):
        run_pass(NS, TO_COLD)
    producers.remember_records(NS, [NewRecord(f"n{n}", f"noise {n}", T0) for n in range(50)])
    drive()
    answer = producers.recall(NS, "billing", budget=only(total=5, hot=0, warm=0, cold=5))
    assert ids(answer) == ["hot000"]
    record = answer.items[0].record
    assert (record.tier, record.content, record.summary is not None) == (Tier.COLD, None, True)
    assert "hot000" in ids(producers.recall(NS, "billing"))


def test_tier_t44_replay_by_weights_gives_the_newest_in_order(memory: Storage) -> None:
    """All three shares are given and cannot fit: they give way, and the newest of the level are returned."""
    assert memory
    now = datetime.now(UTC)
    producers.remember_records(
        NS, [NewRecord(f"m{h}", "text", now - timedelta(hours=h), tier=Tier.WARM) for h in (5, 4, 3, 2, 1)]
    )
    weights = RecallWeights(semantic=0.01, recency=1, importance=0.01)
    found = producers.recall(NS, "", budget=only(total=3, hot=3, warm=3, cold=3), weights=weights)
    assert ids(found) == ["m3", "m2", "m1"]


def test_tier_x12_total_of_one_returns_the_best_of_any_level(memory: Storage) -> None:
    """The original never looked at hot and warm here."""
    assert memory
    store(["moss " * 2])
    drive()
    for _ in range(2):
        run_pass(NS, TO_COLD)
    store(["kelp"], Tier.WARM)
    drive()
    assert ids(producers.recall(NS, "kelp", budget=only(total=1))) == ["warm000"]


def test_tier_x13_x23_recall_moves_nothing_and_asks_no_model(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The original demoted, and even summarized, what it had just found in a tier that was over its capacity."""
    with model_server(said(json.dumps({"summary": "of kelp"}))) as script:
        for name, value in {"CHAT": "openai", "CHAT_URL": script.url, "CHAT_MODEL": "scripted"}.items():
            monkeypatch.setenv(f"ISOTHERM_{name}", value)
        monkeypatch.setenv("ISOTHERM_TIER", '{"warm_capacity": 1}')
        request.getfixturevalue("memory")
        store(["kelp " * 2_000] * 3, Tier.WARM)
        drive()
        before = fetch_all("SELECT xmin::text, ctid::text, * FROM tier_records ORDER BY key")
        (item,) = producers.recall(NS, "kelp", budget=only(total=1)).items
        assert (item.record.tier, item.record.content) == (Tier.WARM, "kelp " * 2_000)
        assert fetch_all("SELECT xmin::text, ctid::text, * FROM tier_records ORDER BY key") == before
        assert script.asked == []
        due = producers.plan(NS).moves
        assert [(move.target, move.reason) for move in due] == [(Tier.COLD, Reason.CAPACITY)] * 2
        drive(producers.reconcile(NS).operation_id)
        assert len(script.asked) == 2, "a pass asks it"


def test_tier_x19_the_best_match_is_a_candidate_however_old_it_is(memory: Storage) -> None:
    assert memory
    store(["axolotl"], Tier.WARM)
    store(["noise"] * 120)
    drive()
    assert "warm000" in ids(producers.recall(NS, "axolotl", budget=only(total=5)))


def test_recall_and_tail_work_in_a_database_that_takes_no_writes(memory: Storage, dsn: str) -> None:
    assert memory
    store(["kelp grows"])
    drive()
    storage.close()
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(f'ALTER DATABASE "{conn.info.dbname}" SET default_transaction_read_only = on')
        opened = storage.open()
        try:
            assert ids(producers.recall(NS, "kelp")) == ["hot000"]
            assert ids(producers.recall(Bank(None, "atlas"), "kelp")) == ["hot000"]
            assert producers.recall(Namespace.of("new"), "kelp").items == ()
            assert [r.id for r in opened.tier.tail(NS)] == ["hot000"]
            assert opened.tier.tail(Namespace.of("new")) == []
            assert opened.tier.get(NS, "hot000").content == "kelp grows"
        finally:
            conn.execute(f'ALTER DATABASE "{conn.info.dbname}" RESET default_transaction_read_only')


def counts() -> dict[str, int]:
    return dict(fetch_all("SELECT id, access_count FROM tier_records"))


def test_a_query_counts_once_for_what_it_found_by_words(memory: Storage) -> None:
    assert memory
    store(["kelp grows", "moss"])
    drive()
    assert sorted(ids(producers.recall(NS, "kelp"))) == ["hot000", "hot001"]
    assert counts() == {"hot000": 0, "hot001": 0}
    assert ticks.touch() == {"records": 1}
    assert counts() == {"hot000": 1, "hot001": 0}
    assert ticks.touch() == {"records": 0}
    (accessed,) = fetch_all("SELECT last_access_at > created_at FROM tier_records WHERE id = 'hot000'")[0]
    assert accessed


def test_replay_blank_queries_and_untouched_queries_count_nothing(memory: Storage) -> None:
    store(["kelp grows"])
    memory.tier.tail(NS)
    producers.recall(NS, "")
    producers.recall(NS, "kelp", touch=False)
    memory.tier.get(NS, "hot000")
    assert ticks.touch() == {"records": 0}


def test_touch_says_which_records_of_an_answer_count(memory: Storage) -> None:
    assert memory
    store(["kelp", "moss"])
    drive()
    for mode, counted in ((Touch.NONE, 0), (Touch.RELEVANT, 1), (Touch.SELECTED, 2), (True, 1), (False, 0)):
        assert len(producers.recall(NS, "kelp", touch=mode).items) == 2
        assert ticks.touch() == {"records": counted}
    assert counts() == {"hot000": 3, "hot001": 1}


def test_tail_keeps_calls_of_tools_and_their_answers_together(memory: Storage) -> None:
    assert memory
    at = datetime(2026, 7, 1, tzinfo=UTC)
    call = ChatMessage(role="assistant", time=at, tool_calls=(ToolCall(id="1", name="look"),))
    answer = ChatMessage(role="tool", time=at + timedelta(seconds=1), content="kelp", tool="look", tool_call_id="1")
    said = ChatMessage(role="user", time=at + timedelta(seconds=2), content="thank you")
    records = [message_record(NS, message, n) for n, message in enumerate((call, answer, said))]
    producers.remember_records(NS, records)
    for _ in ("from the database", "from Redis"):
        assert [r.role for r in memory.tier.tail(NS)] == ["assistant", "tool", "user"]
        assert [r.role for r in memory.tier.tail(NS, 2)] == ["user"]


def test_tier_t09_enough_accesses_lift_a_warm_record(memory: Storage) -> None:
    """Holds once the touch batch is applied and a pass has run."""
    assert memory
    store(["important thing"], Tier.WARM)
    drive()
    for _ in range(2):
        producers.recall(NS, "important", budget=only(total=1, warm=1))
        ticks.touch()
    report = run_pass(NS, Policy(hot_capacity=10, warm_capacity=10, promote_access=2))
    assert report["promoted"] == 1
    assert fetch_all("SELECT tier, access_count FROM tier_records") == [(3, 2)]


@pytest.mark.parametrize("limit", [0, 201])
def test_tail_takes_limits_from_1_to_200(memory: Storage, limit: int) -> None:
    with pytest.raises(RejectedError, match="limit"):
        memory.tier.tail(NS, limit)


NASTY = ["a", "a!", 'a"', "a\\", "a b", "aa", "a\u00e9", "\u20ac", "\uffee", "\U0001f600", '"', "\u00e9", "Z", "_", "0"]


def test_equal_times_come_in_one_order_from_redis_and_from_the_database(memory: Storage) -> None:
    records = [NewRecord(record_id, "text", T0) for record_id in NASTY]
    producers.remember_records(NS, records[::2])
    first = memory.tier.tail(NS)
    producers.remember_records(NS, records[1::2])
    appended = memory.tier.tail(NS)
    with connection() as conn:
        rows = tier_recall.newest(conn, NS, 200)
    assert len(first) == 8
    assert [r.id for r in appended] == [row.id for row in rows] == sorted(NASTY, key=str.encode)
    assert memory.tail.read(fetch_all("SELECT id FROM namespaces")[0][0], 200)[0] == appended


def test_tail_gives_long_and_cold_texts_as_they_were(memory: Storage) -> None:
    long = "long kelp \u20ac " * 3_000
    store([long, "short"])
    drive()
    assert [r.content for r in memory.tier.tail(NS)] == [long, "short"]
    for _ in range(2):
        run_pass(NS, TO_COLD)
    assert [r.content for r in memory.tier.tail(NS)] == [long, "short"]
    memory.tail.invalidate(fetch_all("SELECT id FROM namespaces")[0][0])
    assert [r.content for r in memory.tier.tail(NS)] == [long, "short"]
    assert [r.content for r in memory.tier.tail(NS, 1)] == ["short"]


def test_scores_are_explained_by_their_parts(memory: Storage) -> None:
    assert memory
    store(["kelp grows fast"], importance=0.9)
    drive()
    (item,) = producers.recall(NS, "kelp").items
    total = 0.5 * item.score.semantic + 0.3 * item.score.recency + 0.2 * item.score.importance
    assert item.score.total == pytest.approx(total)
    assert item.score.importance == 0.9
    assert item.legs == {"recent", "lexical"}
