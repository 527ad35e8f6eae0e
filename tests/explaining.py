"""Statements explained as they run, for tests that hold queries to their indexes."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from isotherm import storage
from isotherm.storage.postgres import pool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg.errors import Diagnostic

# The banks and namespaces fill a few pages, which are as well scanned; so is what a test has none of.
BIG = {
    "tier_records", "tier_vectors", "tier_postings", "tier_depth", "tier_moves", "tier_set_aside", "cold_words", "cold_bodies",
    "cold_blobs", "touch_batches", "operations", "operation_steps", "outbox", "brain_objects", "brain_names", "brain_edges",
    "interest_points", "interest_evidence",
}  # fmt: skip

# What runs below a statement, by triggers and foreign keys, is explained too.
_EXPLAIN = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on; SET auto_explain.log_timing = off;
SET auto_explain.log_buffers = on;
SET auto_explain.log_nested_statements = on; SET auto_explain.log_format = json; SET auto_explain.log_level = notice"""

# A prepared statement is planned for its values a few times, then may be planned once for any.
_MODES = ("force_custom_plan", "force_generic_plan")


class Explained:
    """Takes a connection's place: runs every statement by a plan for its values and by one for any, and keeps both plans."""

    def __init__(self, conn: pool.Connection) -> None:
        self._conn = conn
        self.plans: list[dict[str, Any]] = []
        self._listens = False
        conn.add_notice_handler(self._heard)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._conn, name)

    def execute(self, statement: str, params: Any = None, *, binary: bool | None = None) -> Any:
        """Run a statement twice, the first time only to see how. Whatever triggers put off is done before it is over."""
        self._listens = True
        for mode in _MODES:
            self._conn.execute(f"SET LOCAL plan_cache_mode = {mode}")
            with self._conn.transaction(force_rollback=mode is not _MODES[-1]):
                found = self._conn.execute(statement, params, binary=binary)
        self._end()
        self._listens = False
        return found

    def plain(self, statement: str, params: Any = None) -> list[Any]:
        """What a test asks for itself: run once, and not kept."""
        rows = self._conn.execute(statement, params).fetchall()
        self._end()
        return rows

    def nodes(self) -> Iterator[dict[str, Any]]:
        waiting = list(self.plans)
        while waiting:
            node = waiting.pop()
            waiting += node.get("Plans", [])
            yield node

    def scanned(self) -> set[str]:
        """Large tables that would be read without an index, were it only by a part of a plan that had nothing to do."""
        return {n["Relation Name"] for n in self.nodes() if n["Node Type"] == "Seq Scan"} & BIG

    def indexes(self) -> set[str]:
        """Indexes that were read."""
        return {n["Index Name"] for n in self._run() if "Index Name" in n}

    def most_rows(self) -> int:
        """The most rows that any part of any plan had to look at, those that it dropped included."""
        return max(round(_rows(n) * n["Actual Loops"]) for n in self._run())

    def most_pages(self) -> int:
        """The most pages that a statement asked for, in memory or not: rows that an index left out itself are seen by these."""
        return max(plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0) for plan in self.plans)

    def stays_on(self, *indexes: str, rows: int, pages: int) -> bool:
        """Whether these indexes were read, no large table without one, and no more than so much of any. Begins anew then."""
        assert self.scanned() == set(), self.scanned()
        assert set(indexes) <= self.indexes(), (set(indexes) - self.indexes(), self.indexes())
        assert self.most_rows() <= rows, self._largest()
        assert self.most_pages() <= pages, self.most_pages()
        self.plans.clear()
        return True

    def _end(self) -> None:
        """The server is done with a statement, and tells how it ran it, when it is given the next one."""
        self._conn.execute("SELECT")

    def _run(self) -> Iterator[dict[str, Any]]:
        return (node for node in self.nodes() if node.get("Actual Loops"))

    def _largest(self) -> tuple[Any, ...]:
        node = max(self._run(), key=lambda n: _rows(n) * n["Actual Loops"])
        return self.most_rows(), node["Node Type"], node.get("Index Name") or node.get("Relation Name")

    def _heard(self, notice: Diagnostic) -> None:
        _, _, plan = (notice.message_primary or "").partition("plan:\n")
        if plan and self._listens:
            self.plans.append(json.loads(plan)["Plan"])


def _rows(node: dict[str, Any]) -> float:
    dropped = ("Rows Removed by Filter", "Rows Removed by Index Recheck", "Rows Removed by Join Filter")
    return float(node["Actual Rows"]) + sum(node.get(name, 0) for name in dropped)


@contextmanager
def explained(dsn: str) -> Iterator[Any]:
    """A stand-in for a connection of the pool; what it wrote is rolled back."""
    storage.close()
    pool.open_pool(dsn)
    try:
        with pool.connection() as conn:
            conn.execute(_EXPLAIN)
            yield Explained(conn)
            conn.rollback()
    finally:
        pool.close_pool()
