from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import psycopg
import pytest
from inprocess import check_database, drive, run_pass

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.plan import Move
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Reason, Tier
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.postgres import namespaces, tier_index, tier_move, tier_touch, tier_write
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.settings import settings
from isotherm.tasks import producers, ticks

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage

NS = Namespace.of("atlas", "s1")
T0 = datetime(2026, 7, 1, 12, tzinfo=UTC)
COLD = Policy(hot_capacity=0, warm_capacity=0, cooldown=None)


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def record(record_id: str = "r1", content: str = "kelp grows fast", **more: Any) -> NewRecord:
    return NewRecord(**{"id": record_id, "content": content, "created_at": T0, **more})


def row(record_id: str = "r1") -> dict[str, Any]:
    columns = "key, content, version, tier, indexed, metadata, importance, role, created_at, last_access_at, moved_from"
    found = fetch_all(f"SELECT {columns} FROM tier_records WHERE id = %(id)s", {"id": record_id})
    assert len(found) == 1
    return dict(zip(columns.split(", "), found[0], strict=True))


def test_answer_means_record_operation_step_and_message_are_committed(memory: Storage) -> None:
    accepted = producers.remember(NS, "kelp grows fast", role="user", time=T0)
    assert (accepted.new, accepted.written) == (True, 1)
    assert fetch_all("SELECT id::text, content, role, importance, tier, version FROM tier_records") == [
        (accepted.ids[0], "kelp grows fast", "user", 0.7, 3, 1)
    ]
    operation = producers.operation(accepted.operation_id)
    assert (operation.kind, operation.state) == ("tier.remember", "accepted")
    assert fetch_all("SELECT stage, state, queue FROM operation_steps") == [("tier.index", "pending", "db")]
    assert fetch_all("SELECT builder, payload ->> 'stage' FROM outbox") == [("step", "tier.index")]
    assert drive() == ["tier.index"]
    assert producers.operation(accepted.operation_id).result == {"records": 1, "indexed": 1}
    assert memory.tier.get(NS, accepted.ids[0]).namespace == NS


def test_statement_is_short_enough_for_the_driver_to_keep() -> None:
    assert len(tier_write._STATEMENT) < 4_096


def test_same_key_and_body_give_the_first_answer_and_change_nothing(memory: Storage) -> None:
    assert memory
    first = producers.remember(NS, "kelp", key="k1", time=T0)
    again = producers.remember(NS, "kelp", key="k1", time=T0 + timedelta(hours=1))
    assert (again.operation_id, again.ids, again.new, again.written) == (first.operation_id, first.ids, False, 0)
    assert fetch_all("SELECT count(*), max(version) FROM tier_records") == [(1, 1)]
    assert fetch_all("SELECT count(*) FROM outbox") == [(1,)]


def test_same_key_with_another_body_is_refused_without_its_text(memory: Storage) -> None:
    assert memory
    producers.remember(NS, "kelp", key="k1")
    with pytest.raises(RejectedError, match="another body") as caught:
        producers.remember(NS, "secret", key="k1")
    assert "secret" not in str(caught.value)
    assert fetch_all("SELECT content FROM tier_records") == [("kelp",)]


def test_a_key_belongs_to_its_namespace(memory: Storage) -> None:
    assert memory
    one = producers.remember(NS, "kelp", key="k1")
    other = producers.remember(Namespace.of("atlas", "s2"), "kelp", key="k1")
    assert other.new
    assert one.ids != other.ids


def test_eight_calls_with_one_key_store_once(memory: Storage) -> None:
    assert memory
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: producers.remember(NS, "kelp", key="k1", time=T0), range(8)))
    assert len({a.operation_id for a in answers}) == 1
    assert sum(a.new for a in answers) == 1
    assert fetch_all("SELECT count(*) FROM operations") == [(1,)]


def test_other_text_under_the_same_id_replaces_text_words_and_version(memory: Storage) -> None:
    producers.remember_records(NS, [record()])
    drive()
    assert row()["indexed"]
    changed = producers.remember_records(NS, [record(content="moss grows slowly", created_at=T0 + timedelta(days=9))])
    assert changed.written == 1
    assert (row()["version"], row()["indexed"], row()["created_at"]) == (2, False, T0)
    assert row()["last_access_at"] == T0 + timedelta(days=9), "a record that was just written is not idle"
    assert [i.record.id for i in producers.recall(NS, "moss").items] == ["r1"], (
        "found before its words are in the index"
    )
    check_database()
    drive()
    assert row()["indexed"]
    assert producers.recall(NS, "moss").items[0].score.overlap > 0
    assert producers.recall(NS, "kelp").items[0].score.overlap == 0
    assert [r.content for r in memory.tier.tail(NS)] == ["moss grows slowly"]


def test_other_text_brings_a_cold_record_back_and_removes_its_body(memory: Storage) -> None:
    producers.remember_records(NS, [record(content="kelp " * 2_000)])
    drive()
    run_pass(NS, COLD)
    run_pass(NS, COLD)
    assert row()["tier"] == 1
    assert fetch_all("SELECT count(*) FROM cold_bodies") == [(1,)]
    producers.remember_records(NS, [record(content="moss")])
    drive()
    assert (row()["tier"], row()["content"], row()["moved_from"]) == (3, "moss", 1)
    assert fetch_all("SELECT count(*) FROM cold_bodies") == [(0,)]
    assert memory.tier.get(NS, "r1").summary is None


@pytest.mark.parametrize("content", ["kelp", "kelp " * 2_000], ids=["whole", "body"])
def test_the_same_text_pinned_brings_a_cold_record_back_by_the_next_tick(memory: Storage, content: str) -> None:
    producers.remember_records(NS, [record(content=content)])
    drive()
    run_pass(NS, COLD)
    run_pass(NS, COLD)
    with connection() as conn:
        conn.execute("UPDATE namespaces SET due_at = NULL")
    producers.remember_records(NS, [record(content=content, pinned=True)])
    drive()
    assert ticks.due() == {"namespaces": 1}
    drive()
    assert (row()["tier"], row()["content"]) == (2, content)
    assert memory.tier.get(NS, "r1").pinned


def test_same_text_with_other_metadata_keeps_the_words_and_the_place(memory: Storage) -> None:
    producers.remember_records(NS, [record()])
    drive()
    producers.remember_records(NS, [record(metadata={"seen": 2}, importance=0.9)])
    assert (row()["version"], row()["indexed"], row()["metadata"], row()["importance"]) == (2, True, {"seen": 2}, 0.9)
    assert [r.metadata for r in memory.tier.tail(NS)] == [{"seen": 2}]


@pytest.mark.parametrize("cold", [False, True])
def test_same_text_with_another_searchable_text_is_found_by_the_new_one(memory: Storage, *, cold: bool) -> None:
    assert memory
    producers.remember_records(NS, [record(metadata={"searchable": "billing issue"})])
    drive()
    if cold:
        run_pass(NS, COLD)
        run_pass(NS, COLD)
    producers.remember_records(NS, [record(metadata={"searchable": "shipping delay"})])
    assert producers.recall(NS, "shipping").items[0].score.overlap > 0
    drive()
    assert producers.recall(NS, "shipping").items[0].score.overlap > 0
    assert producers.recall(NS, "billing").items[0].score.overlap == 0


@pytest.mark.parametrize("given", [5, None, ["billing"], " \u2003 ", ""])
def test_tier_t06_searchable_that_is_no_text_is_ignored_by_the_index_too(memory: Storage, given: object) -> None:
    assert memory
    producers.remember_records(NS, [record(metadata={"searchable": given})])
    assert producers.recall(NS, "kelp").items[0].score.overlap > 0
    drive()
    assert producers.recall(NS, "kelp").items[0].score.overlap > 0


def test_tier_t23_a_record_is_found_by_its_searchable_text(memory: Storage) -> None:
    assert memory
    producers.remember_records(NS, [record(content='{"a": 1}', metadata={"searchable": "billing issue"})])
    drive()
    assert producers.recall(NS, "billing issue").items[0].score.overlap > 0


def test_index_step_that_read_an_older_searchable_text_leaves_the_newer_to_its_own_step(memory: Storage) -> None:
    assert memory
    producers.remember_records(NS, [record(metadata={"searchable": "old"})])
    key = row()["key"]
    with connection() as conn:
        found = tier_index.unindexed(conn, [key])
    producers.remember_records(NS, [record(metadata={"searchable": "new"})])
    with connection() as conn:
        assert tier_index.write_terms(conn, [(found[0], [1])]) == 0
    drive()
    assert row()["indexed"]


def test_unchanged_record_is_left_alone(memory: Storage) -> None:
    assert memory
    producers.remember_records(NS, [record()])
    again = producers.remember_records(NS, [record()])
    assert (again.new, again.written, row()["version"]) == (True, 0, 1)
    drive()
    assert producers.operation(again.operation_id).state == "done"


def test_of_two_records_with_one_id_the_last_counts(memory: Storage) -> None:
    done = producers.remember_records(NS, [record(content="first"), record("r2"), record(content="last")])
    assert (done.ids, done.written) == (("r1", "r2", "r1"), 2)
    assert (row()["content"], row()["version"]) == ("last", 1)
    assert [r.content for r in memory.tier.tail(NS)] == ["last", "kelp grows fast"]


def line(session: str, content: str, position: int = 0, **more: Any) -> TranscriptLine:
    given = {"number": 1, "agent": "atlas", "tenant": None, "role": "user", "time": T0, **more}
    return TranscriptLine(session=session, content=content, position=position, **given)


def test_messages_of_several_sessions_go_to_their_namespaces_and_twice_is_once(memory: Storage) -> None:
    lines = [line("s1", "hello", 0), line("s2", "hello", 0), line("s1", "bye", 1)]
    first = producers.remember_messages(lines)
    again = producers.remember_messages(lines)
    assert (first.written, again.new, again.operation_id) == (3, False, first.operation_id)
    assert [r.content for r in memory.tier.tail(NS)] in (["hello", "bye"], ["bye", "hello"])
    assert [r.content for r in memory.tier.tail(Namespace.of("atlas", "s2"))] == ["hello"]
    operation = producers.operation(first.operation_id)
    assert operation.namespace_id is None
    assert operation.bank_id == namespaces.resolve(NS).bank_id


@pytest.mark.parametrize("other", [{"agent": "zeus"}, {"tenant": "acme"}])
def test_records_of_two_banks_in_one_call_are_refused(memory: Storage, other: dict[str, str]) -> None:
    assert memory
    with pytest.raises(RejectedError, match="one bank"):
        producers.remember_messages([line("s1", "a"), line("s1", "b", **other)])
    assert fetch_all("SELECT count(*) FROM tier_records") == [(0,)]


def test_text_that_postgresql_cannot_store_is_made_storable(memory: Storage) -> None:
    producers.remember_records(NS, [record(content="a\x00b\ud800", role="us\x00er", metadata={"k\x00": "\udfff"})])
    drive()
    assert memory.tier.get(NS, "r1").content == "a\ufffdb\ufffd"
    assert (row()["role"], row()["metadata"]) == ("us\ufffder", {"k\ufffd": "\ufffd"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"content": "x" * 1_048_577}, "content: 1048577 bytes"),
        ({"content": "é" * 524_289}, "content: 1048578 bytes"),
        ({"metadata": {"a": "x" * 65_536}}, "metadata: 65544 bytes, the limit is 65536"),
        ({"id": "a\nb"}, "id: control"),
        ({"id": "x" * 513}, "id: 513 bytes"),
        ({"tier": Tier.COLD}, "tier: a new record starts hot or warm"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is(
    memory: Storage, changes: dict[str, Any], message: str
) -> None:
    assert memory
    with pytest.raises(RejectedError, match=message):
        producers.remember_records(NS, [record("fine"), replace(record(), **changes)])
    assert fetch_all("SELECT count(*) FROM operations") == [(0,)]


@pytest.mark.parametrize("count", [0, 1_001])
def test_batches_hold_1_to_1000_records(memory: Storage, count: int) -> None:
    assert memory
    with pytest.raises(RejectedError, match="from 1 to 1000"):
        producers.remember_records(NS, [record(f"r{n}") for n in range(count)])


def test_writers_of_the_same_ids_in_different_orders_never_deadlock(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside them, index steps, touches and moves lock the same rows."""
    assert memory
    ids = [f"r{n:02}" for n in range(30)]
    producers.remember_records(NS, [record(i) for i in reversed(ids)])
    other = Namespace.of("atlas", "s2")
    producers.remember_records(other, [record(i) for i in ids])
    monkeypatch.setenv("ISOTHERM_POOL_SIZE", "8")
    settings.cache_clear()
    storage.open()
    start = threading.Barrier(8)

    def write(seed: int) -> None:
        chooser = random.Random(seed)
        start.wait()
        for round_ in range(6):
            lines = [
                line(chooser.choice(["s1", "s2"]), f"text {seed} {round_} {i}", id=i)
                for i in chooser.sample(ids, len(ids))
            ]
            done = producers.remember_messages(lines)
            drive_own(done.operation_id)

    with ThreadPoolExecutor(8) as pool:
        for finished in [pool.submit(write, seed) for seed in range(8)]:
            finished.result()
    drive()
    assert fetch_all("SELECT DISTINCT state FROM operations") == [("done",)]
    assert fetch_all("SELECT count(*) FROM operation_steps WHERE attempts > 1 OR waits > 0") == [(0,)]


def drive_own(operation_id: object) -> None:
    assert drive(operation_id) == ["tier.index"]  # type: ignore[arg-type]


def _index(keys: list[int]) -> None:
    with connection() as conn:
        tier_index.write_terms(conn, [(found, [1]) for found in tier_index.unindexed(conn, keys)])
        conn.rollback()


def _touch(keys: list[int]) -> None:
    with connection() as conn:
        tier_touch.apply(conn, "b1", dict.fromkeys(keys, 1), T0, promote_access=None)
        conn.rollback()


def _moved(by: Any, source: Tier, target: Tier | None) -> Any:
    def move(keys: list[int]) -> None:
        with connection() as conn:
            by(conn, uuid4(), [Move(key, 1, source, target, Reason.CAPACITY) for key in keys])
            conn.rollback()

    return move


def _archive(conn: Any, operation_id: Any, moves: Any) -> None:
    tier_move.archive(conn, operation_id, moves, {}, min_bytes=9_999)


def _remember(keys: list[int]) -> None:
    assert keys
    producers.remember_records(NS, [record("r1", "new"), record("r0", "new")])


LOCKERS = {
    "remember": (Tier.HOT, _remember),
    "index": (Tier.HOT, _index),
    "touch": (Tier.HOT, _touch),
    "shift": (Tier.HOT, _moved(tier_move.shift, Tier.HOT, Tier.WARM)),
    "archive": (Tier.WARM, _moved(_archive, Tier.WARM, Tier.COLD)),
    "restore": (Tier.COLD, _moved(tier_move.restore, Tier.COLD, Tier.WARM)),
    "evict": (Tier.COLD, _moved(tier_move.shift, Tier.COLD, None)),
}


@pytest.mark.parametrize(("tier", "act"), LOCKERS.values(), ids=LOCKERS.keys())
def test_every_statement_locks_records_by_namespace_and_id(memory: Storage, dsn: str, tier: Tier, act: Any) -> None:
    """So no two of them wait for each other, whatever the order of their keys is."""
    assert memory
    producers.remember_records(NS, [record("r1")])
    producers.remember_records(NS, [record("r0")])
    keys = [key for (key,) in fetch_all("SELECT key FROM tier_records ORDER BY key")]
    with psycopg.connect(dsn, autocommit=True) as conn:
        cold = tier is Tier.COLD
        conn.execute(
            "UPDATE tier_records SET tier = %s, content = %s, summary = %s, content_sha256 = sha256('x'), size_bytes = 1",
            (tier.rank, None if cold else "x", "x" if cold else None),
        )
        with ThreadPoolExecutor(1) as threads:
            with conn.transaction():
                conn.execute("SELECT 1 FROM tier_records WHERE id = 'r0' FOR UPDATE")
                acting = threads.submit(act, keys)
                while not conn.execute(
                    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
                ).fetchone():
                    assert not acting.done(), acting.result()
                    time.sleep(0.01)
                conn.execute("SELECT 1 FROM tier_records WHERE id = 'r1' FOR UPDATE NOWAIT")
            acting.result(timeout=10)


def test_writers_do_not_wait_for_a_pass_or_an_index_step_of_their_namespace(memory: Storage) -> None:
    assert memory
    producers.remember_records(NS, [record()])
    place = namespaces.resolve(NS)
    with connection() as conn:
        tier_index.mark_due(conn, [place.namespace_id])
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(producers.remember_records, NS, [record("r2")])
            assert done.result(timeout=5).written == 1


def test_finding_a_namespace_again_does_not_wait_for_its_writers(memory: Storage) -> None:
    assert memory
    place = namespaces.resolve(NS)
    namespaces.forget_places()
    with connection() as conn:
        conn.execute("SELECT 1 FROM namespaces WHERE id = %s FOR KEY SHARE", (place.namespace_id,))
        conn.execute("SELECT 1 FROM banks WHERE id = %s FOR KEY SHARE", (place.bank_id,))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(namespaces.resolve, NS).result(timeout=5) == place
            assert (
                pool.submit(namespaces.resolve, Namespace.of("atlas", "s9")).result(timeout=5).bank_id == place.bank_id
            )


def test_reading_makes_no_namespace(memory: Storage) -> None:
    nobody = Namespace.of("nobody", "s1")
    assert memory.tier.tail(nobody) == []
    assert producers.recall(nobody, "kelp").items == ()
    with pytest.raises(RejectedError):
        memory.tier.get(nobody, "r1")
    with pytest.raises(RejectedError):
        producers.restore(nobody, ["r1"])
    assert fetch_all("SELECT count(*) FROM namespaces") == [(0,)]


BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")


@pytest.mark.parametrize(
    ("before", "again"),
    [
        (datetime(2026, 10, 25, 1, 30, tzinfo=BERLIN), True),
        (datetime(2026, 11, 1, 0, 30, tzinfo=NEW_YORK), True),
        (datetime(2026, 3, 29, 1, 30, tzinfo=BERLIN), False),
        (datetime(2026, 3, 8, 1, 30, tzinfo=NEW_YORK), False),
    ],
)
def test_records_around_the_edges_of_daylight_saving_are_in_the_order_they_happened(
    memory: Storage, before: datetime, *, again: bool
) -> None:
    """In autumn an hour comes twice by the clock on the wall, in spring one is left out."""
    hour = timedelta(hours=1)
    moments = [before, before + hour, (before + hour).replace(fold=1), before + 2 * hour]
    producers.remember_records(NS, [NewRecord(f"r{n}", f"note {n}", moment) for n, moment in enumerate(moments)])
    drive()
    stored = dict(fetch_all("SELECT id, created_at FROM tier_records"))
    assert [stored[f"r{n}"] for n in range(4)] == [moment.astimezone(UTC) for moment in moments]
    assert stored["r2"] - stored["r1"] == (hour if again else -hour)
    told = sorted(stored, key=lambda one: (stored[one], one))
    assert [item.id for item in memory.tier.tail(NS, 4)] == told
