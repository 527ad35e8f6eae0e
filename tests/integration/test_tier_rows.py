"""The store over PostgreSQL and the pipeline write the same rows, and each reads what the other has written."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from inprocess import check_database, drive, run_pass
from tier_stores import NS, record
from tiering import LONG, policy

from isotherm.pipeline.tier.records import NewRecord, Reason, Tier
from isotherm.storage.postgres.pool import fetch_all
from isotherm.storage.tier_stores.postgres import PostgresStore
from isotherm.tasks import producers

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage

NOW = datetime.now(UTC)


@pytest.fixture
def store(opened: Storage) -> PostgresStore:
    return PostgresStore(opened.tier, opened.patience, opened.blobs)


def test_a_producers_record_is_the_stores_and_back(store: PostgresStore) -> None:
    producers.remember_records(NS, [NewRecord("a", "kelp forest", NOW, role="user", metadata={"n": 1})])
    found = store.get(NS, "a")
    assert found is not None
    assert (found.content, found.tier, found.version, found.importance) == ("kelp forest", Tier.HOT, 1, 0.7)
    changed = store.swap(NS, found, replace(found, content="eelgrass meadow"))
    assert changed is not None
    drive()
    check_database()
    assert producers.get(NS, "a").content == "eelgrass meadow"
    assert [item.record.id for item in producers.recall(NS, "meadow").items] == ["a"]
    terms = fetch_all("SELECT count(*) FROM tier_postings")
    assert terms == [(2,)]


def test_what_a_pass_moved_the_store_sees_and_may_move_back(store: PostgresStore) -> None:
    at = NOW - timedelta(days=40)
    store.put(NS, record("old", LONG, tier=Tier.WARM, created_at=at, last_access_at=at))
    drive()
    run_pass(NS, policy(warm_ttl=timedelta(days=30)))
    cold = store.get(NS, "old")
    assert cold is not None
    assert (cold.tier, cold.content, cold.moved_from) == (Tier.COLD, LONG, Tier.WARM)
    assert cold.summary
    assert len(cold.summary) < len(LONG)
    warm = store.swap(NS, cold, replace(cold, tier=Tier.WARM, summary=None, moved_reason=Reason.RESTORE))
    assert warm is not None
    drive()
    check_database()
    logged = fetch_all("SELECT source, target, reason FROM tier_moves ORDER BY id")
    assert logged == [(2, 1, "ttl"), (1, 2, "restore")]


def test_a_bodys_object_is_read_and_let_go(store: PostgresStore, opened: Storage) -> None:
    store.put(NS, record("big", LONG, tier=Tier.COLD, summary="kelp"))
    (key,) = [row[0] for row in fetch_all("SELECT key FROM tier_records")]
    body = fetch_all("SELECT body FROM cold_bodies")[0][0]
    opened.blobs.put("a/b", body)
    fetch_all(
        """WITH made AS (INSERT INTO cold_blobs (object_key, bank_id, namespace_id, record_key, stored_bytes, state)
               SELECT 'a/b', bank_id, namespace_id, key, 1, 'live' FROM tier_records WHERE key = %(key)s RETURNING id)
           UPDATE cold_bodies SET body = NULL, blob_id = made.id FROM made RETURNING 1""",
        {"key": key},
    )
    cold = store.get(NS, "big")
    assert cold is not None
    assert cold.content == LONG
    hot = store.swap(NS, cold, replace(cold, tier=Tier.HOT, summary=None))
    assert hot is not None
    assert store.get(NS, "big") == hot
    assert fetch_all("SELECT state FROM cold_blobs") == [("orphan",)]


def test_the_tail_shows_what_the_store_changed(store: PostgresStore, opened: Storage) -> None:
    first = store.put(NS, record("a", "before"))
    assert [r.content for r in opened.tier.tail(NS)] == ["before"]
    store.swap(NS, first, replace(first, content="after"))
    assert [r.content for r in opened.tier.tail(NS)] == ["after"]
    store.delete(NS, "a")
    assert opened.tier.tail(NS) == []
    assert fetch_all("SELECT count(*) FROM tier_postings") == [(0,)]


def test_any_way_through_the_tiers_leaves_rows_as_passes_leave_them(store: PostgresStore) -> None:
    path = [Tier.COLD, Tier.WARM, Tier.HOT, Tier.WARM, Tier.COLD, Tier.COLD, Tier.HOT]
    summaries = ["kelp", None, None, None, None, "again", None]
    held = store.put(NS, record("a", LONG))
    for tier, summary in zip(path, summaries, strict=True):
        moved = store.swap(NS, held, replace(held, tier=tier, summary=summary))
        assert moved is not None
        held = moved
        assert store.get(NS, "a") == held
        drive()
        check_database()
    assert held.version == len(path) + 1


def test_a_pinned_record_is_listed_in_its_place(store: PostgresStore) -> None:
    for n in range(6):
        store.put(NS, record(f"r{n}", age=n, pinned=n % 2 == 0))
    assert [r.id for r in store.list(NS, Tier.HOT)] == [f"r{n}" for n in range(6)]
    third = store.list(NS, Tier.HOT, 3)[-1]
    assert [r.id for r in store.list(NS, Tier.HOT, 2, third.position)] == ["r3", "r4"]
