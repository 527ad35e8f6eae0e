from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from uuid import uuid4

import psycopg
import pytest
from inprocess import words_in_cold
from psycopg import sql

from isotherm.pipeline import text
from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.pipeline.identity import Bank
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import migrate as module
from isotherm.storage.postgres.migrate import Migration, declared, migrate, pending
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.tier_candidates import Quotas, candidates

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.storage.embedded import Endpoints

_SCHEMA = """
SELECT 'column', c.table_name, c.column_name,
       concat_ws(' ', c.data_type, c.collation_name, c.is_nullable, c.column_default, c.identity_generation)
FROM information_schema.columns AS c WHERE c.table_schema = 'public'
UNION ALL
SELECT 'index', tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL
SELECT 'constraint', r.relname, c.conname, pg_get_constraintdef(c.oid)
FROM pg_constraint AS c JOIN pg_class AS r ON r.oid = c.conrelid WHERE c.connamespace = 'public'::regnamespace
UNION ALL
SELECT 'storage', r.relname, a.attname, a.attstorage::text
FROM pg_attribute AS a JOIN pg_class AS r ON r.oid = a.attrelid
WHERE r.relnamespace = 'public'::regnamespace AND r.relkind = 'r' AND a.attnum > 0
ORDER BY 1, 2, 3, 4"""


@pytest.fixture
def empty(endpoints: Endpoints) -> Iterator[str]:
    """A database without anything of ours."""
    name = f"empty_{uuid4().hex}"
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{name}"
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def schema(dsn: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute(_SCHEMA).fetchall()


def applied(dsn: str) -> list[tuple[object, ...]]:
    with psycopg.connect(dsn) as conn:
        return conn.execute("SELECT number, name, sha256 FROM schema_migrations ORDER BY number").fetchall()


def test_migrations_are_numbered_without_gaps() -> None:
    found = declared()
    assert [m.number for m in found] == list(range(1, len(found) + 1))
    assert len({m.name for m in found}) == len(found)


def test_fresh_database_gets_every_migration_once(empty: str, dsn: str) -> None:
    assert [m.number for m in migrate(empty)] == [m.number for m in declared()]
    before = schema(empty)
    assert migrate(empty) == []
    assert schema(empty) == before == schema(dsn)
    assert applied(empty) == [(m.number, m.name, m.sha256) for m in declared()]


def test_database_of_an_earlier_version_ends_where_a_fresh_one_does(
    empty: str, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = declared()
    for count in range(1, len(everything) + 1):
        monkeypatch.setattr(module, "declared", lambda count=count: everything[:count])
        assert [m.number for m in migrate(empty)] == [count]
    assert schema(empty) == schema(dsn)


_EARLIER = """
INSERT INTO banks (agent) VALUES ('atlas'), ('other');
INSERT INTO namespaces (bank_id, scope, agent, session) SELECT id, 'session', agent, 's' FROM banks;
INSERT INTO tier_records (namespace_id, bank_id, id, content, content_sha256, summary, importance, tier, value_log,
    created_at, last_access_at, size_bytes, terms, indexed)
SELECT n.id, n.bank_id, t.id, CASE WHEN t.tier > 1 THEN 'text' END, sha256('text'), CASE WHEN t.tier = 1 THEN 'text' END,
    0.5, t.tier, 0, now(), now(), 4, t.terms, true
FROM namespaces AS n, (VALUES ('warm', 2, %(kelp)s::bigint[]), ('cold', 1, %(both)s), ('mute', 1, '{}')) AS t (id, tier, terms);
INSERT INTO tier_postings (bank_id, term, record_key, namespace_id)
SELECT r.bank_id, u.term, r.key, r.namespace_id FROM tier_records AS r, unnest(r.terms) AS u (term)"""


def test_words_of_cold_records_are_found_after_they_took_their_new_form(
    empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = declared()
    monkeypatch.setattr(module, "declared", lambda: everything[:12])
    migrate(empty)
    kelp, both = text.terms("kelp"), text.terms("kelp forest")
    with psycopg.ClientCursor(psycopg.connect(empty, autocommit=True)) as cursor:
        cursor.execute(_EARLIER, {"kelp": kelp, "both": both})
        cursor.connection.close()
    monkeypatch.setattr(module, "declared", lambda: everything)
    migrate(empty)
    with psycopg.connect(empty) as conn:
        rows = conn.execute(
            """SELECT r.id, r.terms, c.words, c.bank_id, c.namespace_id, ARRAY(SELECT p.term FROM tier_postings AS p
               WHERE p.record_key = r.key ORDER BY 1) FROM tier_records AS r LEFT JOIN cold_words AS c ON c.record_key = r.key
               JOIN banks AS b ON b.id = r.bank_id WHERE b.agent = 'atlas' ORDER BY r.id"""
        ).fetchall()
        [_, _, words, bank, namespace, _] = rows[0]
        assert [(row[0], row[1], row[5]) for row in rows] == [("cold", [], []), ("mute", [], []), ("warm", kelp, kelp)]
        assert sorted(words) == words_in_cold(bank, namespace, both)
        assert [row[2] for row in rows[1:]] == [None, None]
        for query, wanted in (("forest", {"cold"}), ("kelp", {"cold", "warm"}), ("moss", set())):
            found = candidates(conn, Scope(bank=Bank(None, "atlas")), query, list(Tier), Quotas(0, 10)).candidates
            assert {one.id for one in found} == wanted
            assert all(one.overlap > 0 for one in found)


def test_four_at_once_apply_each_migration_once(empty: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(migrate, [empty] * 4))
    assert sorted(m.number for part in done for m in part) == [m.number for m in declared()]
    assert len(applied(empty)) == len(declared())


def test_migration_that_fails_leaves_no_trace_and_can_be_run_again(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = declared()
    broken = Migration(len(everything) + 1, "broken", "CREATE TABLE half (id int); SELECT 1 / 0", "0" * 64)
    monkeypatch.setattr(module, "declared", lambda: [*everything, broken])
    with pytest.raises(psycopg.errors.DivisionByZero):
        migrate(empty)
    assert len(applied(empty)) == len(everything)
    assert not [row for row in schema(empty) if row[1] == "half"]
    monkeypatch.setattr(module, "declared", lambda: everything)
    assert migrate(empty) == []


def test_migration_changed_after_it_was_applied_is_refused(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("UPDATE schema_migrations SET sha256 = 'x' WHERE number = 1")
        with pytest.raises(RejectedError, match=f"{declared()[0].name} was changed"):
            migrate(dsn)
        with pytest.raises(RejectedError):
            pending(conn)


def test_newer_database_is_refused(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("INSERT INTO schema_migrations (number, name, sha256) VALUES (9999, 'later', 'x')")
    with pytest.raises(RejectedError, match="newer than this version: it has migration 9999"):
        migrate(dsn)


def test_old_server_is_refused_by_name(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MIN_SERVER", 990_000)
    with pytest.raises(RejectedError, match="16 or newer is needed; this server is"):
        migrate(empty)
    assert schema(empty) == []


def test_old_pgvector_is_refused_by_name(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MIN_VECTOR", (99, 0))
    with pytest.raises(RejectedError, match=r"pgvector .* is needed; this server has"):
        migrate(empty)
    assert not [row for row in schema(empty) if row[1] == "tier_records"]


def test_database_without_pgvector_says_what_to_run(empty: str) -> None:
    with psycopg.connect(empty) as conn, pytest.raises(RejectedError, match="isotherm migrate"):
        module.check_vector(conn)


def test_server_that_is_away_is_unavailable() -> None:
    with pytest.raises(UnavailableError):
        migrate("postgresql://nobody@127.0.0.1:1/none")
