"""Statements explained as they run, for tests that hold queries to their indexes."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg._queries import PostgresQuery
from psycopg.adapt import Transformer

from isotherm import storage
from isotherm.storage.postgres import pool

if TYPE_CHECKING:
    from collections.abc import Iterator

# The 201 banks and namespaces fill a few pages, which are as well scanned.
BIG = {
    "tier_records",
    "tier_vectors",
    "tier_postings",
    "cold_words",
    "cold_bodies",
    "operation_steps",
    "outbox",
    "operations",
}


class Explained:
    """Takes a connection's place: explains every statement with its own parameters, then runs it."""

    def __init__(self, conn: pool.Connection) -> None:
        self._conn = conn
        self.plans: list[dict[str, Any]] = []

    def transaction(self) -> Any:
        return self._conn.transaction()

    def execute(self, statement: str, params: Any = None, *, binary: bool | None = None) -> Any:
        row = self._conn.execute(f"EXPLAIN (FORMAT JSON) {statement}", params).fetchone()
        assert row is not None
        self.plans += [row[0][0]["Plan"], self._generic(statement, params)]
        return self._conn.execute(statement, params, binary=binary)

    def _generic(self, statement: str, params: Any) -> dict[str, Any]:
        """The plan that a prepared statement may get after a few runs: one for any values."""
        query = PostgresQuery(Transformer(self._conn))
        query.convert(statement, params)
        names = self._conn.execute(
            "SELECT array_agg(format_type(o, NULL) ORDER BY n) FROM unnest(%s::oid[]) WITH ORDINALITY AS t (o, n)",
            (list(query.types or ()),),
        ).fetchone()
        types = ["unknown" if name in {"-", "text"} else name for name in (names and names[0]) or []]
        given = f"({', '.join(types)})" if types else ""
        values = f"({', '.join(['NULL'] * len(types))})" if types else ""
        self._conn.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        self._conn.execute(f"PREPARE generic {given} AS ".encode() + query.query)
        row = self._conn.execute(f"EXPLAIN (FORMAT JSON) EXECUTE generic {values}").fetchone()
        self._conn.execute("DEALLOCATE generic")
        self._conn.execute("RESET plan_cache_mode")
        assert row is not None
        plan: dict[str, Any] = row[0][0]["Plan"]
        return plan

    def nodes(self) -> Iterator[dict[str, Any]]:
        waiting = list(self.plans)
        while waiting:
            node = waiting.pop()
            waiting += node.get("Plans", [])
            yield node

    def scanned(self) -> set[str]:
        return {n["Relation Name"] for n in self.nodes() if n["Node Type"] == "Seq Scan"} & BIG

    def indexes(self) -> set[str]:
        return {n["Index Name"] for n in self.nodes() if "Index Name" in n}


@contextmanager
def explained(dsn: str) -> Iterator[Any]:
    """A stand-in for a connection; what it wrote is rolled back."""
    storage.close()
    with psycopg.connect(dsn) as conn:
        pool._configure(conn)
        yield Explained(conn)
        conn.rollback()
