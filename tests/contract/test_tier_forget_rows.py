"""What a store over PostgreSQL forgets beside its rows: objects of large bodies, and what steps have answered."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from tier_stores import NS, record

from isotherm.pipeline.errors import NotFoundError, RejectedError, TransientError
from isotherm.pipeline.tier.blobs import owner_prefix
from isotherm.pipeline.tier.manager import Manager
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import cold_blobs
from isotherm.storage.postgres.cold_bodies import compressed
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.postgres.reach import system
from isotherm.storage.tier_stores.postgres import PostgresStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.pipeline.tier.blobs import BlobStore
    from isotherm.storage.opened import Storage

KELP = "kelp " * 5_000


@pytest.fixture(scope="module")
def row_security() -> bool:
    """With the second lock on: a store reaches what it forgets, and nothing else."""
    return True


class Blobs:
    """A blob store that is away while told so, or holds what is no body."""

    def __init__(self, inner: BlobStore) -> None:
        self.inner = inner
        self.away = False
        self.too_long = False

    def put(self, key: str, data: bytes) -> None:
        self.inner.put(key, data)

    def get(self, key: str) -> bytes | None:
        if self.too_long:
            raise RejectedError("longer than any body")
        return self.inner.get(key)

    def delete(self, key: str) -> None:
        if self.away:
            raise TransientError("no blob store")
        self.inner.delete(key)

    def keys(self, prefix: str) -> Iterator[str]:
        return self.inner.keys(prefix)


@pytest.fixture
def store(kept_storage: Storage) -> PostgresStore:
    found = PostgresStore(kept_storage.tier, kept_storage.patience, Blobs(kept_storage.blobs))
    found.forget_all(NS)
    return found


def with_object(store: PostgresStore) -> Blobs:
    """A cold record whose body is an object, as passes of workers leave it. Returns: the store of that object."""
    store.put(NS, record("r1", KELP, tier=Tier.COLD, summary="kelp"))
    ((key,),) = fetch_all("SELECT key FROM tier_records")
    body, blobs = compressed(KELP.encode()), store._blobs
    assert isinstance(blobs, Blobs)
    with system(), connection() as conn:
        (blob,) = cold_blobs.announce(conn, {int(key): len(body)}).values()
        blobs.put(blob.object_key, body)
        cold_blobs.make_live(conn, [blob.id])
        conn.execute("UPDATE cold_bodies SET body = NULL, blob_id = %s", (blob.id,))
    return blobs


@pytest.mark.parametrize("ids", [None, ["r1"]])
def test_the_object_of_a_body_goes_with_its_record(store: PostgresStore, ids: list[str] | None) -> None:
    blobs = with_object(store)
    manager = Manager(store, Policy())
    assert manager.get(NS, "r1").content == KELP
    blobs.away = True
    for _ in range(2):
        with pytest.raises(TransientError):
            manager.forget(NS, ids)
    assert len(list(blobs.keys(owner_prefix(NS)))) == 1
    blobs.away = False
    assert manager.forget(NS, ids).verified
    assert list(blobs.keys(owner_prefix(NS))) == []
    assert fetch_all("SELECT count(*) FROM cold_blobs WHERE state <> 'live'") == [(0,)]


def test_an_object_that_a_backup_copies_is_not_said_to_be_gone(store: PostgresStore) -> None:
    blobs = with_object(store)
    with system(), connection() as backup:
        assert cold_blobs.hold(backup)
        with pytest.raises(TransientError, match="backup"):
            store.delete(NS, "r1")
        assert len(list(blobs.keys(owner_prefix(NS)))) == 1
        backup.execute("SELECT pg_advisory_unlock_all()")
    assert store.delete(NS, "r1") is False
    assert list(blobs.keys(owner_prefix(NS))) == []


def answered(store: PostgresStore, *, state: str = "pending") -> UUID:
    """A step of a pass that has the summary of a record. Returns: its operation."""
    store.put(NS, record("r1"))
    ((key, namespace_id, bank_id),) = fetch_all("SELECT key, namespace_id, bank_id FROM tier_records")
    operation = uuid4()
    with system(), connection() as conn:
        conn.execute(
            """INSERT INTO operations (id, kind, trace_id, bank_id, namespace_id)
               VALUES (%s, 'tier.restore', %s, %s, %s)""",
            (operation, uuid4(), bank_id, namespace_id),
        )
        conn.execute(
            """INSERT INTO operation_steps (operation_id, stage, queue, input, input_hash, retry_until, nudge_at, state, finished_at, answer)
               VALUES (%s, 'cold.summarize', 'llm', '{}', '', now(), now(), %s,
                       CASE WHEN %s <> 'pending' THEN now() END,
                       jsonb_build_object('summaries', jsonb_build_object(%s::text, 'of kelp')))""",
            (operation, state, state, str(key)),
        )
    return operation


ANSWER = "SELECT answer::text FROM operation_steps WHERE operation_id = %(id)s"


@pytest.mark.parametrize("whole", [False, True])
def test_answers_of_steps_forget_the_record_too(store: PostgresStore, *, whole: bool) -> None:
    operation = answered(store)
    if whole:
        assert store.forget_all(NS) == 1
    else:
        assert store.delete(NS, "r1") is True
    assert fetch_all(ANSWER, {"id": operation}) == [('{"summaries": {}}',)]


def test_answers_about_records_that_went_before_go_with_the_namespace(store: PostgresStore) -> None:
    operation = answered(store, state="done")
    held = store.get(NS, "r1")
    assert held is not None
    assert store.evict(NS, held)
    assert store.forget_all(NS) == 0
    assert fetch_all(ANSWER, {"id": operation}) == [('{"refused": {}, "summaries": {}}',)]


def lost(store: PostgresStore, how: str) -> None:
    """A cold record whose body is gone or no body."""
    blobs = with_object(store)
    (name,) = blobs.keys(owner_prefix(NS))
    if how == "object gone":
        blobs.delete(name)
        return
    if how == "object too long":
        blobs.too_long = True
        return
    with system(), connection() as conn:
        conn.execute("UPDATE cold_bodies SET body = 'noise', blob_id = NULL")


@pytest.mark.parametrize("how", ["object gone", "object too long", "noise"])
@pytest.mark.parametrize("tier", [Tier.HOT, Tier.COLD])
def test_a_record_whose_body_is_lost_may_be_remembered_again(store: PostgresStore, how: str, tier: Tier) -> None:
    lost(store, how)
    assert store.get(NS, "r1") is None
    given = record("r1", KELP, tier=tier, summary="kelp" if tier is Tier.COLD else None)
    again = store.swap(NS, None, given)
    assert again is not None
    assert store.get(NS, "r1") == again
    assert (again.tier, again.version) == (tier, 2)
    assert store.swap(NS, None, given) is None


@pytest.mark.parametrize("how", ["object gone", "noise"])
def test_a_record_is_put_over_a_lost_one_of_the_same_text(store: PostgresStore, how: str) -> None:
    lost(store, how)
    again = store.put(NS, record("r1", KELP, tier=Tier.COLD, summary="kelp"))
    assert store.get(NS, "r1") == again


def test_a_pass_sets_a_lost_record_aside(store: PostgresStore) -> None:
    lost(store, "noise")
    store.put(NS, record("r2", "eelgrass", tier=Tier.COLD, age=-60))
    manager = Manager(store, Policy.single_level().model_copy(update={"cold_capacity": 1, "cooldown": None}))
    assert [one.record_id for one in manager.reconcile(NS).set_aside] == ["r1"]
    assert manager.reconcile(NS).evicted == ("r2",)
    with pytest.raises(NotFoundError):
        manager.get(NS, "r1")


def test_a_record_stored_in_another_tier_has_a_reason_in_the_log(store: PostgresStore) -> None:
    held = store.put(NS, record("r1", KELP))
    for tier in (Tier.COLD, Tier.HOT, Tier.WARM):
        held = store.put(NS, replace(held, tier=tier))
    assert fetch_all("SELECT source, target, reason FROM tier_moves ORDER BY id") == [
        (3, 2, "restore"),
        (2, 1, "restore"),
        (1, 2, "restore"),
        (2, 3, "restore"),
        (3, 2, "restore"),
    ]
