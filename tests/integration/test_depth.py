"""How many records and bytes each tier has: known without counting, exact whatever changed them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from inprocess import drive, run_pass

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord
from isotherm.storage.opened import Storage
from isotherm.storage.postgres import namespaces, tier_plan
from isotherm.storage.postgres.pool import connection, fetch_all, statement
from isotherm.tasks import producers

NS, OTHER = Namespace.of("atlas", "s1"), Namespace.of("atlas", "s2")
NOW = datetime(2026, 7, 1, tzinfo=UTC)

_TRUTH = "SELECT namespace_id, tier, count(*), sum(size_bytes) FROM tier_records GROUP BY 1, 2 ORDER BY 1, 2"
_NOTED = """
SELECT namespace_id, tier, sum(records), sum(bytes) FROM tier_depth GROUP BY 1, 2 HAVING sum(records) <> 0 OR sum(bytes) <> 0
ORDER BY 1, 2"""


def put(namespace: Namespace, *texts: str) -> None:
    records = [NewRecord(id=f"r{n}", content=t, created_at=NOW + timedelta(seconds=n)) for n, t in enumerate(texts)]
    producers.remember_records(namespace, records)


def noted() -> list[tuple[int, ...]]:
    found = [tuple(map(int, row)) for row in fetch_all(_NOTED)]
    assert found == [tuple(map(int, row)) for row in fetch_all(_TRUTH)]
    return found


def test_depth_is_exact_after_whatever_changes_it(memory: Storage) -> None:
    assert memory
    put(NS, *["kelp and moss"] * 30)
    put(OTHER, "fern", "reed")
    drive()
    assert len(noted()) == 2
    put(NS, "a longer text than before", "kelp and moss")  # one grows, one stays
    assert sum(row[3] for row in noted()) == 29 * 13 + 25 + 8
    policy = Policy(hot_capacity=10, warm_capacity=10, cold_capacity=5, hot_ttl=None, warm_ttl=None, demote_idle=None)
    for _ in range(4):
        run_pass(NS, policy)
        noted()
    place = namespaces.resolve(NS).namespace_id
    assert [row[1:3] for row in noted() if row[0] == place] == [(1, 5), (2, 10), (3, 10)]


def test_what_is_shown_is_what_a_count_would_find(memory: Storage) -> None:
    assert memory
    put(NS, *["kelp and moss"] * 12)
    put(OTHER, "fern")
    producers.remember(Namespace.of("other", "s1", tenant="acme"), "not asked for")
    drive()
    producers.pin(NS, ["r0", "r11"])
    run_pass(NS, Policy(hot_capacity=5, warm_capacity=3, hot_ttl=None, warm_ttl=None, demote_idle=None))
    run_pass(NS, Policy(hot_capacity=5, warm_capacity=3, hot_ttl=None, warm_ttl=None, demote_idle=None))
    with connection() as conn:
        shown = tier_plan.depth(conn, tenant=None, agent="atlas")
        assert tier_plan.depth(conn, tenant="acme", agent="atlas") == []
    counted = """SELECT r.namespace_id, r.tier, count(*), sum(r.size_bytes), min(r.last_access_at)
                 FROM tier_records AS r JOIN namespaces AS n ON n.id = r.namespace_id WHERE n.tenant IS NULL GROUP BY 1, 2"""
    assert len(shown) == 4
    assert sorted((ns, tier.rank, *more) for ns, tier, *more in shown) == sorted(fetch_all(counted))


def test_write_that_is_rolled_back_leaves_no_trace(memory: Storage) -> None:
    assert memory
    put(NS, "kelp", "moss")
    before = noted()
    with connection() as conn, conn.transaction(force_rollback=True):
        conn.execute("UPDATE tier_records SET tier = 2")
        conn.execute("DELETE FROM tier_records WHERE id = 'r0'")
    assert noted() == before


def test_pass_folds_what_many_writes_noted(memory: Storage) -> None:
    assert memory
    for n in range(tier_plan._UNFOLDED + 5):
        producers.remember(NS, f"note {n}")
    drive()
    before = noted()
    run_pass(NS, Policy(hot_capacity=None))
    assert noted() == before
    assert fetch_all("SELECT count(*) FROM tier_depth") == [(1,)]


def test_fold_leaves_what_it_cannot_see_yet(memory: Storage) -> None:
    """A write that commits while a pass folds is neither lost nor counted twice."""
    assert memory
    for n in range(tier_plan._UNFOLDED + 5):
        producers.remember(NS, f"note {n}")
    place = namespaces.resolve(NS).namespace_id
    values = {"namespaces": [place], "most": 1}
    with connection() as first:
        first.execute("DELETE FROM tier_records WHERE content = 'note 3'")
        with statement() as second:
            second.execute(tier_plan._FOLD, values)
    assert len(noted()) == 1
    with statement() as conn:
        conn.execute(tier_plan._FOLD, values)
    noted()
