"""What every store forgets: a record with all that is kept of it, and a whole namespace with what no record names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tier_stores import KINDS, NS, Opened, record, tier_of

from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.manager import Manager, NamespaceStore
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.tier_stores.folder import FolderStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from isotherm.pipeline.tier.store import Store

OTHER = Namespace.of("atlas", "s2")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, opened: Opened) -> Store:
    return opened.open(request.param)


def test_a_forgotten_namespace_is_empty_and_the_others_are_as_they_were(store: Store) -> None:
    tiers = sorted(store.levels, key=lambda tier: tier.rank)
    for n in range(6):
        store.put(NS, record(f"r{n}", tier=tiers[n % len(tiers)], pinned=n % 2 == 0))
    kept = store.put(OTHER, record("r0", tier=tiers[0]))
    assert store.forget_all(NS) == 6
    assert [store.count(NS, tier) for tier in Tier] == [0, 0, 0]
    assert [list(store.list(NS, tier)) for tier in Tier] == [[], [], []]
    assert store.get(NS, "r0") is None
    assert (store.get(OTHER, "r0"), store.count(OTHER, tiers[0])) == (kept, 1)
    if isinstance(store, NamespaceStore):
        assert list(store.namespaces()) == [OTHER]
    assert store.forget_all(NS) == 0
    again = store.put(NS, record("r0", tier=tiers[0]))
    assert again.version == 1
    assert [r.id for r in store.list(NS, tiers[0])] == ["r0"]


def test_a_namespace_that_cannot_be_is_refused(store: Store) -> None:
    with pytest.raises(RejectedError):
        store.forget_all(Namespace(agent=" ", session="s"))


def folder_of(store: Any) -> bytes:
    paths = [path for path in store._folder.rglob("*") if path.is_file() and path.parent != store._folder]
    return b"".join(path.name.encode() + path.read_bytes() for path in paths)


def redis_of(store: Any) -> bytes:
    return b"".join(key + store._client.dump(key) for key in store._client.keys(f"{store._prefix}:*"))


def s3_of(store: Any) -> bytes:
    rows = list(store._objects.list(""))
    return b"".join(row.key.encode() + store._objects.get(row.key, max_bytes=2**30).body for row in rows)


def damage_folder(store: Any, record_id: str) -> None:
    row = store._index.find(NS, record_id)
    (store._folder / "records" / row.file[:2] / row.file).write_bytes(b"kelp that is no record")


def damage_redis(store: Any, record_id: str) -> None:
    store._client.hset(store._keys(NS)[0], record_id, b"0" * 16 + b"kelp that is no record")


def damage_s3(store: Any, _: str) -> None:
    (row,) = store._objects.list(f"{NS.key.hex()}/records/")
    store._objects.put(row.key, b"0" * 16 + b"kelp that is no record")


DAMAGED: dict[str, tuple[Callable[[Any, str], None], Callable[[Any], bytes]]] = {
    "folder": (damage_folder, folder_of),
    "redis": (damage_redis, redis_of),
    "s3": (damage_s3, s3_of),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_forgotten_namespace_leaves_nothing_of_what_was_set_aside(opened: Opened, kind: str) -> None:
    store: Any = opened.open(kind)
    damage, bytes_of = DAMAGED[kind]
    store.put(NS, record("r1"))
    damage(store, "r1")
    assert store.get(NS, "r1") is None
    store.put(NS, record("r2", "eelgrass"))
    assert b"kelp" in bytes_of(store)
    manager = Manager(store, Policy.single_level())
    receipt = manager.forget(NS)
    assert (receipt.ids, receipt.verified) == (("r2",), True)
    assert b"kelp" not in bytes_of(store)
    assert NS.key.hex().encode() not in bytes_of(store)


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_record_may_be_made_anew_before_anybody_read_it(opened: Opened, kind: str) -> None:
    store: Any = opened.open(kind)
    store.put(NS, record("r1"))
    DAMAGED[kind][0](store, "r1")
    again = store.swap(NS, None, record("r1", "again"))
    assert again is not None
    assert store.get(NS, "r1") == again
    assert [fault.record_id for fault in store.damaged()] == ["r1"]


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_record_that_nobody_has_read_is_forgotten_whole(opened: Opened, kind: str) -> None:
    store: Any = opened.open(kind)
    damage, bytes_of = DAMAGED[kind]
    store.put(NS, record("r1"))
    damage(store, "r1")
    store.delete(NS, "r1")
    assert b"kelp" not in bytes_of(store)
    if kind == "s3":
        assert list(store._objects.list(f"{NS.key.hex()}/names/")) == []
    store.put(NS, record("r1"))
    damage(store, "r1")
    assert store.get(NS, "r1") is None
    again = store.put(NS, record("r1", "eelgrass"))
    assert store.get(NS, "r1") == again
    assert store.delete(NS, "r1") is True
    assert b"kelp" not in bytes_of(store)
    assert store.count(NS, tier_of(store)) == 0


def test_what_a_new_index_could_not_read_is_forgotten_with_its_namespace(opened: Opened) -> None:
    store = opened.cold_folder()
    store.put(NS, record("r1"))
    store.put(OTHER, record("r1"))
    damage_folder(store, "r1")
    store.close()
    for index in store._folder.glob("index.sqlite*"):
        index.unlink()
    again = FolderStore(store._folder)
    opened.held.callback(again.close)
    assert b"kelp that" in folder_of(again)
    assert again.forget_all(NS) == 0
    assert b"kelp that" not in folder_of(again)
    assert again.count(OTHER, Tier.COLD) == 1


def test_a_file_that_stays_is_not_said_to_be_gone(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened.cold_folder()
    store.put(NS, record("r1"))
    with monkeypatch.context() as patch:
        patch.setattr("isotherm.storage.tier_stores.files.remove", _busy)
        for _ in range(2):
            with pytest.raises(UnavailableError):
                store.delete(NS, "r1")
        with pytest.raises(UnavailableError):
            store.forget_all(NS)
    assert len(folder_of(store)) > 0
    assert store.delete(NS, "r1") is False
    assert folder_of(store) == b""


def _busy(_: Path) -> None:
    raise OSError(16, "Device or resource busy")
