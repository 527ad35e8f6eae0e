"""Hot queries stay on their index, however large one namespace is beside the others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pytest
from explaining import explained
from psycopg import sql

from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import Position
from isotherm.storage.embedded import Endpoints
from isotherm.storage.postgres import (
    namespaces,
    outbox,
    steps,
    sweep,
    tier_candidates,
    tier_passes,
    tier_plan,
    tier_recall,
    tier_rows,
)
from isotherm.storage.postgres.namespaces import Place, Scope
from isotherm.storage.postgres.tier_candidates import Quotas

if TYPE_CHECKING:
    from collections.abc import Iterator

LARGE, SMALL = Namespace.of("large", "s"), Namespace.of("small0007", "s")
NOW = datetime(2026, 7, 1, tzinfo=UTC)


_FILL = """
INSERT INTO banks (agent) SELECT 'large' UNION ALL SELECT 'small' || to_char(n, 'FM0000') FROM generate_series(0, 199) AS n;
INSERT INTO namespaces (bank_id, scope, agent, session, due_at)
SELECT id, 'session', agent, 's', CASE WHEN id % 40 = 0 THEN now() - interval '1 minute' ELSE now() + interval '1 day' END
FROM banks;
INSERT INTO tier_records (namespace_id, bank_id, id, content, content_sha256, summary, importance, tier, value_log,
    heat_log, access_count, created_at, last_access_at, size_bytes, terms, indexed)
SELECT s.id, s.bank_id, 'r' || n, CASE WHEN n % 10 < 9 THEN 'text' END, sha256('text'),
       CASE WHEN n % 10 = 9 THEN 'text' END, 0.5, CASE WHEN n % 10 = 9 THEN 1 WHEN n % 10 = 8 THEN 3 ELSE 2 END, n,
       CASE WHEN n % 50 = 0 THEN n END, CASE WHEN n % 50 = 0 THEN 1 ELSE 0 END, now() - n * interval '1 minute',
       now() - n * interval '1 minute', 4, ARRAY[n % 500, 1000 + n % 7, 5000 + n], n % 1000 <> 0
FROM namespaces AS s, generate_series(1, CASE WHEN s.agent = 'large' THEN 100000 ELSE 40 END) AS n;
INSERT INTO tier_postings (bank_id, term, record_key, namespace_id) SELECT r.bank_id, t, r.key, r.namespace_id FROM tier_records AS r, unnest(r.terms) AS t WHERE r.tier > 1;
INSERT INTO cold_words (record_key, bank_id, namespace_id, words)
SELECT key, bank_id, namespace_id, -namespace_id || ARRAY(SELECT (bank_id << 32) | t FROM unnest(terms) AS t)
FROM tier_records WHERE tier = 1;
UPDATE tier_records SET terms = '{}' WHERE tier = 1;
INSERT INTO cold_bodies (record_key, body, codec, raw_bytes) SELECT key, repeat('b', 1800)::bytea, 'zstd', 4096 FROM tier_records WHERE tier = 1;
INSERT INTO operations (id, kind, trace_id, state, finished_at)
SELECT gen_random_uuid(), 'tier.remember', gen_random_uuid(), CASE WHEN n % 100 = 0 THEN 'running' ELSE 'done' END,
       CASE WHEN n % 100 > 0 THEN now() END FROM generate_series(1, 20000) AS n;
INSERT INTO operation_steps (operation_id, stage, queue, input, input_hash, state, lease_until, retry_until, nudge_at,
    finished_at)
SELECT id, 'tier.index', 'db', '{}', '', CASE WHEN finished_at IS NOT NULL THEN 'done' WHEN n % 2 = 0 THEN 'running'
       ELSE 'pending' END, CASE WHEN finished_at IS NULL AND n % 2 = 0 THEN now() + n * interval '1 minute' END, now(),
       now() + (n - 50) * interval '1 second', finished_at
FROM (SELECT *, row_number() OVER (ORDER BY finished_at NULLS FIRST) AS n FROM operations) AS o;
INSERT INTO outbox (builder, payload, not_before)
SELECT 'step', '{}', now() + (n - 50) * interval '1 second' FROM generate_series(1, 5000) AS n;
"""


@pytest.fixture(scope="module")
def filled(endpoints: Endpoints, template: str) -> Iterator[str]:
    name = f"filled_{uuid4().hex}"
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    dsn = endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{name}"
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(_FILL)
        conn.execute("VACUUM ANALYZE")
    yield dsn
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.mark.parametrize("agent", [None, "large"])
def test_how_full_the_tiers_are_counts_no_records(filled: str, agent: str | None) -> None:
    with explained(filled) as conn:
        rows = tier_plan.depth(conn, tenant=None, agent=agent)
        assert {(tier, n) for _, tier, n, _, _ in rows} >= {
            (Tier.HOT, 10_000),
            (Tier.WARM, 80_000),
            (Tier.COLD, 10_000),
        }
        assert conn.scanned() == set()
        found = {node.get("Index Name") for node in conn.nodes() if node.get("Relation Name") == "tier_records"}
        assert found == {"tier_records_by_access", "tier_records_pinned"}


def test_the_helper_sees_a_sequential_scan(filled: str) -> None:
    with explained(filled) as conn:
        conn.execute("SELECT * FROM tier_records WHERE content = 'x'")
        assert conn.scanned() == {"tier_records"}


@pytest.mark.parametrize("namespace", [LARGE, SMALL])
def test_tail_reads_the_newest_from_their_index(filled: str, namespace: Namespace) -> None:
    with explained(filled) as conn:
        assert len(tier_recall.newest(conn, namespace, 200)) == min(200, 100_000 if namespace is LARGE else 40)
        assert conn.scanned() == set()
        assert "tier_records_newest" in conn.indexes()


SCOPES = {
    "large namespace": Scope(namespace=LARGE),
    "small namespace": Scope(namespace=SMALL),
    "large bank": Scope(bank=Bank(None, "large")),
    "small bank": Scope(bank=Bank(None, "small0007")),
    "listed sessions": Scope(bank=Bank(None, "large"), sessions=("s",)),
}


@pytest.mark.parametrize("scope", SCOPES.values(), ids=SCOPES.keys())
@pytest.mark.parametrize("tiers", [list(Tier), [Tier.WARM, Tier.COLD]], ids=["all", "no hot"])
def test_recall_proposes_from_indexes(
    filled: str, monkeypatch: pytest.MonkeyPatch, scope: Scope, tiers: list[Tier]
) -> None:
    monkeypatch.setattr(tier_candidates.text, "terms", lambda _: [3, 1_003, 5_077])
    with explained(filled) as conn:
        found = tier_candidates.candidates(conn, scope, "a query", tiers, Quotas(80, 80))
        assert found.candidates
        assert conn.scanned() == set()
        blank = tier_candidates.candidates(conn, scope, "", tiers, Quotas(80, 80))
        assert blank.candidates
        records = tier_recall.records(conn, [c.key for c in found.candidates], scope, NOW)
        assert len(records) == len(found.candidates)
        assert conn.scanned() == set()
        assert "tier_records_unindexed" in conn.indexes()
        if scope is SCOPES["large namespace"]:
            assert {"tier_postings_pkey", "cold_words_by_word", "tier_records_newest"} <= conn.indexes()


def test_one_record_is_read_by_its_id(filled: str) -> None:
    with explained(filled) as conn:
        assert set(tier_recall.by_id(conn, LARGE, ["r17", "r18"], NOW)) == {"r17", "r18"}
        assert conn.scanned() == set()


@pytest.mark.parametrize("namespace", [LARGE, SMALL])
@pytest.mark.parametrize(
    "policy",
    [
        Policy(cold_capacity=100, cold_ttl=timedelta(days=10)),
        Policy(hot_ttl=None, warm_ttl=None, demote_idle=None, hot_capacity=10**6, warm_capacity=10**6),
    ],
    ids=["everything", "nothing due"],
)
def test_plan_snapshot_reads_indexes(filled: str, namespace: Namespace, policy: Policy) -> None:
    with explained(filled) as conn:
        row = conn.execute("SELECT id FROM namespaces WHERE agent = %s", (namespace.agent,)).fetchone()
        conn.plans.clear()
        tier_plan.begin_pass(conn, row[0])
        tier_plan.snapshot(conn, row[0], policy, datetime.now(UTC))
        tier_plan.finish_pass(conn, row[0], policy, moved=0)
        assert conn.scanned() - {"namespaces"} == set()
        assert not [
            n for n in conn.nodes() if n["Node Type"] == "Bitmap Heap Scan" and n["Relation Name"] == "namespaces"
        ]


def test_due_namespaces_are_found_by_their_index(filled: str) -> None:
    with explained(filled) as conn:
        assert len(tier_passes.due(conn)) == 5
        conn._conn.execute("SET LOCAL enable_seqscan = off")  # 201 rows are scanned as fast
        conn.plans.clear()
        tier_passes.due(conn)
        assert conn.indexes() >= {"namespaces_due", "operations_passes"}
        assert conn.scanned() == set()


def test_namespaces_are_found_by_their_name(filled: str) -> None:
    with explained(filled) as conn:
        conn._conn.execute("SET LOCAL enable_seqscan = off")  # 201 rows are scanned as fast
        values = {f"scope_{name}": value for name, value in namespaces.columns(LARGE).items()}
        conn.execute(namespaces._FIND.format(lookup=namespaces._namespace_lookup(LARGE)), values)
        assert "namespaces_tenant_scope_agent_session_run_key" in conn.indexes()
        assert not [node for node in conn.nodes() if node["Node Type"] == "Seq Scan"]


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
        row = conn.execute(
            "SELECT id, operation_id, stage FROM operation_steps WHERE state = 'pending' LIMIT 1"
        ).fetchone()
        conn.plans.clear()
        step = steps.claim(conn, *row, owner="test", lease=timedelta(seconds=9), cap=5)
        step.settle(conn, {})
        assert conn.scanned() == set()


@pytest.mark.parametrize("tier", list(Tier))
@pytest.mark.parametrize("after", [None, Position(datetime.now(UTC) - timedelta(days=5), "r7")])
def test_a_store_lists_and_counts_a_tier_from_indexes(filled: str, tier: Tier, after: Position | None) -> None:
    with explained(filled) as conn:
        row = conn.execute("SELECT id, bank_id FROM namespaces WHERE agent = 'large'").fetchone()
        place = Place(*row)
        page = tier_rows.page(conn, place, tier, 50, after)
        assert len(page) == 50
        assert [row.position for row in page] == sorted(
            (row.position for row in page), key=lambda p: p[0], reverse=True
        )
        assert tier_rows.count(conn, place, tier) in {10_000, 80_000}
        assert tier_rows.get(conn, place, page[0].id) == page[0]
        assert len(tier_rows.outline(conn, place, tier, 1_000, after)) == 1_000
        assert conn.scanned() == set()
        assert "tier_records_by_access" in conn.indexes()
        assert "tier_records_namespace_id_id_key" in conn.indexes()
        read_by_key = {"tier_records_pkey", "cold_bodies_pkey"}
        by_key = [node for node in conn.nodes() if node.get("Index Name") in read_by_key]
        assert {node["Index Name"] for node in by_key} == read_by_key
        assert all("Index Cond" in node for node in by_key), "the rows of the page, and no others"
