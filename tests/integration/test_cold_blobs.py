"""Large bodies of cold records: objects of the blob store and the rows that refer to them never disagree for good."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from inprocess import _READY, STAGES, check_database, drive, run_pass
from tiering import NS, OPERATION, moves_of, policy, tiers

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.blobs import owner_prefix
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage import cold
from isotherm.storage.postgres import cold_blobs, tier_move
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers, ticks

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage

TO_COLD = policy(warm_capacity=0)


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def noise(seed: int, chars: int = 60_000) -> str:
    """Text that compression leaves large."""
    letters = "abcdefghijklmnopqrstuvwxyz \u20ac\u00e9"
    return f"axolotl{seed} " + "".join(random.Random(seed).choices(letters, k=chars))


def store(*ids: str, namespace: Namespace = NS) -> dict[str, str]:
    texts = {i: noise(n) for n, i in enumerate(ids)}
    old = datetime.now(UTC) - timedelta(hours=1)
    producers.remember_records(namespace, [NewRecord(i, t, old, tier=Tier.WARM) for i, t in texts.items()])
    drive()
    return texts


def objects(memory: Storage) -> list[str]:
    return sorted(memory.blobs.keys(""))


def states() -> dict[str, int]:
    return dict(fetch_all("SELECT state, count(*) FROM cold_blobs GROUP BY state"))


def test_large_body_goes_to_the_blob_store_and_comes_back_byte_for_byte(memory: Storage) -> None:
    texts = store("a", "b")
    producers.remember_records(NS, [NewRecord("small", "kelp", datetime.now(UTC), tier=Tier.WARM)])
    before = memory.tier.get(NS, "a")
    run_pass(NS, TO_COLD)
    assert (states(), len(objects(memory))) == ({"live": 2}, 2)
    assert all(key.startswith(owner_prefix(NS)) for key in objects(memory))
    assert fetch_all("SELECT count(*) FROM cold_bodies WHERE body IS NOT NULL") == [(0,)]
    assert memory.tier.original(NS, "a") == texts["a"]
    memory.tail.invalidate(fetch_all("SELECT id FROM namespaces")[0][0])
    assert {r.id: r.content for r in memory.tier.tail(NS)} == {**texts, "small": "kelp"}
    assert "a" in [i.record.id for i in producers.recall(NS, "axolotl0").items]
    check_database()
    producers.restore(NS, ["a", "b"])
    drive()
    after = memory.tier.get(NS, "a")
    assert (after.content, after.metadata, after.content_sha256) == (texts["a"], before.metadata, before.content_sha256)
    assert (states(), len(objects(memory))) == ({"orphan": 2}, 2)
    assert ticks.collect() == {"objects": 2}
    assert (states(), objects(memory)) == ({}, [])


def test_second_archive_after_a_change_has_an_object_of_its_own(memory: Storage) -> None:
    store("a")
    run_pass(NS, TO_COLD)
    first = objects(memory)
    producers.remember_records(NS, [NewRecord("a", noise(9), datetime.now(UTC) - timedelta(hours=1), tier=Tier.WARM)])
    drive()
    assert states() == {"orphan": 1}
    run_pass(NS, TO_COLD)
    ticks.collect()
    assert (states(), len(objects(memory))) == ({"live": 1}, 1)
    assert objects(memory) != first
    assert memory.tier.original(NS, "a") == noise(9)


def test_eviction_lets_go_of_the_object(memory: Storage) -> None:
    store("a", "b")
    run_pass(NS, TO_COLD)
    run_pass(NS, policy(cold_capacity=1))
    assert len(tiers()) == 1
    ticks.collect()
    assert (states(), len(objects(memory))) == ({"live": 1}, 1)


@pytest.mark.parametrize("damage", ["missing", "other bytes", "of another record"])
def test_lost_object_quarantines_its_record_and_stops_nobody(memory: Storage, damage: str) -> None:
    texts = store("a", "b")
    run_pass(NS, TO_COLD)
    keys = dict(
        fetch_all("""SELECT r.id, o.object_key FROM cold_blobs AS o JOIN tier_records AS r ON r.key = o.record_key""")
    )
    kept = memory.blobs.get(keys["a"])
    assert kept is not None
    if damage == "missing":
        memory.blobs.delete(keys["a"])
    else:
        other = memory.blobs.get(keys["b"]) if damage == "of another record" else b"x"
        memory.blobs.put(keys["a"], other or b"")
    assert memory.tier.original(NS, "a") is None
    accepted = producers.restore(NS, ["a", "b"])
    drive(accepted.operation_id)
    report = producers.operation(accepted.operation_id).result
    assert report is not None
    word = "missing" if damage == "missing" else "does not match"
    assert [word in why for why in report["set_aside"].values()] == [True]
    assert tiers() == {"a": Tier.COLD, "b": Tier.WARM}
    (aside,) = producers.set_aside(None)
    assert (aside.id, aside.quarantined, aside.tier) == ("a", True, Tier.COLD)
    memory.tail.invalidate(fetch_all("SELECT id FROM namespaces")[0][0])
    assert {r.id: r.content for r in memory.tier.tail(NS)} == {"a": None, "b": texts["b"]}
    assert "a" in [i.record.id for i in producers.recall(NS, "axolotl0").items]
    run_pass(NS, policy(cold_capacity=0))
    assert "a" in tiers(), "what is quarantined is not evicted either"
    memory.blobs.put(keys["a"], kept)
    drive(producers.restore(NS, ["a"]).operation_id)
    assert (memory.tier.original(NS, "a"), producers.set_aside(None)) == (texts["a"], [])


def test_flip_that_meets_a_dead_upload_begins_again(memory: Storage) -> None:
    texts = store("a")
    moves = moves_of("a", source=Tier.WARM, target=Tier.COLD)
    uploads = cold.upload(moves, memory.blobs, blob_min_bytes=16_384)
    with connection() as conn:
        assert cold_blobs.condemn(conn, grace=timedelta(hours=1), limit=9) == 0, "an upload has its time"
        assert cold_blobs.condemn(conn, grace=timedelta(0), limit=9) == 1
    with pytest.raises(TransientError, match="1 uploads"), connection() as conn:
        tier_move.archive(conn, OPERATION, moves, {moves[0].key: "kelp"}, min_bytes=1_024, uploads=uploads)
    assert tiers() == {"a": Tier.WARM}
    ticks.collect()
    assert objects(memory) == []
    run_pass(NS, TO_COLD)
    assert (memory.tier.original(NS, "a"), states()) == (texts["a"], {"live": 1})


def test_upload_for_a_record_that_changed_meanwhile_is_let_go(memory: Storage) -> None:
    store("a")
    moves = moves_of("a", source=Tier.WARM, target=Tier.COLD)
    uploads = cold.upload(moves, memory.blobs, blob_min_bytes=16_384)
    producers.remember_records(NS, [NewRecord("a", noise(5), datetime.now(UTC), tier=Tier.WARM)])
    with connection() as conn:
        done = tier_move.archive(conn, OPERATION, moves, {moves[0].key: "kelp"}, min_bytes=1_024, uploads=uploads)
    assert (done.moves, done.changed, states()) == ([], 1, {"orphan": 1})


def test_store_that_is_away_delays_the_pass_and_no_read(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> bytes:
        raise TransientError("away")

    texts = store("a")
    with monkeypatch.context() as patched:
        patched.setattr(type(memory.blobs), "put", away)
        accepted = producers.reconcile(NS, TO_COLD)
        for _ in range(3):
            step = fetch_all("SELECT count(*) FROM operation_steps WHERE state = 'pending' AND waits > 0")
            if step != [(0,)]:
                break
            drive_one()
        assert tiers() == {"a": Tier.WARM}
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now()")
    drive(accepted.operation_id)
    assert tiers() == {"a": Tier.COLD}
    with monkeypatch.context() as patched:
        patched.setattr(type(memory.blobs), "get", away)
        memory.tail.invalidate(fetch_all("SELECT id FROM namespaces")[0][0])
        assert [r.content for r in memory.tier.tail(NS)] == [None]
        assert [i.record.id for i in producers.recall(NS, "axolotl0").items] == ["a"]
    assert memory.tier.original(NS, "a") == texts["a"]


def drive_one() -> None:
    step_id, operation, trace, stage = fetch_all(_READY, {"operation": None})[0]
    STAGES[stage]({"step_id": step_id, "operation_id": str(operation), "trace_id": str(trace)})
