from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inprocess import check_database, drive, run_pass
from tiering import LONG, NS, OPERATION, archive, counted, moves_of, policy, restore, store, tiers

from isotherm.pipeline.events import RecordsRemembered
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Reason, Tier
from isotherm.storage.postgres import tier_move
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import produce_records, producers

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def test_move_of_a_record_that_changed_meanwhile_is_left_out(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(0)), ("b", timedelta(0)))
    moves = moves_of("a", "b", source=Tier.HOT, target=Tier.WARM)
    producers.remember_records(NS, [NewRecord("a", "other text", datetime.now(UTC))])
    with connection() as conn:
        done = tier_move.shift(conn, OPERATION, moves)
    assert (done.moves, done.changed, done.receipt()["demoted"]) == ([moves[1]], 1, 1)
    assert tiers() == {"a": Tier.HOT, "b": Tier.WARM}
    with connection() as conn:
        assert tier_move.shift(conn, OPERATION, moves).changed == 2
    assert fetch_all("SELECT source, target, reason FROM tier_moves") == [(3, 2, "capacity")]
    assert fetch_all("SELECT moved_from, moved_at IS NOT NULL, version FROM tier_records WHERE id = 'b'") == [
        (3, True, 2)
    ]


def test_archive_and_restore_leave_changed_records_alone(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(0)), tier=Tier.WARM, content=LONG)
    moves = moves_of("a", source=Tier.WARM, target=Tier.COLD)
    producers.remember_records(NS, [NewRecord("a", "short", datetime.now(UTC), tier=Tier.WARM)])
    with connection() as conn:
        assert tier_move.texts(conn, moves) == {}
        done = tier_move.archive(conn, OPERATION, moves, {moves[0].key: "summary"}, min_bytes=4_096)
        assert (done.moves, done.changed) == ([], 1)
        done = tier_move.restore(conn, OPERATION, moves)
        assert (done.moves, done.changed) == ([], 1)
    drive()
    assert tiers() == {"a": Tier.WARM}


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


@settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(content=TEXT, times=st.sampled_from([1, 1, 90, 700]), searchable=st.none() | TEXT)
def test_what_goes_cold_comes_back_byte_for_byte(
    memory: Storage, content: str, times: int, searchable: str | None
) -> None:
    assert memory
    with connection() as conn:
        conn.execute("TRUNCATE tier_records, tier_postings, operations, cold_bodies, tier_moves CASCADE")
    metadata = {"kept": [1, {"\u20ac": None}], **({} if searchable is None else {"searchable": searchable})}
    record = NewRecord("a", content * times, datetime.now(UTC), tier=Tier.WARM, metadata=metadata, categories=("x",))
    producers.remember_records(NS, [record])
    drive()
    before = memory.tier.get(NS, "a")
    done = archive("a")
    if done.set_aside:
        assert list(done.set_aside.values()) == ["no summary"], "a blank text has no summary and stays warm"
        assert not (searchable or "").strip()
        return
    check_database()
    kept = memory.tier.get(NS, "a")
    assert (kept.tier, kept.content, kept.content_sha256) == (Tier.COLD, None, before.content_sha256)
    assert memory.tier.original(NS, "a") == record.content
    assert len(restore("a").moves) == 1
    after = memory.tier.get(NS, "a")
    assert (after.content, after.metadata, after.categories) == (record.content, metadata, ("x",))
    assert (after.content_sha256, after.size_bytes, after.tier) == (before.content_sha256, before.size_bytes, Tier.WARM)
    assert after.version == before.version + 2
    check_database()


HUGE = r"body = '\x28b52ffde00000000000000040'"  # a frame that claims to hold 4 EiB


@pytest.mark.parametrize(
    "damage", ["body = 'not zstd'", "body = ''", "raw_bytes = 7", "body = substring(body for 20)", HUGE]
)
def test_damaged_body_is_set_aside_and_the_record_stays_and_is_found(memory: Storage, damage: str) -> None:
    store(("a", timedelta(0)), ("b", timedelta(0)), tier=Tier.WARM, content=LONG)
    archive("a", "b")
    with connection() as conn:
        conn.execute(
            f"UPDATE cold_bodies SET {damage} WHERE record_key = (SELECT key FROM tier_records WHERE id = 'a')"
        )
    done = restore("a", "b")
    assert ([m.key for m in done.moves], list(done.set_aside.values())) == (
        [fetch_all("SELECT key FROM tier_records WHERE id = 'b'")[0][0]],
        ["the stored body does not match its hash"],
    )
    assert tiers() == {"a": Tier.COLD, "b": Tier.WARM}
    assert "a" in [i.record.id for i in producers.recall(NS, "kelp").items]
    assert {r.id: r.content is None for r in memory.tier.tail(NS)} == {"a": True, "b": False}
    accepted = producers.restore(NS, ["a"])
    drive()
    assert producers.operation(accepted.operation_id).result["set_aside"] != {}  # type: ignore[index]


def test_body_of_another_record_is_not_taken_for_the_own(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(0)), ("b", timedelta(0)), tier=Tier.WARM, content=LONG)
    archive("a", "b")
    with connection() as conn:
        conn.execute("UPDATE cold_bodies SET body = (SELECT body FROM cold_bodies ORDER BY record_key LIMIT 1)")
    assert len(restore("a", "b").set_aside) == 1


def test_tier_weak_02_summary_stands_beside_the_text_and_never_replaces_it(memory: Storage) -> None:
    store(("a", timedelta(0)), tier=Tier.WARM, content=LONG)
    archive("a")
    record = memory.tier.get(NS, "a")
    assert record.summary is not None
    assert len(record.summary) <= 513
    restore("a")
    back = memory.tier.get(NS, "a")
    assert (back.content, back.summary) == (f"{LONG} a", None)


def test_tier_x25_small_record_goes_cold_whole_and_is_found(memory: Storage) -> None:
    """The original kept it out of the index."""
    store(("a", timedelta(0)), tier=Tier.WARM, content="axolotl")
    archive("a")
    assert fetch_all("SELECT count(*) FROM cold_bodies") == [(0,)]
    assert memory.tier.get(NS, "a").summary == "axolotl a"
    assert [i.score.overlap > 0 for i in producers.recall(NS, "axolotl").items] == [True]


def test_tier_x28_second_way_to_cold_is_like_the_first(memory: Storage) -> None:
    store(("a", timedelta(0)), tier=Tier.WARM, content=LONG)
    archive("a")
    first = memory.tier.get(NS, "a").summary
    restore("a")
    archive("a")
    record = memory.tier.get(NS, "a")
    assert (record.summary, record.size_bytes) == (first, len(f"{LONG} a"))
    assert len(restore("a").moves) == 1


def test_records_without_a_usable_summary_stay_warm_and_are_named(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(0)), tier=Tier.WARM, content=LONG)
    moves = moves_of("a", source=Tier.WARM, target=Tier.COLD)
    with connection() as conn:
        done = tier_move.archive(conn, OPERATION, moves, {}, min_bytes=4_096)
    assert (done.moves, done.set_aside) == ([], {moves[0].key: "no summary"})
    assert tiers() == {"a": Tier.WARM}


def test_explicit_restore_counts_as_use_and_promotion_does_not(memory: Storage) -> None:
    assert memory
    old = timedelta(days=20)
    store(("a", old), ("b", old), tier=Tier.WARM)
    archive("a", "b")
    restore("a")
    restore("b", reason=Reason.ACCESS)
    ages = dict(fetch_all("SELECT id, now() - last_access_at FROM tier_records"))
    assert ages["a"] < timedelta(minutes=1)
    assert ages["b"] >= old
    assert fetch_all("SELECT reason FROM tier_moves WHERE target = 2 ORDER BY id") == [("restore",), ("access",)]


def test_restored_record_stays_through_the_next_pass(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(days=60)))
    limits = Policy(cooldown=None)
    for _ in range(2):
        run_pass(NS, limits)
    assert tiers() == {"a": Tier.COLD}
    producers.restore(NS, ["a"])
    drive()
    run_pass(NS, limits)
    assert tiers() == {"a": Tier.WARM}


def test_restore_of_records_that_are_not_cold_changes_nothing(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(0)))
    accepted = producers.restore(NS, ["a", "a"])
    drive()
    assert (accepted.ids, accepted.written, tiers()) == (("a",), 0, {"a": Tier.HOT})
    assert producers.operation(accepted.operation_id).state == "done"


def test_eviction_removes_record_words_body_and_log(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(0)), ("b", timedelta(0)), tier=Tier.WARM, content=LONG)
    archive("a", "b")
    with connection() as conn:
        done = tier_move.shift(conn, OPERATION, moves_of("a", source=Tier.COLD, target=None))
    assert done.receipt()["evicted"] == 1
    assert tiers() == {"b": Tier.COLD}
    for table in ("cold_bodies", "tier_moves", "cold_words"):
        rows = fetch_all(f"SELECT count(DISTINCT record_key) FROM {table}")
        assert rows == [(1,)], table


@pytest.mark.parametrize("start", [Tier.HOT, Tier.WARM])
def test_another_text_moves_a_record_with_a_reason_and_a_trace(
    memory: Storage, monkeypatch: pytest.MonkeyPatch, start: Tier
) -> None:
    assert memory
    told: list[Any] = []
    monkeypatch.setattr(produce_records, "emit", lambda event, **_: told.append(event))
    store(("a", timedelta(0)), ("b", timedelta(0)), tier=Tier.WARM, content=LONG)
    archive("a")
    before = fetch_all("SELECT max(id) FROM tier_moves")[0][0]
    done = producers.remember_records(NS, [NewRecord(i, "moss", datetime.now(UTC), tier=start) for i in "abc"])
    drive()
    logged = """SELECT r.id, m.source, m.target, m.reason, m.operation_id
                FROM tier_moves AS m JOIN tier_records AS r ON r.key = m.record_key WHERE m.id > %(id)s ORDER BY r.id"""
    wanted = [("a", 1, start.rank, "restore", done.operation_id)]
    if start is Tier.HOT:
        wanted.append(("b", 2, 3, "restore", done.operation_id))
    assert fetch_all(logged, {"id": before}) == wanted
    assert told[-1] == RecordsRemembered(3, len(wanted))
    assert next(m.reason for m in producers.explain(NS, "a").moves) == "restore"
    assert tiers() == dict.fromkeys("abc", start) | ({} if start is Tier.HOT else {"b": Tier.WARM})


def test_a_report_names_the_records_that_left_until_they_are_forgotten(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(days=9)), ("b", timedelta(days=9)), ("c", timedelta(0)), tier=Tier.WARM)
    archive("a", "b")
    run_pass(NS, policy(cold_capacity=0))
    named = "SELECT receipt -> 'evicted_ids' FROM operation_steps WHERE receipt ? 'evicted_ids'"
    assert fetch_all(named) == [(["a", "b"],)]
    producers.forget(NS, ["a"])
    assert fetch_all(named) == [(["b"],)]


def test_pinned_records_are_neither_planned_nor_evicted(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(days=900)), pinned=True)
    assert counted(run_pass(NS, Policy(hot_capacity=0, warm_capacity=0, cold_capacity=0, cooldown=None))) == (0, 0, 0)
    with connection() as conn:
        assert tier_move.shift(conn, OPERATION, moves_of("a", source=Tier.HOT, target=None)).changed == 1
    assert tiers() == {"a": Tier.HOT}
