"""Changes of stored records by their caller: by version, found by the new text at once, and kept out of cold when pinned."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from inprocess import drive, run_pass
from tiering import LONG, NS, archive, policy, store, tiers

from isotherm.pipeline.errors import RejectedError, TransientError, UnavailableError, VersionConflictError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.postgres.tier_edit import Edited
from isotherm.storage.redis.tail import Tail
from isotherm.tasks import producers
from isotherm.tasks import tier_pass as stages

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage

pytestmark = pytest.mark.usefixtures("memory")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def texts(memory: Storage, query: str) -> list[str]:
    return [item.record.text for item in memory.tier.recall(Scope(namespace=NS), query, touch=False).items]


def found_by_words(memory: Storage, query: str) -> set[str]:
    answer = memory.tier.recall(Scope(namespace=NS), query, touch=False)
    return {item.record.id for item in answer.items if item.score.overlap > 0}


def test_an_update_is_found_by_its_new_words_at_once_and_no_more_by_the_old(memory: Storage) -> None:
    store(("a", timedelta(hours=1)), content="kelp forest")
    assert [r.content for r in memory.tier.tail(NS)] == ["kelp forest a"]
    done = producers.update(NS, "a", content="granite quarry")
    assert (done.version, done.written, done.reworded, done.lifted) == (2, True, True, False)
    assert found_by_words(memory, "granite") == {"a"}
    assert [r.content for r in memory.tier.tail(NS)] == ["granite quarry"]
    drive()
    assert found_by_words(memory, "granite") == {"a"}
    assert found_by_words(memory, "kelp") == set()
    assert producers.operation(done.operation_id).state == "done"


def test_parts_that_are_not_given_stay_as_they_are(memory: Storage) -> None:
    store(("a", timedelta(hours=1)), role="user", metadata={"topic": "sea"}, categories=("x",))
    before = memory.tier.get(NS, "a")
    assert producers.update(NS, "a", importance=0.9).reworded is False
    after = memory.tier.get(NS, "a")
    assert (after.content, after.metadata, after.categories) == (before.content, before.metadata, before.categories)
    assert (after.importance, after.version) == (0.9, 2)
    again = producers.update(NS, "a", importance=0.9)
    assert (again.written, again.version) == (False, 2)
    with pytest.raises(RejectedError, match="something to change"):
        producers.update(NS, "a")


def test_an_important_record_is_no_longer_the_first_to_leave() -> None:
    store(*[(i, timedelta(hours=1)) for i in "abc"], importance=0.5)
    producers.update(NS, "a", importance=1.0)
    drive()
    run_pass(NS, policy(hot_capacity=1))
    assert tiers() == {"a": Tier.HOT, "b": Tier.WARM, "c": Tier.WARM}


def test_a_record_with_another_version_is_not_changed(memory: Storage) -> None:
    store(("a", timedelta(hours=1)))
    seen = memory.tier.get(NS, "a").version
    producers.update(NS, "a", content="first", expected_version=seen)
    with pytest.raises(VersionConflictError) as refused:
        producers.update(NS, "a", content="second", expected_version=seen)
    assert refused.value.version == seen + 1
    assert memory.tier.get(NS, "a").content == "first"
    # What was refused left nothing behind that a worker could run.
    assert fetch_all("SELECT count(*) FROM operations WHERE kind = 'tier.update'") == [(1,)]


def test_tier_weak_11_of_eight_concurrent_updates_of_one_version_one_wins_and_counts_are_not_lost(
    memory: Storage,
) -> None:
    store(("a", timedelta(hours=1)))
    version = memory.tier.get(NS, "a").version

    def attempt(n: int) -> Edited | None:
        try:
            return producers.update(NS, "a", content=f"text {n}", expected_version=version)
        except (VersionConflictError, TransientError):
            return None

    with ThreadPoolExecutor(8) as threads:
        done = [d for d in threads.map(attempt, range(8)) if d is not None]
    assert [d.version for d in done] == [version + 1]
    assert memory.tier.get(NS, "a").version == version + 1


def test_the_same_key_changes_once_and_another_body_is_refused(memory: Storage) -> None:
    store(("a", timedelta(hours=1)))
    first = producers.update(NS, "a", content="new", key="k")
    producers.update(NS, "a", content="newer")
    again = producers.update(NS, "a", content="new", key="k")
    assert (again.operation_id, again.new) == (first.operation_id, False)
    assert memory.tier.get(NS, "a").content == "newer"
    with pytest.raises(RejectedError, match="another body"):
        producers.update(NS, "a", content="other", key="k")


def test_another_text_brings_a_cold_record_back_and_its_body_is_gone(memory: Storage) -> None:
    store(("a", timedelta(days=9)), tier=Tier.WARM, content=LONG)
    archive("a")
    done = producers.update(NS, "a", content="short now")
    assert done.lifted
    after = memory.tier.get(NS, "a")
    assert (after.tier, after.content, after.summary) == (Tier.WARM, "short now", None)
    assert fetch_all("SELECT count(*) FROM cold_bodies") == [(0,)]
    assert fetch_all("SELECT source, target, reason FROM tier_moves ORDER BY id DESC LIMIT 1") == [(1, 2, "restore")]
    drive()


def test_metadata_of_a_cold_record_changes_where_it_is_and_it_comes_back_whole(memory: Storage) -> None:
    store(("a", timedelta(days=9)), tier=Tier.WARM, content=LONG)
    archive("a")
    done = producers.update(NS, "a", metadata={"searchable": "barnacle", "n": 1})
    assert (done.lifted, done.reworded) == (False, False)
    assert memory.tier.get(NS, "a").tier is Tier.COLD
    producers.restore(NS, ["a"])
    drive()
    after = memory.tier.get(NS, "a")
    assert (after.content, after.metadata["n"]) == (f"{LONG} a", 1)
    assert found_by_words(memory, "barnacle") == {"a"}


def test_what_a_caller_wants_a_record_to_be_found_by_counts_for_a_small_cold_record_too(memory: Storage) -> None:
    store(("a", timedelta(days=9)), tier=Tier.WARM)
    archive("a")
    assert producers.update(NS, "a", metadata={"searchable": "barnacle"}).reworded
    drive()
    assert found_by_words(memory, "barnacle") == {"a"}
    assert memory.tier.get(NS, "a").tier is Tier.COLD


def test_tier_x26_pinning_lifts_a_cold_record_and_keeps_it_out_of_passes(memory: Storage) -> None:
    store(("a", timedelta(days=9)), ("b", timedelta(days=9)), tier=Tier.WARM, content=LONG)
    archive("a", "b")
    done = producers.pin(NS, ["a"])
    assert (done.records, done.restoring) == (1, 1)
    drive()
    record = memory.tier.get(NS, "a")
    assert (record.tier, record.pinned, record.content) == (Tier.WARM, True, f"{LONG} a")
    assert fetch_all("SELECT reason FROM tier_moves ORDER BY id DESC LIMIT 1") == [("pin",)]
    run_pass(NS, policy(warm_capacity=0, demote_idle=timedelta(days=1)))
    assert tiers() == {"a": Tier.WARM, "b": Tier.COLD}
    assert producers.unpin(NS, ["a"]).records == 1
    drive()
    run_pass(NS, policy(demote_idle=timedelta(days=1)))
    assert tiers() == {"a": Tier.COLD, "b": Tier.COLD}
    assert producers.unpin(NS, ["a"]).records == 0


def test_tier_x26_a_record_that_is_remembered_again_as_pinned_comes_back_from_cold(memory: Storage) -> None:
    store(("a", timedelta(days=9)), ("b", timedelta(days=9)), tier=Tier.WARM, content=LONG)
    archive("a", "b")
    drive()
    with connection() as conn:
        conn.execute("UPDATE namespaces SET due_at = NULL")
    producers.remember(NS, f"{LONG} b", record_id="b")
    drive()
    assert fetch_all("SELECT due_at FROM namespaces") == [(None,)], "what did not change asks for no pass"
    store(("a", timedelta(days=9)), content=LONG, pinned=True)
    assert fetch_all("SELECT due_at <= now() FROM namespaces") == [(True,)]
    assert found_by_words(memory, "kelp") == {"a", "b"}
    run_pass(NS, policy())
    record = memory.tier.get(NS, "a")
    assert (record.tier, record.pinned, record.content) == (Tier.WARM, True, f"{LONG} a")
    assert fetch_all("SELECT reason FROM tier_moves ORDER BY id DESC LIMIT 1") == [("pin",)]


def test_tier_weak_16_there_is_a_limit_to_pins(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    limited = memory.settings.model_copy(update={"max_pinned": 2})
    monkeypatch.setattr(producers.storage, "open", lambda: replace(memory, settings=limited))
    store(*[(i, timedelta(hours=1)) for i in "abc"])
    producers.pin(NS, ["a", "b"])
    with pytest.raises(RejectedError, match="no more than 2"):
        producers.pin(NS, ["c"])
    with pytest.raises(RejectedError, match="no more than 2"):
        producers.remember(NS, "one more", pinned=True)
    producers.unpin(NS, ["a"])
    assert producers.pin(NS, ["c"]).records == 1
    assert fetch_all("SELECT id FROM tier_records WHERE pinned ORDER BY id") == [("b",), ("c",)]


def test_tier_weak_16_calls_side_by_side_do_not_exceed_the_limit_to_pins(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited = memory.settings.model_copy(update={"max_pinned": 3})
    monkeypatch.setattr(producers.storage, "open", lambda: replace(memory, settings=limited))
    store(*[(f"p{n}", timedelta(hours=1)) for n in range(4)])
    start = threading.Barrier(8)

    def call(n: int) -> bool:
        start.wait()
        try:
            if n % 2:
                return producers.pin(NS, [f"p{n // 2}"]).new
            return producers.remember(NS, "kept", record_id=f"r{n}", key=f"k{n}", pinned=True).new
        except RejectedError:
            return False

    with ThreadPoolExecutor(8) as pool:
        made = sum(pool.map(call, range(8)))
    assert made == 3
    assert fetch_all("SELECT count(*) FROM tier_records WHERE pinned") == [(3,)]
    [kept, *_] = fetch_all("SELECT id, pinned FROM tier_records ORDER BY pinned DESC, id")
    assert producers.remember(NS, "with another text", record_id=kept[0], pinned=True).written == 1, (
        "it is pinned already"
    )
    with pytest.raises(RejectedError, match="no more than 3"):
        producers.remember(NS, "one more", pinned=True)
    assert fetch_all("SELECT count(*) FROM tier_records WHERE content = 'one more'") == [(0,)]
    assert producers.remember(Namespace.of("atlas", "s2"), "elsewhere", pinned=True).written == 1


def test_a_pass_that_was_planned_before_the_pin_leaves_the_record_alone() -> None:
    store(("a", timedelta(days=9)), tier=Tier.WARM)
    wanted = producers.reconcile(NS, policy(demote_idle=timedelta(days=1)))
    [step] = fetch_all("SELECT id FROM operation_steps WHERE stage = 'tier.plan' AND state = 'pending'")
    stages.plan({"step_id": step[0], "operation_id": str(wanted.operation_id), "trace_id": str(uuid4())})
    producers.pin(NS, ["a"])
    drive()
    assert tiers() == {"a": Tier.WARM}


def test_redis_that_is_away_delays_no_update_and_the_tail_is_told_by_a_message(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    store(("a", timedelta(hours=1)))
    assert memory.tier.tail(NS)

    def away(_self: Tail, _namespace_ids: object) -> None:
        raise UnavailableError("away")

    monkeypatch.setattr(Tail, "announce", away)
    producers.update(NS, "a", content="told later")
    assert fetch_all("SELECT builder FROM outbox WHERE builder = 'tail_refresh'") == [("tail_refresh",)]


@pytest.mark.parametrize("verb", ["update", "pin", "unpin", "get"])
@pytest.mark.parametrize(
    "foreign", [Namespace.of("atlas", "s2"), Namespace.of("atlas", "s1", tenant="acme"), Namespace.of("nobody")]
)
def test_no_verb_reaches_into_another_namespace(verb: str, foreign: Namespace) -> None:
    store(("a", timedelta(hours=1)))
    producers.remember(Namespace.of("atlas", "s2"), "there", record_id="b")
    calls = {
        "update": lambda: producers.update(foreign, "a", content="stolen"),
        "pin": lambda: producers.pin(foreign, ["a"]),
        "unpin": lambda: producers.unpin(foreign, ["a"]),
        "get": lambda: producers.get(foreign, "a"),
    }
    with pytest.raises(RejectedError):
        calls[verb]()
    with connection() as conn:
        assert conn.execute("SELECT content, pinned, version FROM tier_records WHERE id = 'a'").fetchone() == (
            "kelp a",
            False,
            1,
        )
