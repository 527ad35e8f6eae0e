"""A plan that was made while a table was small does not outlive its growth."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from isotherm.storage.postgres import pool

_GROWN = "INSERT INTO touch_batches (id) SELECT g::text FROM generate_series(%s::integer, %s) AS g"


def node() -> str:
    """How the connection's statement is run now."""
    with pool.connection() as conn:
        row = conn.execute("EXPLAIN (FORMAT JSON) EXECUTE kept ('x')").fetchone()
    assert row is not None
    plan: dict[str, Any] = row[0][0]["Plan"]
    return str(plan["Node Type"])


def test_plans_are_made_anew_as_a_table_grows(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pool.open_pool(dsn, size=1)
    try:
        with psycopg.connect(dsn, autocommit=True) as other:
            # Whether the server looks at the table meanwhile is a matter of luck.
            other.execute("ALTER TABLE touch_batches SET (autovacuum_enabled = off)")
            other.execute(_GROWN, (1, 5))
            other.execute("ANALYZE touch_batches")
            with pool.connection() as conn:
                conn.execute("SET plan_cache_mode = force_generic_plan")
                conn.execute("PREPARE kept (text) AS SELECT applied_at FROM touch_batches WHERE id = $1")
            assert node() == "Seq Scan"
            other.execute(_GROWN, (6, 20_000))
            assert node() == "Seq Scan"
        monkeypatch.setattr(pool, "_PLANNED_S", 0.0)
        assert node() == "Index Scan"
    finally:
        pool.close_pool()
