"""Writes, moves, verbs and ticks stay on their indexes in a namespace of 100,000 records, by a plan for their values or for any."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pytest
from explaining import explained

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.edits import RecordEdit
from isotherm.pipeline.tier.plan import Move
from isotherm.pipeline.tier.records import NewRecord, Reason, Tier
from isotherm.storage.postgres import (
    cold_blobs,
    quotas,
    sweep,
    tier_edit,
    tier_export,
    tier_forget,
    tier_held,
    tier_index,
    tier_move,
    tier_reembed,
    tier_touch,
    tier_vectors,
    tier_write,
)
from isotherm.storage.postgres.namespaces import Place, Scope
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.tier_write import Patience, Placed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LARGE = Namespace.of("large", "s")
NOW = datetime.now(UTC)
PATIENCE = Patience(timedelta(days=1), timedelta(days=1), timedelta(0))
OPERATION = uuid4()
# Records of one call. What is read for them is a few times as much, whatever the namespace has: 100,000 rows are 8,000 pages.
COUNT = 20
FEW, PAGES = 5 * COUNT, 1_000


@pytest.fixture
def conn(filled_rows: str) -> Iterator[Any]:
    with explained(filled_rows) as found:
        yield found


def ids_of(conn: Any) -> Place:
    sql = "SELECT id, bank_id FROM namespaces WHERE agent = 'large' AND session = 's'"
    return Place(*conn.plain(sql)[0])


def keys(conn: Any, which: str = "true", count: int = COUNT) -> list[int]:
    """Records of the large namespace, from among the others."""
    sql = f"SELECT key FROM tier_records WHERE namespace_id = %s AND {which} ORDER BY id OFFSET 500 LIMIT %s"
    found = [row[0] for row in conn.plain(sql, (ids_of(conn).namespace_id, count))]
    assert len(found) == count
    return found


def moves(conn: Any, source: Tier, target: Tier | None, reason: Reason = Reason.IDLE) -> list[Move]:
    found = keys(conn, f"tier = {source.rank} AND NOT pinned")
    return [Move(key, 1, source, target, reason) for key in found]


def operation(conn: Any) -> NewOperation:
    place = ids_of(conn)
    return NewOperation(uuid4(), "tier.test", uuid4(), place.bank_id, place.namespace_id)


def records(names: Sequence[str], content: str) -> list[NewRecord]:
    return [NewRecord(id=name, content=content, created_at=NOW) for name in names]


def test_new_and_changed_records_are_written_by_their_keys(conn: Any) -> None:
    """Among the changed ones are cold ones with a body of their own, and some that have a vector."""
    sent = [row[0] for row in conn.plain("SELECT id FROM outbox LIMIT 9")]
    given = records([f"r{n}" for n in range(9, 200, 10)], "other") + records([f"new{n}" for n in range(COUNT)], "new")
    columns = tier_write.columns([Placed(ids_of(conn), each) for each in given])
    done = tier_write.remember(conn, operation(conn), columns, PATIENCE, sent, embed=True)
    assert done.written == 2 * COUNT
    assert conn.stays_on(
        "cold_bodies_pkey", "tier_vectors_pkey", "outbox_pkey", "operations_pkey", rows=FEW, pages=PAGES * 2
    )


def test_words_are_written_by_the_keys_of_records_and_of_postings(conn: Any) -> None:
    some = keys(conn, "tier = 2") + keys(conn, "tier = 1")
    conn.plain("UPDATE tier_records SET indexed = false WHERE key = ANY(%s) RETURNING 1", (some,))
    found = tier_index.unindexed(conn, some)
    assert tier_index.write_terms(conn, [(each, [1, 2, 3]) for each in found]) == 2 * COUNT
    # Each word given is compared with each record that was asked about.
    pairs = 3 * (2 * COUNT) ** 2
    assert conn.stays_on("tier_records_pkey", "tier_postings_pkey", "cold_words_pkey", rows=pairs, pages=PAGES * 2)


def test_accesses_are_counted_by_the_keys_of_records(conn: Any) -> None:
    assert tier_touch.apply(conn, "batch", dict.fromkeys(keys(conn), 1), NOW, promote_access=1) == COUNT
    assert conn.stays_on("tier_records_pkey", rows=250, pages=PAGES)


def test_vectors_are_written_and_compared_by_the_keys_of_records(conn: Any) -> None:
    found = tier_vectors.unembedded(conn, keys(conn, "vector_state = 'none'"))
    assert tier_vectors.write(conn, "new", found[1:], np.ones((COUNT - 1, 64), np.float32)) == COUNT - 1
    assert tier_vectors.mark_failed(conn, found[:1]) == 1
    assert conn.stays_on("tier_records_pkey", "cold_bodies_pkey", rows=FEW, pages=PAGES)
    pairs = list(zip(keys(conn, "tier = 2 AND vector_state = 'done'"), keys(conn, "tier = 3"), strict=True))
    assert tier_vectors.between(conn, Scope(namespace=LARGE), pairs)
    assert conn.stays_on("tier_vectors_pkey", rows=FEW, pages=PAGES)


def test_records_are_shifted_and_evicted_by_their_keys(conn: Any) -> None:
    assert len(tier_move.shift(conn, OPERATION, moves(conn, Tier.WARM, Tier.HOT)).moves) == COUNT
    assert conn.stays_on("tier_records_pkey", rows=FEW, pages=PAGES)
    for source, words in ((Tier.HOT, "tier_postings_pkey"), (Tier.COLD, "cold_words_pkey")):
        assert len(tier_move.shift(conn, OPERATION, moves(conn, source, None)).moves) == COUNT
        gone = ("tier_vectors_pkey", "cold_bodies_pkey", "tier_moves_pkey", "tier_set_aside_pkey")
        assert conn.stays_on("tier_records_pkey", words, *gone, rows=FEW, pages=PAGES)


def test_records_are_archived_by_their_keys(conn: Any) -> None:
    going = moves(conn, Tier.WARM, Tier.COLD)
    sql = "UPDATE tier_records SET content = 'longer', content_sha256 = sha256('longer'), size_bytes = 6 WHERE key = ANY(%s) RETURNING 1"
    assert len(conn.plain(sql, ([move.key for move in going[:9]],))) == 9
    assert len(tier_move.texts(conn, going, min_bytes=5)) == len(tier_move.large(conn, going, 5)) == 9
    summaries = {move.key: "short" for move in going[:5]}
    done = tier_move.archive(conn, OPERATION, going, summaries, min_bytes=5, model="new")
    assert (len(done.moves), len(done.set_aside)) == (COUNT - 4, 4)
    assert conn.stays_on(
        "tier_records_pkey", "tier_vectors_pkey", "tier_postings_pkey", "tier_set_aside_pkey", rows=400, pages=PAGES
    )


def test_records_are_restored_by_their_keys(conn: Any) -> None:
    """Of those with a body of their own the stored bytes are none: they are set aside, as damaged."""
    coming = moves(conn, Tier.COLD, Tier.WARM, Reason.RESTORE)
    objects = tier_move.objects_of(conn, coming)
    done = tier_move.restore(conn, OPERATION, coming, embeds=True)
    assert len(done.moves) == len(done.set_aside) == COUNT // 2
    assert done.unembedded
    assert objects
    assert conn.stays_on(
        "tier_records_pkey", "cold_bodies_pkey", "cold_blobs_pkey", "cold_words_pkey", rows=250, pages=PAGES
    )


def test_records_are_set_aside_and_freed_by_their_keys(conn: Any) -> None:
    tier_held.hold(conn, dict.fromkeys(keys(conn), "no summary"), tier_held.Patience())
    tier_held.free(conn, keys(conn))
    assert conn.stays_on("tier_records_pkey", "tier_set_aside_pkey", rows=FEW, pages=PAGES)


def test_one_record_is_edited_by_its_id(conn: Any) -> None:
    edit = RecordEdit(content="new")
    done, _ = tier_edit.update(conn, operation(conn), "r19", edit, PATIENCE, expected_version=1, embed=True, now=NOW)
    assert done.lifted
    assert conn.stays_on(
        "tier_records_namespace_id_id_key", "cold_bodies_pkey", "tier_vectors_pkey", rows=250, pages=200
    )


def test_records_are_pinned_by_their_ids(conn: Any) -> None:
    place, ids = ids_of(conn), [f"r{n}" for n in range(9, 200, 10)]
    assert tier_edit.pin(conn, operation(conn), place, ids, PATIENCE, most=1_000)[0].records == COUNT
    assert tier_edit.unpin(conn, operation(conn), place, ids, PATIENCE)[0].records == COUNT
    tier_edit.check_pins(conn, [place.namespace_id], 1_000)
    assert conn.stays_on("tier_records_namespace_id_id_key", "tier_records_pinned", rows=250, pages=PAGES)


@pytest.mark.parametrize("after", [None, (NOW - timedelta(days=60), "r7")])
def test_records_are_exported_in_the_order_of_an_index(conn: Any, after: tuple[datetime, str] | None) -> None:
    found = tier_export.keys(conn, Scope(namespace=LARGE), after, 100)
    assert len(found) == 100
    assert conn.stays_on("tier_records_newest", rows=100, pages=150)
    assert len(tier_export.read(conn, Scope(namespace=LARGE), [row[1] for row in found])) == 100
    assert conn.stays_on(
        "tier_records_namespace_id_id_key", "cold_bodies_pkey", "cold_blobs_pkey", rows=100, pages=PAGES
    )


def test_records_are_forgotten_by_ids_and_a_namespace_in_the_order_of_its_index(conn: Any) -> None:
    place = ids_of(conn)
    found = tier_forget.lock_by_id(conn, place.namespace_id, [f"r{n}" for n in range(9, 200, 10)])
    assert len(found) == COUNT
    assert tier_forget.blobs_of(conn, place.namespace_id, found)
    assert conn.stays_on("tier_records_namespace_id_id_key", "cold_bodies_pkey", rows=500, pages=PAGES)
    values = {"namespaces": [place.namespace_id], "limit": COUNT}
    some = [row[0] for row in conn.execute(tier_forget._LOCK_RECORDS, values).fetchall()]
    assert len(some) == COUNT
    assert conn.stays_on("tier_records_namespace_id_id_key", rows=FEW, pages=PAGES)
    assert tier_forget.delete_records(conn, found + some)["records"] >= COUNT
    gone = ("tier_postings_pkey", "cold_words_pkey", "tier_vectors_pkey", "tier_moves_pkey", "tier_set_aside_pkey")
    assert conn.stays_on("tier_records_pkey", *gone, rows=5 * FEW, pages=PAGES)


@pytest.mark.parametrize("cold", [False, True])
def test_the_least_valuable_of_a_tenant_come_from_the_index_of_each_namespace(conn: Any, *, cold: bool) -> None:
    assert len(quotas.weakest(conn, None, most=10, cold=cold, now=NOW)) == (20 if cold else 10)
    assert len(quotas.weakest(conn, "tenant", most=10, cold=cold, now=NOW)) == (20 if cold else 10)
    assert quotas.usage(conn, None)[Tier.WARM].records > 80_000
    assert conn.stays_on("tier_records_by_value", "tier_depth_by_namespace", rows=15_000, pages=9_000)


def test_records_of_another_model_are_found_by_its_name_and_those_without_a_vector_by_their_keys(conn: Any) -> None:
    assert sum(map(len, tier_reembed.take(conn, "new", COUNT).values())) == COUNT
    assert conn.stays_on("tier_vectors_by_model", "tier_vectors_pkey", "tier_records_pkey", rows=FEW, pages=PAGES)
    assert sum(map(len, tier_reembed.take(conn, "new", 200).values())) == 200
    assert conn.stays_on("tier_vectors_by_model", "tier_records_pkey", rows=tier_reembed._LOOKED, pages=10_000)


def test_objects_to_collect_are_found_by_their_index(conn: Any) -> None:
    assert cold_blobs.condemn(conn, grace=timedelta(hours=1), limit=COUNT) == COUNT
    assert len(cold_blobs.dead(conn, COUNT)) == COUNT
    assert conn.stays_on("cold_blobs_to_collect", "cold_blobs_pkey", rows=300, pages=PAGES)
    announced = cold_blobs.announce(conn, dict.fromkeys(keys(conn, "tier = 2"), 9))
    assert len(cold_blobs.make_live(conn, [blob.id for blob in announced.values()])) == COUNT
    assert conn.stays_on("tier_records_pkey", "cold_blobs_pkey", rows=250, pages=PAGES)


def test_old_work_is_purged_oldest_first_by_its_index(conn: Any) -> None:
    assert sweep.purge(conn, keep_steps=timedelta(0), keep_operations=timedelta(0), limit=COUNT) == (COUNT, COUNT)
    steps = ("operation_steps_operation_id_stage_unit_key", "operation_steps_pkey")
    assert conn.stays_on(
        "operations_finished", "operations_pkey", *steps, "touch_batches_by_age", rows=4_000, pages=9_000
    )
