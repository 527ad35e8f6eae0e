from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from inprocess import drive, run_pass
from tiering import archive
from tiering import policy as limited

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.plan import Snapshot, State, plan_migration
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage.postgres import namespaces, tier_held, tier_index, tier_passes, tier_plan, tier_touch
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage

NS = Namespace.of("atlas", "s1")
NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
AGES = [timedelta(hours=h) for h in (0, 1, 23, 24, 25, 24 * 7, 24 * 7 + 1, 24 * 31, 24 * 400)]

_INSERT = """
INSERT INTO tier_records (namespace_id, bank_id, id, content, content_sha256, summary, importance, tier, pinned,
    access_count, heat_log, value_log, created_at, last_access_at, moved_at, moved_from, size_bytes, indexed)
VALUES (%(namespace)s, %(bank)s, %(id)s, CASE WHEN %(tier)s > 1 THEN 'x' END, sha256('x'),
        CASE WHEN %(tier)s = 1 THEN 'x' END, %(importance)s, %(tier)s, %(pinned)s, %(count)s, %(heat)s, %(value)s,
        %(created)s, %(accessed)s, %(moved)s, %(source)s, 1, true)"""
_WORDS_OF_COLD = """
INSERT INTO cold_words (record_key, bank_id, namespace_id, words)
SELECT key, bank_id, namespace_id, ARRAY[-namespace_id] FROM tier_records WHERE tier = 1"""


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def random_row(chooser: random.Random, number: int) -> dict[str, Any]:
    accessed = NOW - chooser.choice(AGES)
    count = chooser.choice([0, 0, 1, 2, 3, 4, 6, 7, 20])
    importance = chooser.choice([0.0, 0.5, 0.7, 1.0])
    tier = chooser.choice([1, 2, 3])
    heat_log = heat.add(None, accessed, count)
    moved = chooser.choice([None, NOW - timedelta(minutes=5), NOW - timedelta(hours=1), NOW - timedelta(days=9)])
    return {
        "id": f"r{number:03}",
        "tier": tier,
        "pinned": chooser.random() < 0.1 and tier > 1,
        "importance": importance,
        "count": count,
        "heat": heat_log,
        "value": heat.combine(heat.value_log(importance, accessed), heat_log),
        "created": NOW - chooser.choice(AGES),
        "accessed": accessed,
        "moved": moved,
        "source": None if moved is None else chooser.choice([t for t in (1, 2, 3) if abs(t - tier) == 1]),
    }


def random_policy(chooser: random.Random) -> Policy:
    def capacity() -> int | None:
        return chooser.choice([None, 0, 1, 3, 8, 15, 40])

    def age() -> timedelta | None:
        return chooser.choice([None, timedelta(0), timedelta(hours=24), timedelta(days=7), timedelta(days=30)])

    return Policy(
        hot_capacity=capacity(),
        warm_capacity=capacity(),
        cold_capacity=capacity(),
        hot_ttl=age(),
        warm_ttl=age(),
        demote_idle=age(),
        cold_ttl=age(),
        promote_access=chooser.choice([None, 1, 2, 3]),
        cooldown=chooser.choice([None, timedelta(hours=1)]),
        max_moves=chooser.choice([5_000, 5_000, 5_000, 7]),
    )


def everything(namespace_id: int) -> Snapshot:
    """What the planner would see if it were given every row."""
    rows = fetch_all(
        f"SELECT {tier_plan.COLUMNS} FROM tier_records AS r WHERE namespace_id = %(ns)s", {"ns": namespace_id}
    )
    states = [tier_plan.state_of(row) for row in rows]
    of: dict[Tier, list[State]] = {tier: [s for s in states if s.tier is tier] for tier in Tier}
    return Snapshot(
        counts={tier: len(of[tier]) for tier in Tier},
        expired=[*of[Tier.HOT], *of[Tier.WARM]],
        weakest=of,
        hottest=[*of[Tier.WARM], *of[Tier.COLD]],
        evictable=of[Tier.COLD],
    )


@pytest.mark.parametrize("seed", range(12))
def test_plan_from_the_indexes_is_the_plan_from_all_rows(memory: Storage, seed: int) -> None:
    assert memory
    chooser = random.Random(seed)
    place = namespaces.resolve(NS)
    stranger = namespaces.resolve(Namespace.of("atlas", "s2"))
    with connection() as conn:
        for number in range(chooser.choice([1, 10, 45])):
            row = random_row(chooser, number)
            conn.execute(_INSERT, {**row, "namespace": place.namespace_id, "bank": place.bank_id})
            conn.execute(_INSERT, {**row, "namespace": stranger.namespace_id, "bank": stranger.bank_id})
        conn.execute(_WORDS_OF_COLD)
    full = everything(place.namespace_id)
    for _ in range(25):
        policy = random_policy(chooser)
        with connection() as conn:
            bounded = tier_plan.snapshot(conn, place.namespace_id, policy, NOW)
        wanted = plan_migration(full, policy, NOW)
        found = plan_migration(bounded, policy, NOW)
        if wanted.truncated:
            # Which of the due moves come first may differ where a list was cut; how many, and that more are due, may not.
            assert (len(found.moves), found.truncated) == (len(wanted.moves), True)
        else:
            assert (found.moves, found.truncated) == (wanted.moves, False), policy


def test_snapshot_is_bounded_however_large_the_namespace_is(memory: Storage) -> None:
    assert memory
    place = namespaces.resolve(NS)
    chooser = random.Random(1)
    with connection() as conn:
        for number in range(300):
            row = {**random_row(chooser, number), "tier": 3, "source": None, "moved": None}
            conn.execute(_INSERT, {**row, "namespace": place.namespace_id, "bank": place.bank_id})
        policy = Policy(hot_capacity=10, max_moves=20)
        found = tier_plan.snapshot(conn, place.namespace_id, policy, NOW)
    assert found.truncated
    assert len(found.expired) <= 2 * 21
    assert len(found.weakest[Tier.HOT]) <= 20 + tier_plan._SPARE
    assert found.counts[Tier.HOT] == 300
    assert len(plan_migration(found, policy, NOW).moves) == 20


def due_at() -> datetime | None:
    moment: datetime | None = fetch_all("SELECT due_at FROM namespaces WHERE agent = 'atlas'")[0][0]
    return moment


def due_now() -> list[int]:
    with connection() as conn:
        return tier_passes.due(conn)


def test_namespace_is_due_once_its_records_are_indexed_and_not_before(memory: Storage) -> None:
    assert memory
    producers.remember(NS, "kelp")
    assert (due_at(), due_now()) == (None, [])
    drive()
    assert due_now() == [namespaces.resolve(NS).namespace_id]


def test_pass_with_nothing_due_sets_the_next_one_by_the_shortest_age(memory: Storage) -> None:
    assert memory
    now = datetime.now(UTC)
    producers.remember_records(
        NS,
        [
            NewRecord("hot", "a", now - timedelta(hours=2)),
            NewRecord("warm", "b", now - timedelta(days=6, hours=23), tier=Tier.WARM),
            NewRecord("pinned", "c", now - timedelta(days=300), tier=Tier.WARM, pinned=True),
        ],
    )
    drive()
    policy = Policy(hot_ttl=timedelta(hours=24), warm_ttl=timedelta(days=30), demote_idle=timedelta(days=7))
    assert run_pass(NS, policy)["demoted"] == 0
    assert due_at() == now - timedelta(days=6, hours=23) + timedelta(days=7)
    assert due_now() == []
    longer = policy.model_copy(update={"demote_idle": None})
    assert run_pass(NS, longer)["demoted"] == 0
    assert due_at() == now + timedelta(hours=22)


def test_pass_without_ages_leaves_the_namespace_not_due(memory: Storage) -> None:
    assert memory
    producers.remember(NS, "kelp")
    drive()
    run_pass(NS, Policy.single_level())
    assert due_at() is None


@pytest.mark.parametrize("days", [3_000_000, 40_000_000, 999_999_999])
@pytest.mark.parametrize("of", ["hot_ttl", "demote_idle", "cold_ttl", "cooldown"])
def test_age_beyond_the_calendar_is_never_reached_and_stops_no_pass(memory: Storage, of: str, days: int) -> None:
    assert memory
    old = datetime.now(UTC) - timedelta(days=300)
    producers.remember_records(NS, [NewRecord(f"r{rank}", "kelp", old, tier=Tier.WARM) for rank in (1, 2, 3)])
    drive()
    archive("r1")
    with connection() as conn:
        conn.execute("UPDATE tier_records SET tier = 3, moved_at = now(), moved_from = 2 WHERE id = 'r3'")
    wanted = limited(hot_capacity=0 if of == "cooldown" else None, **{of: timedelta(days=days)})
    assert run_pass(NS, wanted)["demoted"] == 0
    assert due_at() is None
    with connection() as conn:
        conn.execute("UPDATE tier_records SET last_access_at = '9999-06-01'")
    assert run_pass(NS, wanted)["demoted"] == 0
    assert due_at() is None
    assert producers.explain(NS, "r3").record.tier is Tier.HOT


def test_longest_time_aside_is_within_the_calendar(memory: Storage) -> None:
    assert memory
    producers.remember(NS, "kelp")
    ((key,),) = fetch_all("SELECT key FROM tier_records")
    century = timedelta(days=36_525)
    with connection() as conn:
        for _ in range(2):
            tier_held.hold(conn, {key: "summary empty"}, tier_held.Patience(century, century))
            conn.execute("UPDATE tier_set_aside SET attempts = 40")
    (one,) = producers.set_aside(None)
    assert one.held_until is not None
    assert one.held_until > datetime.now(UTC) + timedelta(days=30_000)


def test_pass_that_moved_something_is_followed_by_another(memory: Storage) -> None:
    assert memory
    producers.remember_records(NS, [NewRecord(f"r{n}", "kelp", datetime.now(UTC)) for n in range(2)])
    drive()
    run_pass(NS, Policy(hot_capacity=1))
    assert len(due_now()) == 1
    run_pass(NS, Policy(hot_capacity=1))
    assert due_now() == []


def test_move_held_back_by_the_cool_down_makes_the_namespace_due_when_it_ends(memory: Storage) -> None:
    assert memory
    policy = Policy.single_level().model_copy(update={"hot_capacity": 0, "cooldown": timedelta(hours=1)})
    producers.remember(NS, "kelp")
    drive()
    with connection() as conn:
        conn.execute("UPDATE tier_records SET moved_at = now() - interval '10 minutes', moved_from = 2")
    assert run_pass(NS, policy)["demoted"] == 0
    ((wait,),) = fetch_all("SELECT due_at - now() FROM namespaces")
    assert timedelta(minutes=49) < wait < timedelta(minutes=51)


def test_cold_records_that_may_not_be_evicted_yet_do_not_make_the_namespace_due_at_every_tick(memory: Storage) -> None:
    """What counts for eviction is the later of the last access and the move, and the access may be long ago."""
    assert memory
    producers.remember_records(NS, [NewRecord("old", "kelp", datetime.now(UTC) - timedelta(days=90))])
    drive()
    policy = Policy(cold_ttl=timedelta(days=30), cooldown=None)
    for _ in range(3):
        run_pass(NS, policy)
    assert fetch_all("SELECT tier FROM tier_records") == [(1,)]
    assert due_now() == []
    ((wait,),) = fetch_all("SELECT due_at - now() FROM namespaces")
    assert timedelta(days=29) < wait <= timedelta(days=30)


def test_what_becomes_due_while_a_pass_is_planned_is_not_overlooked(memory: Storage) -> None:
    assert memory
    producers.remember(NS, "kelp")
    drive()
    place = namespaces.resolve(NS)
    with connection() as conn:
        tier_plan.begin_passes(conn, [place.namespace_id])
        tier_plan.finish_pass(conn, place.namespace_id, Policy(), moved=0)
    with connection() as conn:
        tier_index.mark_due(conn, [place.namespace_id])
    assert due_now() == [place.namespace_id]


def test_due_namespaces_come_longest_waiting_first(memory: Storage) -> None:
    assert memory
    places = [namespaces.resolve(Namespace.of("atlas", f"s{n}")).namespace_id for n in range(4)]
    with connection() as conn:
        for hours, namespace_id in zip((1, 3, -1, 2), places, strict=True):
            conn.execute(
                "UPDATE namespaces SET due_at = now() - %s WHERE id = %s", (timedelta(hours=hours), namespace_id)
            )
        assert tier_passes.due(conn) == [places[1], places[3], places[0]]
        assert tier_passes.due(conn, limit=1) == [places[1]]


def test_accesses_applied_twice_count_once_and_make_a_promotable_namespace_due(memory: Storage) -> None:
    producers.remember_records(NS, [NewRecord("w", "kelp", datetime.now(UTC), tier=Tier.WARM)])
    drive()
    run_pass(NS, Policy())
    key = fetch_all("SELECT key FROM tier_records")[0][0]
    assert due_now() == []
    memory.touches.count([key] * 3)
    memory.touches.count([key + 999])
    batch = memory.touches.take(datetime.now(UTC))
    assert batch is not None
    for changed in (1, 0):
        with connection() as conn:
            assert tier_touch.apply(conn, batch.id, batch.counts, batch.taken_at, promote_access=3) == changed
    assert fetch_all("SELECT access_count FROM tier_records") == [(3,)]
    assert len(due_now()) == 1


def test_heat_in_sql_is_the_heat_of_the_rules(memory: Storage) -> None:
    assert memory
    producers.remember_records(NS, [NewRecord("w", "kelp", NOW, importance=0.3)])
    key = fetch_all("SELECT key FROM tier_records")[0][0]
    expected: float | None = None
    value: float | None = heat.value_log(0.3, NOW)
    moments = [(0, 1), (400, 3), (2, 2), (100_000, 1), (3, 5)]
    for number, (hours, count) in enumerate(moments):
        at = NOW + timedelta(hours=hours)
        with connection() as conn:
            tier_touch.apply(conn, f"b{number}", {key: count}, at, promote_access=None)
        expected, value = heat.add(expected, at, count), heat.add(value, at, count)
        ((stored, stored_value, accesses, accessed),) = fetch_all(
            "SELECT heat_log, value_log, access_count, last_access_at FROM tier_records"
        )
        assert stored == pytest.approx(expected, rel=1e-12)
        assert stored_value == pytest.approx(value, rel=1e-12)
        assert accesses == sum(n for _, n in moments[: number + 1])
        assert accessed == NOW + timedelta(hours=max(h for h, _ in moments[: number + 1]))
