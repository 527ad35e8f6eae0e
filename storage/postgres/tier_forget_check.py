"""What is left of an erasure, looked for in every table: whichever one names a namespace, a bank or a record is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isotherm.pipeline.tier.erasure import Level
from isotherm.storage.postgres import tier_forget_ledgers
from isotherm.storage.postgres.pool import Connection
from isotherm.storage.postgres.tier_forget import Erasure

# Tables are asked of the catalog, so that one that is added later is not forgotten here.
_COLUMNS = """
SELECT c.table_name, array_agg(c.column_name::text) FROM information_schema.columns AS c
JOIN information_schema.tables AS t USING (table_schema, table_name)
WHERE c.table_schema = current_schema() AND t.table_type = 'BASE TABLE' AND c.data_type IN ('bigint', 'integer')
  AND c.column_name IN ('namespace_id', 'bank_id', 'record_key', 'object_key')
GROUP BY c.table_name ORDER BY c.table_name"""

_OWN = {"namespaces": "id = ANY(%(namespaces)s)", "banks": "%(whole)s AND id = ANY(%(banks)s)"}
_KEYS = {Level.RECORDS: "record_key", Level.OBJECTS: "object_key"}
# A run that was started anew finds the same again, under the same id, in records that stayed: that is none of the erased.
_POINTS = """{column} IN (
    SELECT id FROM interest_points
    WHERE bank_id = ANY(%(banks)s) AND id = ANY(%(points)s) AND created_at < %(requested)s)"""
_OF_INTERESTS = {
    "interest_points": _POINTS.format(column="id"),
    "interest_evidence": _POINTS.format(column="point_id"),
    "interest_log": _POINTS.format(column="point_id"),
}
_LIVE_GRAPHS = "SELECT tenant, scope, agent, session, run FROM namespaces WHERE created_at >= %s"


def left_in_tables(conn: Connection, erasure: Erasure) -> Mapping[str, int]:
    """Rows by table that belong to what was forgotten; nothing when all are gone.

    Cost: one look at each table; tables without an index on what is asked are read whole.
    """
    values = {**erasure.scope, "keys": erasure.record_keys or erasure.object_keys, "points": erasure.interests}
    values |= {"requested": erasure.requested_at}
    found: dict[str, int] = {}
    for table, columns in conn.execute(_COLUMNS).fetchall():
        where = _where(erasure, set(columns))
        if where is not None:
            found[table] = _count(conn, table, where, values)
    if erasure.level is Level.RECORDS:
        found["tier_records"] = _count(conn, "tier_records", "key = ANY(%(keys)s)", values)
        found["operation_steps"] = tier_forget_ledgers.left(
            conn, erasure.namespace_ids, erasure.bank_ids, erasure.record_keys
        )
    elif erasure.level is Level.OBJECTS:
        found["brain_objects"] = _count(conn, "brain_objects", "key = ANY(%(keys)s)", values)
    elif erasure.level is Level.INTERESTS:
        found |= {table: _count(conn, table, where, values) for table, where in _OF_INTERESTS.items()}
    else:
        found |= {table: _count(conn, table, where, values) for table, where in _OWN.items()}
    return {table: n for table, n in found.items() if n}


def _where(erasure: Erasure, columns: set[str]) -> str | None:
    """The predicate for a table with these columns, None when it cannot hold anything of this level."""
    if erasure.level in _KEYS:
        key = _KEYS[erasure.level]
        if key not in columns:
            return None
        return f"{key} = ANY(%(keys)s)" + (" AND bank_id = ANY(%(banks)s)" if "bank_id" in columns else "")
    if erasure.level is Level.INTERESTS:
        return None
    if "namespace_id" in columns:
        whole = " OR (%(whole)s AND bank_id = ANY(%(banks)s))" if "bank_id" in columns else ""
        return f"namespace_id = ANY(%(namespaces)s){whole}"
    return "%(whole)s AND bank_id = ANY(%(banks)s)" if "bank_id" in columns else None


def _count(conn: Connection, table: str, where: str, values: Mapping[str, Any]) -> int:
    row = conn.execute(f'SELECT count(*) FROM "{table}" WHERE {where}', values).fetchone()
    return int(row[0]) if row else 0


def names_since(conn: Connection, erasure: Erasure) -> list[tuple[Any, ...]]:
    """Namespaces that were made since an erasure was asked for: they may bear the names of those that are gone."""
    return conn.execute(_LIVE_GRAPHS, (erasure.requested_at,)).fetchall()
