from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
import redis
from inprocess import check_database, drive, run_pass
from structlog.testing import capture_logs
from tiering import LONG, NS, OPERATION, accessed, aged, archive, counted, moves_of, policy, store, tiers

from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage.postgres import tier_move
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers, ticks, tier_pass

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def test_moves_are_logged_with_their_reason_and_operation(memory: Storage) -> None:
    assert memory
    store(("ttl", timedelta(hours=25)), ("over", timedelta(hours=1)), ("kept", timedelta(0)))
    store(("idle", timedelta(days=8)), tier=Tier.WARM)
    store(("hot", timedelta(hours=1)), tier=Tier.WARM)
    accessed("hot", 4)
    accepted = producers.reconcile(NS, Policy(hot_capacity=1))
    drive(accepted.operation_id)
    logged = fetch_all(
        """SELECT r.id, m.source, m.target, m.reason FROM tier_moves AS m JOIN tier_records AS r ON r.key = m.record_key
           WHERE m.operation_id = %(op)s ORDER BY r.id""",
        {"op": accepted.operation_id},
    )
    assert logged == [
        ("hot", 2, 3, "access"),
        ("idle", 2, 1, "idle"),
        ("kept", 3, 2, "capacity"),
        ("over", 3, 2, "capacity"),
        ("ttl", 3, 2, "ttl"),
    ]
    assert fetch_all("SELECT sum(1) FROM tier_moves WHERE namespace_id <> 1") == [(None,)]


def test_a_policy_that_is_given_is_that_of_the_pass_that_waits_already(memory: Storage) -> None:
    assert memory
    store(*[(f"r{n}", timedelta(hours=n)) for n in range(4)])
    waiting = producers.reconcile(NS)
    mine = producers.reconcile(NS, policy(hot_capacity=1))
    assert (mine.operation_id, waiting.new, mine.new) == (waiting.operation_id, True, False)
    assert producers.reconcile(NS).operation_id == waiting.operation_id, "who gives none joins, and changes nothing"
    assert producers.reconcile(NS, policy(hot_capacity=1)).operation_id == waiting.operation_id
    with pytest.raises(TransientError, match=str(waiting.operation_id)):
        producers.reconcile(NS, policy(hot_capacity=2))
    drive()
    assert list(tiers().values()).count(Tier.HOT) == 1
    assert producers.reconcile(NS, policy(hot_capacity=2)).new, "the pass before it has ended"
    drive()


def test_passes_come_to_an_end_and_then_capacities_hold(memory: Storage) -> None:
    assert memory
    store(*[(f"r{n:03}", timedelta(minutes=n)) for n in range(60)], content=LONG[:200])
    store(*[(f"w{n:03}", timedelta(minutes=n)) for n in range(20)], tier=Tier.WARM)
    limits = policy(hot_capacity=7, warm_capacity=11, cold_capacity=13, promote_access=2, batch_size=9)
    for n in range(0, 20, 3):
        accessed(f"w{n:03}", 5)
    passes = 1
    while counted(run_pass(NS, limits)) != (0, 0, 0):
        check_database()
        passes += 1
        assert passes <= 10
    assert passes >= 3
    sizes = dict(fetch_all("SELECT tier, count(*) FROM tier_records GROUP BY tier"))
    assert sizes == {3: 7, 2: 11, 1: 13}
    hot = fetch_all("SELECT id FROM tier_records WHERE tier = 3")
    assert {i for (i,) in hot} == {f"w{n:03}" for n in range(0, 20, 3)}


def test_each_pass_moves_a_record_at_most_one_step(memory: Storage) -> None:
    assert memory
    store(*[(f"r{n}", timedelta(days=400)) for n in range(9)])
    run_pass(NS, Policy(hot_capacity=0, warm_capacity=0, cold_capacity=0))
    assert set(tiers().values()) == {Tier.WARM}


def test_pass_over_a_namespace_without_records_reports_nothing(memory: Storage) -> None:
    """T-26."""
    assert memory
    assert counted(run_pass(Namespace.of("nobody"), Policy())) == (0, 0, 0)


def test_tier_t10_one_over_capacity_demotes_exactly_one(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(hours=2)), ("b", timedelta(hours=1)))
    report = run_pass(NS, policy(hot_capacity=1, warm_capacity=10, cold_capacity=10, promote_access=99))
    assert counted(report) == (0, 1, 0)


@pytest.mark.parametrize(("tier", "count", "pinned", "lifted"), [
    (Tier.WARM, 3, False, True),
    (Tier.WARM, 2, False, False),
    (Tier.HOT, 10, False, False),
    (Tier.WARM, 10, True, False),
])  # fmt: skip
def test_tier_t11_t14_who_is_lifted_by_the_default_policy(
    memory: Storage, tier: Tier, count: int, *, pinned: bool, lifted: bool
) -> None:
    assert memory
    store(("a", timedelta(0)), tier=tier, pinned=pinned)
    accessed("a", count)
    assert counted(run_pass(NS, Policy())) == (int(lifted), 0, 0)


def test_tier_t12_one_more_than_fifty_hot_ones_demotes_one(memory: Storage) -> None:
    assert memory
    store(*[(f"r{n}", timedelta(minutes=n)) for n in range(51)])
    assert counted(run_pass(NS, Policy.go_default())) == (0, 1, 0)
    assert tiers()["r50"] is Tier.WARM


def test_tier_t13_a_warm_record_idle_for_eight_days_goes_cold(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(days=8)), tier=Tier.WARM)
    assert counted(run_pass(NS, Policy())) == (0, 1, 0)
    assert tiers() == {"a": Tier.COLD}


def test_tier_t17_single_level_never_moves(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(days=365)), tier=Tier.WARM)
    accessed("a", 100)
    assert counted(run_pass(NS, Policy.single_level())) == (0, 0, 0)


def test_tier_t21_both_records_outlive_a_lost_hot_side(memory: Storage, client: redis.Redis) -> None:
    """Replaced on purpose: hot is durable, where the original lost the record that was hot alone."""
    store(("m1", timedelta(hours=2)), ("m2", timedelta(hours=1)))
    assert [r.id for r in memory.tier.tail(NS)] == ["m1", "m2"]
    report = run_pass(NS, policy(hot_capacity=1, warm_capacity=10, cold_capacity=10, promote_access=99))
    assert (counted(report), tiers()) == ((0, 1, 0), {"m1": Tier.WARM, "m2": Tier.HOT})
    assert client.dbsize() > 0
    client.flushall()
    found = producers.recall(NS, "", budget=RecallBudget(total=5, hot=2, warm=3)).items
    assert [(item.record.id, item.record.content) for item in found] == [("m1", "kelp m1"), ("m2", "kelp m2")]
    assert [(r.id, r.content) for r in memory.tier.tail(NS)] == [("m1", "kelp m1"), ("m2", "kelp m2")]


def test_tier_t64_a_pass_of_a_tenant_runs_and_a_message_without_a_job_is_refused(memory: Storage) -> None:
    assert memory
    theirs = NS.for_tenant("tenant-a")
    store(("a", timedelta(hours=1)))
    producers.remember_records(theirs, [NewRecord(name, "kelp", datetime.now(UTC)) for name in "ab"])
    accepted = producers.reconcile(theirs, policy(hot_capacity=0, batch_size=1))
    ran = drive()
    done = producers.operation(accepted.operation_id)
    assert (done.state, done.result and done.result["demoted"]) == ("done", 2)
    assert {"tier.plan", "tier.migrate", "tier.report"} <= set(ran)
    assert [[r.tier for r in producers.list_all(owner).records] for owner in (theirs, NS)] == [
        [Tier.WARM] * 2,
        [Tier.HOT],
    ]
    with pytest.raises(RejectedError, match="operation_id, step_id, trace_id"):
        tier_pass.plan.run({})
    with capture_logs() as logs:
        assert tier_pass.plan({}) == {"state": "refused"}
    assert [(line["event"], line["stage"]) for line in logs] == [("operations.delivery_refused", "tier.plan")]


def test_tier_x1_an_idle_hot_record_goes_down_one_step_and_is_never_lost(memory: Storage) -> None:
    """The original evicted it in one pass."""
    assert memory
    store(("a", timedelta(days=8)))
    seen = [(counted(run_pass(NS, Policy.go_default())), tiers()["a"]) for _ in range(4)]
    assert seen[0] == ((0, 1, 0), Tier.WARM)
    assert seen[1] == ((0, 1, 0), Tier.COLD)
    assert seen[2:] == [((0, 0, 0), Tier.COLD)] * 2


def test_tier_x2_an_idle_warm_record_stays_in_cold(memory: Storage) -> None:
    """The original evicted it in the same pass."""
    assert memory
    store(("a", timedelta(days=8)), tier=Tier.WARM)
    for _ in range(3):
        run_pass(NS, Policy.go_default())
    assert tiers() == {"a": Tier.COLD}


def test_tier_x3_a_hot_record_idle_for_25_hours_goes_warm(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(hours=25)))
    assert counted(run_pass(NS, Policy())) == (0, 1, 0)
    assert counted(run_pass(NS, Policy())) == (0, 0, 0)


def test_tier_x4_the_older_record_gives_way(memory: Storage) -> None:
    """The original demoted the newer one."""
    assert memory
    store(("a", timedelta(hours=2)), ("b", timedelta(hours=1)))
    run_pass(NS, policy(hot_capacity=1))
    assert tiers() == {"a": Tier.WARM, "b": Tier.HOT}


def test_tier_x5_an_old_record_that_was_used_often_does_not_swing(memory: Storage) -> None:
    """The original moved it down and up again in every pass."""
    assert memory
    store(("a", timedelta(hours=25)))
    accessed("a", 100)
    aged("a", timedelta(hours=25))
    reports = []
    for _ in range(12):
        reports.append(counted(run_pass(NS, Policy())))
        _later(timedelta(hours=2))  # no cool-down holds it
    assert reports == [(0, 1, 0)] + [(0, 0, 0)] * 11
    assert tiers() == {"a": Tier.WARM}


def _later(span: timedelta) -> None:
    """Everything is older by some time."""
    with connection() as conn:
        conn.execute(
            """UPDATE tier_records SET last_access_at = last_access_at - %(span)s, moved_at = moved_at - %(span)s,
               heat_log = heat_log - %(decay)s, value_log = value_log - %(decay)s""",
            {"span": span, "decay": heat.DECAY_PER_SECOND * span.total_seconds()},
        )


def test_tier_x6_a_new_record_in_full_tiers_stays_and_the_oldest_give_way(memory: Storage) -> None:
    """The original sent the new record through all tiers and out."""
    assert memory
    day = timedelta(days=1)
    store(("cold1", 9 * day), ("cold2", 8 * day), tier=Tier.WARM)
    archive("cold1", "cold2")
    store(("warm1", 7 * day), ("warm2", 6 * day), tier=Tier.WARM)
    store(("hot1", 5 * day), ("hot2", 4 * day), ("new", timedelta(0)))
    limits = policy(hot_capacity=2, warm_capacity=2, cold_capacity=2)
    reports = [counted(run_pass(NS, limits)) for _ in range(4)]
    assert reports == [(0, 1, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)]
    assert tiers() == {
        "cold2": Tier.COLD, "warm1": Tier.COLD, "hot1": Tier.WARM, "warm2": Tier.WARM, "hot2": Tier.HOT, "new": Tier.HOT,
    }  # fmt: skip


def test_tier_x7_promotion_does_not_fill_a_tier_beyond_its_capacity(memory: Storage) -> None:
    """The original promoted at once what it had demoted."""
    assert memory
    store(("a", timedelta(hours=3)), ("b", timedelta(hours=2)), ("c", timedelta(hours=1)))
    for record_id in "abc":
        accessed(record_id, 3)
    limits = Policy(hot_capacity=1)
    assert counted(run_pass(NS, limits)) == (0, 2, 0)
    assert counted(run_pass(NS, limits)) == (0, 0, 0)
    assert list(tiers().values()).count(Tier.HOT) == 1


def test_tier_x8_pinned_records_count_and_stay(memory: Storage) -> None:
    assert memory
    store(("pinned", timedelta(days=300)), pinned=True)
    store(("a", timedelta(hours=2)), ("b", timedelta(hours=1)))
    assert counted(run_pass(NS, policy(hot_capacity=1))) == (0, 2, 0)
    assert tiers() == {"a": Tier.WARM, "b": Tier.WARM, "pinned": Tier.HOT}


@pytest.mark.parametrize(("count", "lifted"), [(6, 1), (5, 0)])
def test_tier_x9_cold_takes_twice_the_heat(memory: Storage, count: int, lifted: int) -> None:
    assert memory
    store(("a", timedelta(0)), tier=Tier.WARM)
    archive("a")
    accessed("a", count)
    assert counted(run_pass(NS, Policy(cooldown=None))) == (lifted, 0, 0)


def test_tier_x10_the_record_in_use_is_lifted_instead_of_evicted(memory: Storage) -> None:
    """The original evicted the promotable record."""
    assert memory
    store(("old", timedelta(hours=2)), ("used", timedelta(0)), tier=Tier.WARM)
    archive("old", "used")
    accessed("used", 6)
    assert counted(run_pass(NS, policy(cold_capacity=1, promote_access=3))) == (1, 0, 0)
    assert tiers() == {"old": Tier.COLD, "used": Tier.WARM}


def test_tier_x11_a_full_tier_is_not_over_full(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(hours=2)), ("b", timedelta(hours=1)))
    assert counted(run_pass(NS, policy(hot_capacity=2))) == (0, 0, 0)


def test_tier_x17_record_that_is_gone_at_its_turn_disturbs_nobody(memory: Storage) -> None:
    """The original wrote it again, or gave the pass up."""
    assert memory
    store(("a", timedelta(hours=2)), ("b", timedelta(hours=1)))
    moves = moves_of("a", "b", source=Tier.HOT, target=Tier.WARM)
    with connection() as conn:
        conn.execute("DELETE FROM tier_postings")
        conn.execute("DELETE FROM tier_records WHERE id = 'a'")
        conn.execute("UPDATE tier_records SET terms = '{}', indexed = false")
        done = tier_move.shift(conn, OPERATION, moves)
    assert (len(done.moves), done.changed) == (1, 1)
    assert tiers() == {"b": Tier.WARM}


def test_tier_x26_pinned_records_never_start_below_warm_nor_go_there(memory: Storage) -> None:
    assert memory
    store(("a", timedelta(days=365)), tier=Tier.COLD, pinned=True)
    before = fetch_all("SELECT xmin::text FROM tier_records")
    assert counted(run_pass(NS, Policy(warm_capacity=0, cold_capacity=0, cooldown=None))) == (0, 0, 0)
    assert tiers() == {"a": Tier.WARM}
    assert fetch_all("SELECT xmin::text FROM tier_records") == before, "a pass rewrites nothing"


def test_one_record_without_a_summary_does_not_stop_a_pass(memory: Storage) -> None:
    assert memory
    store(("blank", timedelta(days=9)), tier=Tier.WARM, content=" \n" * 5_000, metadata={"searchable": "\u200b" * 3})
    store(("fine", timedelta(days=9)), tier=Tier.WARM, content=LONG)
    with connection() as conn:
        conn.execute("UPDATE tier_records SET content = repeat(' ', 9000), size_bytes = 9000, "
                     "content_sha256 = sha256(convert_to(repeat(' ', 9000), 'UTF8')), indexed = false, "
                     "metadata = '{}' WHERE id = 'blank'")  # fmt: skip
    report = run_pass(NS, Policy())
    assert (report["demoted"], report["set_aside"], report["unfinished"]) == (1, 1, 0)
    assert tiers() == {"blank": Tier.WARM, "fine": Tier.COLD}


def test_an_evicted_record_is_not_replayed_from_the_hot_tail(memory: Storage) -> None:
    store(("gone", timedelta(days=90)), ("kept", timedelta(0)), tier=Tier.WARM)
    archive("gone")
    assert [r.id for r in memory.tier.tail(NS)] == ["gone", "kept"]
    assert run_pass(NS, Policy.single_level().model_copy(update={"cold_capacity": 0}))["evicted"] == 1
    (payload,) = fetch_all("SELECT payload FROM outbox WHERE builder = 'tail_refresh'")[0]
    assert ticks.refresh(payload) == {"namespaces": 1}
    assert [r.id for r in memory.tier.tail(NS)] == ["kept"]
