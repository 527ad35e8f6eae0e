"""Every key and every statement of a table that has an owner names that owner, or stands in a short list with its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import errors as pg

if TYPE_CHECKING:
    from collections.abc import Iterator

OWNER = {"namespace_id", "bank_id", "namespace"}

_OWNED = """
SELECT c.table_name::text, array_agg(c.column_name::text ORDER BY c.column_name)
FROM information_schema.columns AS c JOIN information_schema.tables AS t USING (table_schema, table_name)
WHERE c.table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.column_name = ANY(%s) GROUP BY 1 ORDER BY 1"""
_KEYS = """
SELECT k.conrelid::regclass::text, k.conname::text, k.contype::text,
       ARRAY(SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = k.conrelid AND a.attnum = ANY(k.conkey)),
       nullif(k.confrelid, 0)::regclass::text
FROM pg_constraint AS k WHERE k.contype IN ('p', 'u', 'f') AND k.connamespace = 'public'::regnamespace
UNION ALL
SELECT i.indrelid::regclass::text, i.indexrelid::regclass::text, 'u',
       ARRAY(SELECT a.attname::text FROM pg_attribute AS a WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey::int2[])), NULL
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indrelid
WHERE i.indisunique AND c.relnamespace = 'public'::regnamespace
  AND NOT EXISTS (SELECT 1 FROM pg_constraint AS k WHERE k.conindid = i.indexrelid)
ORDER BY 1, 2"""

# No caller can name a row by these: they are given by the database, and found by a statement that names the owner.
_ROW = "a row by its own number, which no caller can choose"
_OF_RECORD = "hangs on one record, whose owner cannot change"
_WORK = "work is found by its own random id, which is the caller's receipt"
EXCUSED = {
    "brain_edges_pkey": _ROW,
    "brain_imports_pkey": _ROW,
    "brain_objects_pkey": _ROW,
    "brain_stats_deltas_pkey": _ROW,
    "cold_blobs_pkey": _ROW,
    "interest_evidence_pkey": _ROW,
    "interest_log_pkey": _ROW,
    "interest_merges_pkey": _ROW,
    "namespaces_pkey": "the owner itself",
    "namespaces_tenant_scope_agent_session_run_key": "the owner itself, by its five names",
    "tier_records_pkey": _ROW,
    "tier_moves_pkey": _ROW,
    "cold_words_pkey": _OF_RECORD,
    "cold_words_record_key_fkey": _OF_RECORD,
    "tier_moves_record_key_fkey": _OF_RECORD,
    "tier_set_aside_pkey": _OF_RECORD,
    "tier_set_aside_record_key_fkey": _OF_RECORD,
    "tier_vectors_pkey": _OF_RECORD,
    "tier_vectors_record_key_fkey": _OF_RECORD,
    "brain_names_object_key_fkey": "hangs on one object, whose owner cannot change",
    "cold_blobs_object_key_key": "the name of a blob, below the prefix of its owner",
    "interest_points_pkey": "a UUID made of bank and name; the key with the bank stands beside it",
    "interest_themes_pkey": "a random UUID",
    "interest_contradictions_pkey": "a UUID made of its two points",
    "interest_contradictions_left_id_right_id_key": "both points are of one bank, by their foreign keys",
    "interest_contradictions_left_evidence_fkey": "a row by its number, found under the bank",
    "interest_contradictions_right_evidence_fkey": "a row by its number, found under the bank",
    "interest_edges_pkey": "both points are of one bank, by their foreign keys",
    "interest_evidence_point_id_record_key_statement_key": "the point is of one bank, by its foreign key",
    "interest_merges_log_id_fkey": "hangs on one entry of the log",
    "operations_pkey": _WORK,
    "operations_idempotency": "the hash of a key holds the names of its owner",
    "brain_imports_operation_id_fkey": _WORK,
    "interest_banks_turn_of_fkey": _WORK,
}


@pytest.fixture(scope="module")
def catalog(module_dsn: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(module_dsn, autocommit=True) as conn:
        yield conn


def test_every_key_of_an_owned_table_carries_its_owner(catalog: psycopg.Connection[tuple[object, ...]]) -> None:
    owned = {str(table) for table, _ in catalog.execute(_OWNED, (sorted(OWNER),)).fetchall()}
    assert len(owned) > 30
    bare = {
        str(name): f"{table} {kind} {columns} -> {target}"
        for table, name, kind, columns, target in catalog.execute(_KEYS).fetchall()
        if str(table) in owned and not set(columns) & OWNER  # type: ignore[call-overload]  # an array
    }
    assert {name: told for name, told in bare.items() if name not in EXCUSED} == {}
    assert set(EXCUSED) <= set(bare), "an excuse that nothing needs"


def test_no_statement_gives_a_row_another_owner(catalog: psycopg.Connection[tuple[object, ...]]) -> None:
    """Asked of the catalog, so that a table that comes later is not left out; partitions and views have no rows here."""
    unguarded = []
    for table, columns in catalog.execute(_OWNED, (sorted(OWNER),)).fetchall():
        guarded = catalog.execute(
            """SELECT array_agg(a.attname::text) FROM pg_trigger AS g JOIN pg_attribute AS a
               ON a.attrelid = g.tgrelid AND a.attnum = ANY(g.tgattr::int2[])
               WHERE g.tgrelid = %s::regclass AND g.tgfoid = 'refuse_other_owner'::regproc AND g.tgenabled = 'O'""",
            (table,),
        ).fetchone()
        if set(columns) - set((guarded or ([],))[0] or []):  # type: ignore[call-overload]  # an array
            unguarded.append(table)
    assert unguarded == []
    catalog.execute("INSERT INTO banks (tenant, agent) VALUES (NULL, 'a'), (NULL, 'b')")
    catalog.execute("INSERT INTO interest_vectors (bank_id, key, vector) SELECT min(id), 'k', 'v' FROM banks")
    with pytest.raises(pg.ForeignKeyViolation, match="the owner of a row stays"):
        catalog.execute("UPDATE interest_vectors SET bank_id = (SELECT max(id) FROM banks)")
