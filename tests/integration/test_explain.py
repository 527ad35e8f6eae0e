"""Hot queries stay on their index, however large one namespace is beside the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from explaining import explained

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.spans import Span
from isotherm.pipeline.tier.store import Position
from isotherm.storage.postgres import (
    namespaces,
    outbox,
    steps,
    sweep,
    tier_candidates,
    tier_list,
    tier_passes,
    tier_plan,
    tier_recall,
    tier_rows,
    tier_vectors,
    tier_walk,
)
from isotherm.storage.postgres.namespaces import Place, Scope
from isotherm.storage.postgres.tier_candidates import Quotas
from isotherm.storage.postgres.tier_vectors import Near

LARGE, SMALL = Namespace.of("large", "s"), Namespace.of("small0007", "s")
NOW = datetime.now(UTC)


@pytest.fixture
def filled(filled_rows: str) -> str:
    return filled_rows


def ids_of(conn: Any, namespace: Namespace = LARGE) -> Place:
    sql = "SELECT id, bank_id FROM namespaces WHERE agent = %s AND session = 's'"
    return Place(*conn.plain(sql, (namespace.agent,))[0])


def keys(conn: Any, which: str, count: int = 20) -> list[int]:
    sql = f"SELECT key FROM tier_records WHERE namespace_id = %s AND {which} ORDER BY id OFFSET 500 LIMIT %s"
    return [row[0] for row in conn.plain(sql, (ids_of(conn).namespace_id, count))]


def test_the_helper_sees_a_sequential_scan_and_an_index_that_is_read_whole(filled: str) -> None:
    with explained(filled) as conn:
        conn.execute("SELECT * FROM tier_records WHERE content = 'x'")
        assert conn.scanned() == {"tier_records"}
        conn.plans.clear()
        conn.execute("SELECT count(*) FROM tier_records WHERE namespace_id = %s AND id = ANY(%s)", (1, ["r1"]))
        assert conn.most_rows() == 1
        assert conn.most_pages() < 1_000
        conn.execute("SELECT key FROM tier_records WHERE namespace_id = %s ORDER BY last_access_at, key LIMIT 1", (1,))
        assert conn.most_rows() >= 100_000


@pytest.mark.parametrize("namespace", [LARGE, SMALL])
def test_tail_reads_the_newest_from_their_index(filled: str, namespace: Namespace) -> None:
    with explained(filled) as conn:
        assert len(tier_recall.newest(conn, namespace, 200)) == min(200, 100_000 if namespace is LARGE else 40)
        assert conn.stays_on("tier_records_newest", "cold_bodies_pkey", "cold_blobs_pkey", rows=200, pages=1_000)


SCOPES = {
    "large namespace": Scope(namespace=LARGE),
    "small namespace": Scope(namespace=SMALL),
    "large bank": Scope(bank=Bank(None, "large")),
    "small bank": Scope(bank=Bank(None, "small0007")),
    "large session": Scope(bank=Bank(None, "large"), sessions=("s",)),
    "old session of a large bank": Scope(bank=Bank(None, "large"), sessions=("old",)),
    "all sessions": Scope(bank=Bank(None, "large"), sessions=("s", "old")),
}
IS_LARGE = ("large namespace", "large bank", "large session", "all sessions")
A_WEEK = Span(NOW - timedelta(days=40), NOW - timedelta(days=33))
# Candidates of a recall with what is read for each, whatever the scope has; a word of the query is in 14,000 records.
RECALLED, RECALL_PAGES = tier_candidates.COUNTED, 6_000


@pytest.fixture
def words(monkeypatch: pytest.MonkeyPatch) -> None:
    namespaces.forget_places()
    monkeypatch.setattr(tier_candidates.text, "terms", lambda query: [3, 1_003, 5_077] if query else [])


@pytest.mark.usefixtures("words")
@pytest.mark.parametrize("name", SCOPES)
@pytest.mark.parametrize("tiers", [list(Tier), [Tier.WARM, Tier.COLD]], ids=["all", "no hot"])
def test_recall_proposes_from_indexes(filled: str, name: str, tiers: list[Tier]) -> None:
    """A time that is asked about, hits by words and the turns beside these, of a conversation that has 100,000."""
    scope = SCOPES[name]
    with explained(filled) as conn:
        found = tier_candidates.candidates(conn, scope, "a query", tiers, Quotas(80, 80), span=A_WEEK)
        legs = set().union(*(c.legs for c in found.candidates))
        assert legs >= (
            {"recent", "lexical", "around", "time", "unindexed"} if name in IS_LARGE else {"recent", "lexical"}
        )
        newest = "tier_records_newest_in_bank" if scope.bank and scope.sessions is None else "tier_records_newest"
        wanted = ("tier_postings_pkey", "cold_words_by_word") if name in IS_LARGE else ()
        wanted = (newest, "tier_records_unindexed", "tier_records_pkey", *wanted)
        assert conn.stays_on(*wanted, rows=RECALLED, pages=RECALL_PAGES)
        assert tier_candidates.candidates(conn, scope, "", tiers, Quotas(80, 80)).candidates
        assert conn.stays_on(newest, rows=500, pages=2_000)
        records = tier_recall.records(conn, [c.key for c in found.candidates], scope, NOW)
        assert len(records) == len(found.candidates)
        assert conn.stays_on("tier_records_pkey", rows=500, pages=4_000)


@pytest.mark.parametrize("name", SCOPES)
def test_vectors_without_an_index_are_compared_with_the_newest_alone(
    filled: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(tier_vectors, "COMPARED", 500)
    near = Near("new", np.full(64, 0.125, np.float32))
    with explained(filled) as conn:
        found = tier_candidates.candidates(conn, SCOPES[name], "", list(Tier), Quotas(80, 80, 80), near=near)
        assert any("vector" in c.legs for c in found.candidates)
        assert found.truncated == (name in IS_LARGE)
        assert conn.stays_on("tier_vectors_pkey", rows=1_000, pages=6_000)


@pytest.mark.parametrize("name", SCOPES)
def test_the_newest_of_a_scope_and_the_turns_around_some_are_read_from_an_index(filled: str, name: str) -> None:
    with explained(filled) as conn:
        assert tier_recall.newest_at(conn, SCOPES[name]) is not None
        assert conn.stays_on(rows=50, pages=50)
        hits = keys(conn, "role IS NOT NULL")
        turns = tier_recall.windows(conn, hits, SCOPES[name], 3, NOW)
        assert len(turns) == (20 if name in IS_LARGE else 0)
        assert conn.stays_on("tier_records_pkey", rows=200, pages=2_000)


def test_records_are_read_by_their_ids(filled: str) -> None:
    with explained(filled) as conn:
        assert set(tier_recall.by_id(conn, LARGE, ["r17", "r18"], NOW)) == {"r17", "r18"}
        assert tier_recall.stored(conn, LARGE, "r19") is not None
        assert tier_list.moves(conn, Scope(namespace=LARGE), "r19")
        assert conn.stays_on(
            "tier_records_namespace_id_id_key", "cold_bodies_pkey", "tier_moves_pkey", rows=10, pages=50
        )
        standing = tier_list.standing(conn, Scope(namespace=LARGE), "r50001")
        assert standing is not None
        assert standing.weaker == 10_000
        assert conn.stays_on("tier_records_by_value", "tier_set_aside_pkey", rows=10_100, pages=2_000)


@pytest.mark.parametrize("name", SCOPES)
@pytest.mark.parametrize("tier", [None, *Tier])
@pytest.mark.parametrize("after", [None, f"{(NOW - timedelta(days=5)).isoformat()}/r7"], ids=["first", "later"])
def test_records_are_listed_in_the_order_of_an_index(
    filled: str, name: str, tier: Tier | None, after: str | None
) -> None:
    with explained(filled) as conn:
        page = tier_list.page(conn, SCOPES[name], NOW, tier=tier, after=after, limit=20)
        if name in IS_LARGE:
            assert len(page.records) == 20
        # One of ten is in the rarest tier, and a tenth of what is listed are passed by beside them.
        assert conn.stays_on(rows=300, pages=1_000)


@pytest.mark.parametrize("name", ["large namespace", "large bank", "large session"])
def test_a_walk_reads_names_edges_records_and_points_from_their_indexes(filled: str, name: str) -> None:
    scope = SCOPES[name]
    with explained(filled) as conn:
        sql = "SELECT id::text FROM brain_objects WHERE namespace_id = %s ORDER BY key OFFSET 500 LIMIT 20"
        objects = [row[0] for row in conn.plain(sql, (ids_of(conn).namespace_id,))]
        assert len(tier_walk.names(conn, scope, [5_000 + n for n in range(1, 40)])) == 39
        assert conn.stays_on("brain_names_by_anchor", rows=100, pages=200)
        assert len(tier_walk.around(conn, scope, objects)) >= 20
        assert conn.stays_on(
            "brain_objects_namespace_id_id_key", "brain_edges_out", "brain_edges_in", rows=100, pages=400
        )
        assert len(tier_walk.naming(conn, scope, objects)) >= 20
        assert conn.stays_on("brain_names_by_object", "tier_postings_pkey", "cold_words_by_word", rows=100, pages=600)
        assert len(tier_walk.learned(conn, scope, keys(conn, "true"))) == 20
        learned = ("interest_evidence_by_statement", "interest_evidence_point_id_record_key_statement_key")
        assert conn.stays_on(*learned, rows=600, pages=1_000)


LEGS = ("by_value", "by_access", "by_heat", "by_cold_age", "pinned_cold")


@pytest.mark.parametrize("namespace", [LARGE, SMALL])
@pytest.mark.parametrize("is_due", [True, False], ids=["everything", "nothing due"])
def test_plan_snapshot_reads_indexes(filled: str, namespace: Namespace, *, is_due: bool) -> None:
    """As many rows of each leg as may move, and a few of them passed over since they are set aside; never a whole tier."""
    most = 100
    due = Policy(hot_capacity=5, warm_capacity=5, cold_capacity=5, cold_ttl=timedelta(days=10), max_moves=most)
    free = {"hot_ttl": None, "warm_ttl": None, "demote_idle": None}
    never = Policy(**free, hot_capacity=10**6, warm_capacity=10**6, max_moves=most)
    with explained(filled) as conn:
        place = ids_of(conn, namespace)
        tier_plan.begin_passes(conn, [place.namespace_id])
        found = tier_plan.snapshot(conn, place.namespace_id, due if is_due else never, NOW)
        tier_plan.finish_pass(conn, place.namespace_id, due if is_due else never, moved=0)
        assert bool(found.expired) == (is_due and namespace is LARGE)
        assert found.sunken or namespace is SMALL
        wanted = [f"tier_records_{leg}" for leg in LEGS] if is_due and namespace is LARGE else []
        assert conn.stays_on(*wanted, "tier_depth_by_namespace", rows=10 * most, pages=4_000)


def test_due_namespaces_are_found_by_their_index(filled: str) -> None:
    with explained(filled) as conn:
        assert len(tier_passes.due(conn)) == 5
        assert conn.stays_on("namespaces_due", "operations_passes", rows=25, pages=60)


@pytest.mark.parametrize("agent", [None, "large"])
def test_how_full_the_tiers_are_counts_no_records(filled: str, agent: str | None) -> None:
    with explained(filled) as conn:
        rows = tier_plan.depth(conn, tenant=None, agent=agent)
        assert {tier for _, tier, _, _, _ in rows} == set(Tier)
        assert sum(n for _, _, n, _, _ in rows) >= 100_000
        # What was added up is the ledger of depths, which passes fold; of records the oldest few are looked at.
        of_records = [n for n in conn.nodes() if n.get("Relation Name") == "tier_records"]
        assert sum(n["Actual Rows"] * n["Actual Loops"] for n in of_records) <= 2_000
        assert conn.stays_on("tier_records_by_access", "tier_records_pinned", rows=12_000, pages=10_000)


def test_namespaces_are_found_by_their_name(filled: str) -> None:
    with explained(filled) as conn:
        values = {f"scope_{name}": value for name, value in namespaces.columns(LARGE).items()}
        found = conn.execute(namespaces._FIND.format(lookup=namespaces._namespace_lookup(LARGE)), values).fetchall()
        assert len(found) == 1
        assert conn.stays_on("namespaces_tenant_scope_agent_session_run_key", rows=1, pages=10)


def test_due_messages_are_found_by_their_index(filled: str) -> None:
    with explained(filled) as conn:
        assert len(outbox.due(conn)) >= 49
        assert outbox.depth(conn)[0] >= 49
        assert conn.scanned() == set()


def test_lost_leases_and_quiet_steps_are_found_by_their_indexes(filled: str) -> None:
    with explained(filled) as conn:
        swept = sweep.expired(conn, cap=5, delay=timedelta(0), nudge_after=timedelta(seconds=30))
        assert swept == sweep.Swept()
        assert sweep.waiting(conn)["db"] >= 20
        statement = sweep._QUIET
        conn.execute(statement, {"queue": "db", "base": timedelta(1), "cap": timedelta(1), "limit": 10})
        assert conn.scanned() == set()
        assert "operation_steps_leases" in conn.indexes()


def test_a_step_is_claimed_and_ended_by_keys(filled: str) -> None:
    with explained(filled) as conn:
        sql = "SELECT id, operation_id, stage FROM operation_steps WHERE state = 'pending' LIMIT 1"
        step = steps.claim(conn, *conn.plain(sql)[0], owner="test", lease=timedelta(seconds=9), cap=5)
        step.settle(conn, {})
        assert conn.stays_on("operations_pkey", rows=10, pages=100)


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("after", [None, Position(NOW - timedelta(days=5), "r7")])
def test_a_store_lists_and_counts_a_tier_from_indexes(filled: str, tier: Tier, after: Position | None) -> None:
    with explained(filled) as conn:
        place = ids_of(conn)
        page = tier_rows.page(conn, place, tier, 50, after)
        assert len(page) == 50
        assert [row.position for row in page] == sorted(
            (row.position for row in page), key=lambda p: p[0], reverse=True
        )
        assert len(tier_rows.outline(conn, place, tier, 50, after)) == 50
        assert conn.stays_on("tier_records_by_access", "cold_bodies_pkey", rows=200, pages=1_000)
        assert tier_rows.count(conn, place, tier) in {10_000, 80_000}
        assert tier_rows.get(conn, place, page[0].id) == page[0]
        assert conn.stays_on("tier_records_namespace_id_id_key", "tier_depth_by_namespace", rows=100, pages=100)
