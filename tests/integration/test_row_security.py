"""The second lock: what a statement sees and writes that forgot its owner, and how the lock is switched and examined."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest
from inprocess import drive

from isotherm import storage
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.errors import OutOfReachError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage import servers
from isotherm.storage.postgres import namespaces, reach, row_security
from isotherm.storage.postgres.pool import connection, fetch_all, maintaining, reading, statement
from isotherm.storage.postgres.reach import SYSTEM, TENANT, reaching, system
from isotherm.storage.postgres.row_security import GLOBAL
from isotherm.tasks import producers

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from isotherm.storage.opened import Storage
    from isotherm.storage.postgres.namespaces import Place
    from isotherm.storage.postgres.pool import Connection

OURS, THEIRS = Namespace.of("atlas", "s1", tenant="acme"), Namespace.of("atlas", "s1", tenant="zenith")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

_TABLES = """
SELECT table_name::text FROM information_schema.tables
WHERE table_schema = 'public' AND table_type = 'BASE TABLE' ORDER BY 1"""
_NEEDED = """
SELECT column_name::text, udt_name::text FROM information_schema.columns
WHERE table_schema = 'public' AND table_name = %s AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'"""
# What a table says of its values, where one of their type would not do; these rows no verb of `_fill` writes.
_VALUES = {"uuid": "gen_random_uuid()", "text": "md5(random()::text)", "jsonb": "'{}'", "timestamptz": "now()",
           "bytea": "decode(md5(random()::text), 'hex')", "bool": "false", "halfvec": "'[1]'", "_int8": "'{}'",
           "_int4": "'{}'", "int2": "1", "int4": "1", "int8": "1", "float8": "1"}  # fmt: skip
_SPECIAL = {
    "cold_bodies.body": "'x'", "cold_bodies.codec": "'zstd'", "interest_log.action": "'create'",
    "interest_edges.kind": "'sequel'", "interest_contradictions.left_id": "'00000000-0000-0000-0000-000000000001'",
}  # fmt: skip
_ALSO = {"cold_bodies": {"body": "bytea"}, "tier_vectors": {"vector": "halfvec"}}
_POINT = "(SELECT id FROM interest_points WHERE bank_id = {bank} LIMIT 1)"
_OWNERS = {
    "bank_id": "{bank}", "namespace_id": "{space}", "namespace": "'{graph}'", "point_id": _POINT, "source_id": _POINT,
    "record_key": "(SELECT key FROM tier_records WHERE namespace_id = {space} LIMIT 1)",
    "object_key": "(SELECT key FROM brain_objects WHERE namespace_id = {space} LIMIT 1)",
    "log_id": "(SELECT max(id) FROM interest_log WHERE bank_id = {bank})",
    "operation_id": "(SELECT id FROM operations WHERE namespace_id = {space} LIMIT 1)",
}  # fmt: skip


@pytest.fixture(scope="module")
def row_security() -> bool:  # noqa: F811 - what `kept_storage` asks for
    return True


@pytest.fixture(scope="module")
def owned(kept_storage: Storage) -> list[str]:
    """Tables that have an owner, as the catalog has them."""
    assert kept_storage.settings.rls
    return [table for (table,) in fetch_all(_TABLES) if table not in GLOBAL]


@pytest.fixture(scope="module")
def counts(owned: list[str]) -> dict[str, tuple[int, int]]:
    """Rows of ours and of theirs by table; every table that has an owner has some of both."""
    nothing = _counted(owned)
    _fill(OURS, owned)
    ours = _counted(owned)
    _fill(THEIRS, owned)
    both = _counted(owned)
    assert [table for table in owned if not nothing[table] < ours[table] < both[table]] == []
    return {table: (ours[table] - nothing[table], both[table] - ours[table]) for table in owned}


def _counted(tables: list[str]) -> dict[str, int]:
    return {table: int(fetch_all(f"SELECT count(*) FROM {table}")[0][0]) for table in tables}


def _fill(owner: Namespace, tables: list[str]) -> None:
    """A record, objects with an edge, an interest; and by hand a row of what these leave out."""
    before = _counted(tables)
    producers.remember(owner, "the harbor cat sleeps", record_id="r")
    first, second = UUID(int=(1 << 100) + 7), UUID(int=(1 << 100) + 8)
    producers.put(owner, "note", object_id=first, title="harbor", content="cats")
    producers.put(owner, "note", object_id=second, title="cat")
    producers.link(owner, first, second, "near")
    said = TranscriptLine(1, owner.agent, str(owner.session), owner.tenant, "user", "I prefer tea over coffee.", NOON)
    producers.ingest_session(owner, [said])
    drive()
    after, place = _counted(tables), namespaces.find(owner)
    assert place is not None
    values = {"bank": place.bank_id, "space": place.namespace_id, "graph": namespace_uuid(owner)}
    with _owner_of_tables() as conn:
        conn.execute("SET session_replication_role = replica")
        for table in tables:
            if after[table] == before[table]:
                conn.execute(_by_hand(conn, table).format(**values).encode())


def _owner_of_tables() -> psycopg.Connection[tuple[Any, ...]]:
    return psycopg.connect(servers.postgres_dsn(storage.open().settings), autocommit=True)


def _by_hand(conn: psycopg.Connection[tuple[Any, ...]], table: str) -> str:
    needed = dict(conn.execute(_NEEDED, (table,)).fetchall())
    needed |= _ALSO.get(table, {})
    chosen = {
        name: _SPECIAL.get(f"{table}.{name}") or _OWNERS.get(name) or _VALUES[kind].replace("{}", "{{}}")
        for name, kind in needed.items()
    }
    return f"INSERT INTO {table} ({', '.join(chosen)}) VALUES ({', '.join(chosen.values())})"


# Statements that forgot


Way = "Callable[[], AbstractContextManager[Connection]]"


@pytest.mark.parametrize("way", [connection, statement, reading])
def test_a_statement_that_forgot_its_owner_sees_what_is_in_reach_and_with_nothing_set_nothing(
    counts: dict[str, tuple[int, int]], way: Callable[[], AbstractContextManager[Connection]]
) -> None:
    for place, nth in ((OURS, 0), (THEIRS, 1)):
        for owner in (place, place.bank, _place(place)):
            with reaching(owner), way() as conn:
                seen = {table: _count(conn, table) for table in counts}
            assert seen == {table: pair[nth] for table, pair in counts.items() if table not in _GRAPHS} | dict.fromkeys(
                _GRAPHS, 0
            )
    with way() as conn:  # the connection that was used a moment ago
        assert {table for table in counts if _count(conn, table)} == set()


_GRAPHS = ("graph_edges", "graph_nodes")


def _count(conn: Connection, table: str) -> int:
    row = conn.execute(f"SELECT count(*) FROM {table}").fetchone()
    return int(row[0]) if row else -1


def _place(namespace: Namespace) -> Place:
    found = namespaces.find(namespace)
    assert found is not None
    return found


def test_graphs_are_in_reach_by_their_names(counts: dict[str, tuple[int, int]]) -> None:
    with reach.graph_of(namespace_uuid(OURS)), connection() as conn:
        assert [_count(conn, table) for table in _GRAPHS] == [counts[table][0] for table in _GRAPHS]
        assert _count(conn, "tier_records") == 0


def test_a_delete_that_forgot_its_owner_takes_only_what_is_in_reach(counts: dict[str, tuple[int, int]]) -> None:
    with reaching(OURS), reach.graph_of(namespace_uuid(OURS)):
        for table, (ours, _) in counts.items():
            if table not in {"banks", "namespaces", "operations"}:  # others refer to these
                with connection() as conn:
                    assert conn.execute(f"DELETE FROM {table}").rowcount == ours, table
                    conn.rollback()
    for table in counts:
        with connection() as conn:
            assert conn.execute(f"DELETE FROM {table}").rowcount == 0, table


def test_a_row_of_another_owner_cannot_be_written(counts: dict[str, tuple[int, int]]) -> None:
    for table in counts:
        with reaching(THEIRS), reach.graph_of(namespace_uuid(THEIRS)), connection() as conn:
            row = conn.execute(f"SELECT to_jsonb(t) FROM {table} AS t LIMIT 1").fetchone()
        assert row is not None
        again = (
            f"INSERT INTO {table} OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(NULL::{table}, %s::jsonb)).*"
        )
        for owner in (OURS, OURS.bank):
            with pytest.raises(OutOfReachError), reaching(owner), connection() as conn:
                conn.execute(again, (json.dumps(row[0]),))
    assert dict.fromkeys(counts, (0, 0)) != counts


def test_a_reach_ends_with_its_transaction(counts: dict[str, tuple[int, int]]) -> None:
    assert counts
    with reaching(OURS), connection() as conn:
        assert _count(conn, "tier_records") > 0
        conn.commit()
        assert _count(conn, "tier_records") == 0
    with pytest.raises(psycopg.errors.DivisionByZero), system(), connection() as conn:
        conn.execute("SELECT 1 / (current_user = %s)::int - 1 / 0", (SYSTEM,))
    for way in (connection, statement, reading):
        with way() as conn:
            assert conn.execute("SELECT current_user::text").fetchone() == (TENANT,)
    with maintaining() as conn:
        assert conn.execute("SELECT current_user = session_user").fetchone() == (True,)
    with connection() as conn:
        assert conn.execute("SELECT current_user::text").fetchone() == (TENANT,)


def test_a_plan_that_is_kept_is_of_nobody(counts: dict[str, tuple[int, int]]) -> None:
    """One connection after the other asks the same statement for two owners, more often than it takes to keep its plan."""
    for _ in range(12):
        for owner, nth in ((OURS, 0), (THEIRS, 1)):
            with reaching(owner), reading() as conn:
                assert _count(conn, "tier_records") == counts["tier_records"][nth]
        with reading() as conn:
            assert _count(conn, "tier_records") == 0


def test_words_of_cold_records_are_looked_for_in_one_bank(counts: dict[str, tuple[int, int]]) -> None:
    assert counts
    with reaching(OURS), connection() as conn:
        conn.execute("SELECT set_config('enable_seqscan', 'off', true)")
        asked = "EXPLAIN SELECT record_key FROM cold_words WHERE words @> ARRAY[1::bigint] AND bank_id = 1"
        plan = "\n".join(str(row[0]) for row in conn.execute(asked).fetchall())
    assert "cold_words_of_bank" in plan


def test_files_are_rewritten_by_the_login(counts: dict[str, tuple[int, int]]) -> None:
    assert producers.rewrite_files().tables >= len(counts)
    with reaching(OURS), connection() as conn:
        assert _count(conn, "banks") == counts["banks"][0]


def test_an_owner_that_was_erased_and_made_again_is_the_new_one(kept_storage: Storage) -> None:
    """Another process erases: this one remembers numbers that are out of reach by now."""
    gone = Namespace.of("passing", "s1")
    producers.remember(gone, "kelp", record_id="old")
    stale = dict(namespaces._PLACES)
    producers.forget(gone)
    drive()
    namespaces._PLACES.update(stale)
    assert producers.remember(gone, "kelp", record_id="new").new
    assert [record.id for record in producers.list_all(gone).records] == ["new"]
    assert kept_storage.tier.tail(gone)[0].id == "new"
    drive()


# The lock itself


def test_writes_that_move_pin_and_wait_for_a_pass_stay_in_reach(kept_storage: Storage) -> None:
    assert kept_storage.settings.rls
    mine = Namespace.of("atlas", "moves", tenant="acme")
    now = datetime.now(UTC)
    producers.remember_records(mine, [NewRecord("a", "kelp", now, tier=Tier.WARM)])
    producers.remember_records(mine, [NewRecord("a", "moss", now, pinned=True)])
    assert [(m.source, m.target, m.reason) for m in producers.explain(mine, "a").moves] == [
        (Tier.WARM, Tier.HOT, "restore")
    ]
    waiting = producers.reconcile(mine)
    assert producers.reconcile(mine, Policy(hot_capacity=7)).operation_id == waiting.operation_id
    read = "SELECT input -> 'policy' -> 'hot_capacity' FROM operation_steps WHERE operation_id = %(id)s"
    with system():
        assert fetch_all(read, {"id": waiting.operation_id}) == [(7,)]
    drive()
    assert producers.plan_for_quota("acme").moves == ()
    producers.forget(mine)
    drive()


def test_every_table_with_an_owner_has_its_policies_and_no_other_table_is_open(owned: list[str]) -> None:
    rows = fetch_all("SELECT tablename::text, roles::text[], cmd::text, permissive::text FROM pg_policies")
    assert {(table, *roles) for table, roles, _, _ in rows} == {(t, role) for t in owned for role in (TENANT, SYSTEM)}
    assert {(cmd, permissive) for _, _, cmd, permissive in rows} == {("ALL", "PERMISSIVE")}
    secured = fetch_all("SELECT relname::text FROM pg_class WHERE relrowsecurity ORDER BY 1")
    assert [table for (table,) in secured] == owned
    assert len(owned) > 35
    open_to = (
        "SELECT relname::text FROM pg_class WHERE relkind = 'r' AND has_any_column_privilege(%(role)s, oid, 'SELECT')"
    )
    granted = {
        table for (table,) in fetch_all(f"{open_to} AND relnamespace = 'public'::regnamespace", {"role": TENANT})
    }
    assert granted - set(owned) == {table for table, rights in GLOBAL.items() if rights}
    columns = fetch_all(
        "SELECT table_name::text, column_name::text FROM information_schema.columns WHERE table_schema = 'public'"
    )
    named = {
        table
        for table, column in columns
        if column in {"namespace_id", "bank_id", "namespace", "record_key", "operation_id"}
    }
    assert named - set(owned) == {"erasures", "outbox"}  # a receipt and messages: ids, which the roles for all read


def test_the_tenants_role_is_bound(kept_storage: Storage) -> None:
    found = servers.row_security_of(kept_storage.settings)
    assert found.ready
    assert (found.bare, found.unknown, found.bypassing) == ((), (), ())
    [(superuser, bypasses, logs_in)] = fetch_all(
        "SELECT rolsuper, rolbypassrls, rolcanlogin FROM pg_roles WHERE rolname = %(role)s", {"role": TENANT}
    )
    assert (superuser, bypasses, logs_in) == (False, False, False)
