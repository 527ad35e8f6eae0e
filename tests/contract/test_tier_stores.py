"""One suite for every store of tiered memory: what the port promises, whatever is behind it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tier_stores import KINDS, NS, T0, Opened, as_kept, record, tier_of

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.bodies import BodyStore
from isotherm.pipeline.tier.composite import CompositeStore
from isotherm.pipeline.tier.manager import NamespaceStore
from isotherm.pipeline.tier.memory_store import MemoryStore
from isotherm.pipeline.tier.outline import OutlineStore
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import MOST_LISTED, Position, StoredRecord

if TYPE_CHECKING:
    from isotherm.pipeline.tier.store import Store

FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
# What a name may hold: any character but controls and unpaired surrogates, and not only white space.
NAMES = st.one_of(
    st.sampled_from(
        [
            "a",
            "b",
            "a:b",
            "a:",
            ":a",
            ":",
            "a_b",
            "a%3Ab",
            "a/b",
            "../a",
            ".",
            "A",
            "\uff41",
            "é",
            "e\u0301",
            "*",
            "{a}",
        ]
    ),
    st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=6).filter(lambda t: not t.isspace()),
)
MAYBE = st.none() | NAMES
NAMESPACES = st.builds(Namespace, agent=NAMES, session=MAYBE, scope=NAMES, run=MAYBE, tenant=MAYBE)


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, opened: Opened) -> Store:
    return opened.open(request.param)


def put(store: Store, given: StoredRecord, namespace: Namespace = NS) -> StoredRecord:
    return store.put(namespace, replace(given, tier=tier_of(store)))


def ids(store: Store, namespace: Namespace = NS, limit: int = 100, after: Position | None = None) -> list[str]:
    return [r.id for r in store.list(namespace, tier_of(store), limit, after)]


def paged(store: Store, size: int, namespace: Namespace = NS) -> list[str]:
    found: list[str] = []
    after = None
    while page := store.list(namespace, tier_of(store), size, after):
        assert len(page) <= size
        found += [r.id for r in page]
        after = page[-1].position
    return found


def full(record_id: str = "r1") -> StoredRecord:
    return record(
        record_id, "kélp \U0001f30a \ufffd ' \" \\ \n\t", age=0.000001, role="user", importance=0.8, categories=("a", "ü"),
        metadata={"n": 1, "big": 2**100, "x": 0.1, "deep": [{"a": None, "b": True}], "searchable": "kelp"}, pinned=True,
        access_count=7, heat_log=12.345678901234567, value_log=-3.25, moved_at=T0, moved_from=Tier.HOT,
    )  # fmt: skip


def test_what_was_put_is_got_whole(store: Store) -> None:
    given = replace(full(), tier=tier_of(store), summary="short" if tier_of(store) is Tier.COLD else None)
    stored = store.put(NS, given)
    assert stored == as_kept(given, store, version=1)
    assert store.get(NS, "r1") == stored
    assert list(store.list(NS, stored.tier)) == [stored]


def test_put_over_a_record_replaces_it_and_raises_the_version(store: Store) -> None:
    first = put(store, full())
    second = put(store, replace(full(), content="eelgrass", pinned=False, metadata={}, access_count=0, version=99))
    assert (first.version, second.version) == (1, 2)
    assert store.get(NS, "r1") == second
    assert second.content == "eelgrass"
    assert not second.pinned
    assert store.count(NS, second.tier) == 1


def test_what_is_not_there_is_none_and_cannot_be_deleted(store: Store) -> None:
    assert store.get(NS, "r1") is None
    assert store.delete(NS, "r1") is False
    assert store.count(NS, tier_of(store)) == 0
    assert list(store.list(NS, tier_of(store))) == []


def test_deleted_is_gone_from_every_view_and_may_come_back(store: Store) -> None:
    put(store, record("a"))
    put(store, record("b"))
    assert store.delete(NS, "a") is True
    assert store.delete(NS, "a") is False
    assert store.get(NS, "a") is None
    assert ids(store) == ["b"]
    assert store.count(NS, tier_of(store)) == 1
    put(store, record("a", "again"))
    assert ids(store) == ["a", "b"]


def test_swap_stores_only_over_what_was_read(store: Store) -> None:
    first = put(store, record())
    touched = store.swap(NS, first, replace(first, access_count=1))
    assert touched == replace(first, access_count=1, version=2)
    assert store.swap(NS, first, replace(first, content="lost")) is None
    assert store.get(NS, "r1") == touched


def test_swap_over_nothing_creates_once(store: Store) -> None:
    new = replace(record(), tier=tier_of(store))
    assert store.swap(NS, None, new) == new
    assert store.swap(NS, None, replace(new, content="lost")) is None
    assert store.get(NS, "r1") == new


def test_swap_does_not_bring_back_what_was_deleted(store: Store) -> None:
    read = put(store, record())
    store.delete(NS, "r1")
    assert store.swap(NS, read, replace(read, content="back")) is None
    assert store.get(NS, "r1") is None
    again = put(store, record("r1", "another"))
    assert store.swap(NS, read, replace(read, content="back")) is None
    assert store.get(NS, "r1") == again


def test_lists_newest_access_first_whatever_the_order_of_writing(store: Store) -> None:
    for name, age in [("old", 50), ("new", 0.000001), ("mid", 7), ("newest", 0), ("ancient", 3e9), ("future", -3e9)]:
        put(store, record(name, age=age))
    assert ids(store) == ["future", "newest", "new", "mid", "old", "ancient"]
    put(store, record("old", age=-1))
    assert ids(store) == ["future", "old", "newest", "new", "mid", "ancient"]
    assert ids(store, limit=2) == ["future", "old"]


def test_ties_are_ordered_by_id_byte_by_byte(store: Store) -> None:
    names = ["b", "a", "B", "ab", "é", "z", "\U0001f30a", "\uffee", "a b", "aa"]
    for name in names:
        put(store, record(name))
    assert ids(store) == sorted(names, key=str.encode)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_pages_have_no_gap_and_no_repeat(store: Store, size: int) -> None:
    names = [f"r{n:02d}" for n in range(20)]
    for n, name in enumerate(names):
        put(store, record(name, age=n // 4))  # four of each age
    assert paged(store, size) == names


def test_a_page_continues_behind_a_record_that_is_gone(store: Store) -> None:
    for n in range(5):
        put(store, record(f"r{n}", age=n))
    page = store.list(NS, tier_of(store), 2)
    store.delete(NS, page[-1].id)
    assert ids(store, after=page[-1].position) == ["r2", "r3", "r4"]


@pytest.mark.parametrize("limit", [0, -1, MOST_LISTED + 1])
def test_a_page_of_a_bad_length_is_refused(store: Store, limit: int) -> None:
    with pytest.raises(RejectedError, match="limit"):
        store.list(NS, tier_of(store), limit)


def test_a_store_of_one_level_keeps_everything_as_it_and_nothing_elsewhere(store: Store) -> None:
    if len(store.levels) > 1:
        pytest.skip("keeps several levels")
    for tier in Tier:
        store.put(NS, record(f"as {tier}", tier=tier))
    (own,) = store.levels
    assert {r.tier for r in store.list(NS, own)} == {own}
    assert store.count(NS, own) == 3
    for other in set(Tier) - {own}:
        assert store.count(NS, other) == 0
        assert list(store.list(NS, other)) == []


def test_a_store_of_several_levels_has_each_record_in_one(store: Store) -> None:
    if len(store.levels) == 1:
        pytest.skip("keeps one level")
    tiers = sorted(store.levels, key=lambda tier: tier.rank)
    moved = store.put(NS, record(tier=tiers[0]))
    for tier in [*tiers[1:], *reversed(tiers)]:
        held = store.swap(NS, moved, replace(moved, tier=tier))
        assert held is not None
        moved = held
        assert store.get(NS, "r1") == moved
        assert {t: store.count(NS, t) for t in tiers} == {t: int(t is tier) for t in tiers}
        assert [r for t in tiers for r in store.list(NS, t)] == [moved]


@FEW
@given(first=NAMESPACES, second=NAMESPACES, name=NAMES)
def test_namespaces_are_injective(store: Store, first: Namespace, second: Namespace, name: str) -> None:
    store.delete(first, name)
    store.delete(second, name)
    mine = put(store, record(name, "mine"), first)
    if first != second:
        assert store.get(second, name) is None
        theirs = put(store, record(name, "theirs"), second)
        assert store.get(second, name) == theirs
        store.delete(second, name)
    assert store.get(first, name) == mine
    assert store.count(first, mine.tier) >= 1


def test_agents_and_tenants_with_colons_stay_apart(store: Store) -> None:
    spaces = [
        Namespace.of("a", "s"), Namespace.of("a:b", "s"), Namespace.of("a", "b:s"), Namespace.of("a", "s", tenant="t"),
        Namespace.of("a", "s", tenant="u"), Namespace.of("a", "s", run="r"), Namespace.of("a"), Namespace.of("a", "t/s"),
    ]  # fmt: skip
    for n, space in enumerate(spaces):
        put(store, record("x", f"text {n}"), space)
    for n, space in enumerate(spaces):
        assert [r.content for r in store.list(space, tier_of(store))] == [f"text {n}"]
    store.delete(spaces[0], "x")
    assert [store.count(space, tier_of(store)) for space in spaces] == [0, *[1] * 7]


@pytest.mark.parametrize("bad", ["", " ", "a\0b", "\0", "a\nb", "\ud800", "x" * 513])
def test_names_that_cannot_be_kept_are_refused_at_the_door(store: Store, bad: str) -> None:
    tier = tier_of(store)
    calls: list[Any] = [
        lambda: store.put(NS, replace(record(), id=bad)),
        lambda: store.swap(NS, None, replace(record(), id=bad)),
        lambda: store.get(NS, bad),
        lambda: store.delete(NS, bad),
    ]
    for part in ("agent", "session", "scope", "run", "tenant"):
        space = replace(NS, **{part: bad})
        calls += [
            lambda space=space: store.put(space, record()),
            lambda space=space: store.swap(space, None, record()),
            lambda space=space: store.get(space, "r1"),
            lambda space=space: store.delete(space, "r1"),
            lambda space=space: store.list(space, tier),
            lambda space=space: store.count(space, tier),
        ]
    for call in calls:
        with pytest.raises(RejectedError):
            call()
    assert store.count(NS, tier) == 0


@FEW
@given(names=st.lists(NAMES, min_size=1, max_size=5, unique=True))
def test_ids_of_any_text_never_collide(store: Store, names: list[str]) -> None:
    for name in names:
        put(store, record(name, f"text of {name!r}"))
    for name in names:
        found = store.get(NS, name)
        assert found is not None
        assert (found.id, found.content) == (name, f"text of {name!r}")
    assert set(names) <= set(ids(store, limit=MOST_LISTED))
    for name in names:
        assert store.delete(NS, name)
    assert store.count(NS, tier_of(store)) == 0


def test_long_ids_are_kept_whole(store: Store) -> None:
    names = ["x" * 511 + end for end in "abc"] + ["\U0001f30a" * 128, "é" * 256]
    for name in names:
        put(store, record(name))
    assert sorted(paged(store, 2)) == sorted(names)
    assert all(store.get(NS, name) for name in names)


def test_bodies_of_several_mebibytes_come_back_whole(store: Store) -> None:
    text = "kelp \U0001f30a " * 700_000  # some 7 MB
    stored = put(store, record(content=text))
    found = store.get(NS, "r1")
    assert found == stored
    assert found is not None
    assert found.content == text


def test_records_larger_than_any_are_refused(store: Store) -> None:
    large = replace(record(), content="x" * (16 * 1024 * 1024 + 1))
    with pytest.raises(RejectedError, match="content"):
        store.put(NS, large)
    assert store.count(NS, tier_of(store)) == 0


def test_concurrent_changes_by_swap_lose_nothing(store: Store) -> None:
    put(store, record())

    def touch(_: int) -> None:
        while True:
            seen = store.get(NS, "r1")
            assert seen is not None
            if store.swap(NS, seen, replace(seen, access_count=seen.access_count + 1)):
                return

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(touch, range(24)))
    found = store.get(NS, "r1")
    assert found is not None
    assert (found.access_count, found.version) == (24, 25)
    assert ids(store) == ["r1"]


def test_evicted_is_only_what_was_read(store: Store) -> None:
    first = put(store, record("a"))
    put(store, record("b"))
    second = store.swap(NS, first, replace(first, access_count=1))
    assert second is not None
    assert store.evict(NS, first) is False
    assert store.get(NS, "a") == second
    assert store.evict(NS, second) is True
    assert store.evict(NS, second) is False
    assert (store.get(NS, "a"), ids(store), store.count(NS, tier_of(store))) == (None, ["b"], 1)
    again = put(store, record("a", "again"))
    assert store.evict(NS, first) is False
    assert store.get(NS, "a") == again
    assert ids(store) == ["a", "b"]


def test_of_an_eviction_and_a_change_at_once_one_is_done(store: Store) -> None:
    with ThreadPoolExecutor(2) as threads:
        for n in range(8):
            read = put(store, record("a", f"round {n}"))
            start = threading.Barrier(2)

            def gone(read: StoredRecord = read, start: threading.Barrier = start) -> bool:
                start.wait()
                return store.evict(NS, read)

            def changed(read: StoredRecord = read, start: threading.Barrier = start) -> StoredRecord | None:
                start.wait()
                return store.swap(NS, read, replace(read, content="changed"))

            evicted, swapped = threads.submit(gone), threads.submit(changed)
            assert evicted.result() is (swapped.result() is None)
            assert store.get(NS, "a") == swapped.result()


def test_concurrent_put_and_delete_leave_all_views_agreeing(store: Store) -> None:
    names = ["a", "b", "c"]
    start = threading.Barrier(6)

    def work(worker: int) -> None:
        start.wait()
        for n in range(6):
            name = names[(worker + n) % 3]
            if (worker + n) % 2:
                put(store, record(name, f"{worker} {n}", age=(worker * 7 + n) % 5))
            else:
                store.delete(NS, name)

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(work, range(6)))
    there = [name for name in names if store.get(NS, name) is not None]
    assert sorted(ids(store)) == there
    assert store.count(NS, tier_of(store)) == len(there)
    for name in names:
        put(store, record(name, age=1))
    assert ids(store) == names


def test_a_naive_time_is_refused(store: Store) -> None:
    naive = replace(record(), last_access_at=T0.replace(tzinfo=None) + timedelta(0))
    with pytest.raises(RejectedError, match="last_access_at"):
        store.put(NS, naive)


def test_outlines_are_the_list_without_texts(store: Store) -> None:
    if not isinstance(store, OutlineStore):
        pytest.skip("lists whole records only")
    for n, tier in enumerate(sorted(store.levels, key=lambda tier: tier.rank)):
        store.put(NS, replace(full(f"a{n}"), tier=tier, summary="short" if tier is Tier.COLD else None))
        store.put(NS, record(f"b{n}", "whole", tier=tier, age=5))
    for tier in Tier:
        whole, outlined = store.list(NS, tier), store.outline(NS, tier)
        assert [replace(o.record, content="") for o in outlined] == [replace(r, content="") for r in whole]
        for outline, one in zip(outlined, whole, strict=True):
            assert (outline.size_bytes, outline.content_sha256) == (len(one.content.encode()), one.content_sha256.hex())
            assert outline.record.content in {"", one.content}
        if len(whole) > 1:
            assert [o.record.id for o in store.outline(NS, tier, 1, whole[0].position)] == [whole[1].id]


def test_namespaces_are_those_that_have_records(store: Store) -> None:
    if not isinstance(store, NamespaceStore):
        pytest.skip("does not list namespaces")
    spaces = [NS, Namespace.of("a:b", None, tenant="t"), Namespace.of("a", "b", run="r")]
    for space in spaces:
        put(store, record(), space)
    assert sorted(store.namespaces(), key=repr) == sorted(spaces, key=repr)
    store.delete(spaces[1], "r1")
    assert sorted(store.namespaces(), key=repr) == sorted([spaces[0], spaces[2]], key=repr)


@pytest.mark.parametrize("wrong", ["hot missing", "cold store for hot", "single level index"])
def test_a_composite_of_bad_levels_is_refused_when_it_is_built(opened: Opened, wrong: str) -> None:
    hot, warm, cold = opened.redis(), MemoryStore({Tier.WARM}), opened.cold_folder()
    bodies: dict[Tier, BodyStore] = {Tier.HOT: hot, Tier.WARM: warm, Tier.COLD: cold}
    index: Store = MemoryStore()
    if wrong == "hot missing":
        del bodies[Tier.HOT]
    elif wrong == "cold store for hot":
        bodies[Tier.HOT] = cold
    else:
        index = hot
    with pytest.raises(RejectedError, match=r"hot|warm"):
        CompositeStore(index, bodies, Policy())
