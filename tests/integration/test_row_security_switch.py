"""How the second lock is switched on and off, what keeps it from being one, and that it costs nothing while it is off."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from commanding import isotherm
from inprocess import drive
from psycopg import sql

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.storage import backup, servers
from isotherm.storage import settings as settings_module
from isotherm.storage.postgres import reach, row_security
from isotherm.storage.postgres.migrate import migrate
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.postgres.reach import SYSTEM, TENANT, system
from isotherm.tasks import producers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from isotherm.storage.embedded import Endpoints
    from isotherm.storage.opened import Storage

OURS = Namespace.of("atlas", "s1", tenant="acme")


def told() -> dict[str, Any]:
    done = json.loads(isotherm("doctor", "--json").stdout)
    return {f["subject"]: f for f in done["findings"]}["row security"]


@pytest.fixture
def guarded(emptied_dsn: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A database of the module's with the lock on, in this test's environment."""
    assert environment
    monkeypatch.setenv("ISOTHERM_RLS", "on")
    settings_module.settings.cache_clear()
    yield emptied_dsn
    storage.close()
    migrate(emptied_dsn, rls=False)
    settings_module.settings.cache_clear()


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def test_it_is_switched_by_a_setting_and_a_migration_and_leaves_no_trace(
    guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(guarded, autocommit=True) as conn:
        before = _shape(conn)
        done = isotherm("recall", "tea", "--agent", "atlas")
        assert done.returncode != 0
        assert "isotherm migrate" in done.stderr
        for _ in range(2):
            assert isotherm("migrate").returncode == 0
            assert row_security.state(conn).ready
        assert isotherm("remember", "kelp", "--agent", "atlas").returncode == 0
        rows = conn.execute("SELECT md5(r::text) FROM tier_records AS r").fetchall()
        assert told()["well"]
        monkeypatch.setenv("ISOTHERM_RLS", "off")
        settings_module.settings.cache_clear()
        storage.close()
        assert "left from before" in told()["text"]
        assert isotherm("migrate").returncode == 0
        assert _shape(conn) == before
        assert conn.execute("SELECT md5(r::text) FROM tier_records AS r").fetchall() == rows != []
        assert told()["text"] == "off"


def _shape(conn: psycopg.Connection[tuple[Any, ...]]) -> str:
    """All that the switch touches: rights, policies, functions and comments."""
    asked = (
        "SELECT relname::text, relrowsecurity, relacl::text FROM pg_class WHERE relnamespace = 'public'::regnamespace ORDER BY 1",
        "SELECT policyname::text FROM pg_policies",
        "SELECT grantee::regrole::text FROM pg_namespace, aclexplode(nspacl) WHERE grantee::regrole::text LIKE 'isotherm_%'",
        "SELECT proname::text FROM pg_proc WHERE proname LIKE 'isotherm%' ORDER BY 1",
        "SELECT description FROM pg_description WHERE description LIKE 'isotherm%'",
    )
    found: list[list[tuple[Any, ...]]] = [conn.execute(text.encode()).fetchall() for text in asked]
    found[0] = [(name, secured, acl if acl and "isotherm_" in acl else None) for name, secured, acl in found[0]]
    return hashlib.sha256(repr(found).encode()).hexdigest()


def test_a_table_that_comes_later_is_closed_until_a_migration_took_it_in_and_the_doctor_says_so(guarded: str) -> None:
    migrate(guarded, rls=True)
    with psycopg.connect(guarded, autocommit=True) as conn:
        conn.execute("CREATE TABLE later (namespace_id bigint NOT NULL)")
        conn.execute("CREATE TABLE strays (id bigint)")
        conn.execute("INSERT INTO later VALUES (1)")
        try:
            storage.open()
            for table in ("later", "strays"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege), system(), connection() as other:
                    other.execute(f"SELECT FROM {table}".encode())
            found = told()
            assert (found["well"], "later" in found["text"], "strays" in found["text"]) == (False, True, True)
            migrate(guarded)  # the setting is not asked for: it stays on
            found = told()
            assert (found["well"], "later" in found["text"], "strays" in found["text"]) == (False, False, True)
            with connection() as other:
                assert other.execute("SELECT count(*) FROM later").fetchone() == (0,)
        finally:
            conn.execute("DROP TABLE later, strays")


@pytest.mark.parametrize(
    ("opening", "closing"),
    [
        (f"ALTER ROLE {TENANT} BYPASSRLS", f"ALTER ROLE {TENANT} NOBYPASSRLS"),
        ("CREATE POLICY wide ON banks USING (true)", "DROP POLICY wide ON banks"),
    ],
    ids=["role", "policy"],
)
def test_what_gets_around_the_policies_is_told_and_refused(guarded: str, opening: str, closing: str) -> None:
    migrate(guarded, rls=True)
    with psycopg.connect(guarded, autocommit=True) as conn:
        conn.execute(opening.encode())
        try:
            assert (told()["well"], "gets around" in told()["text"]) == (False, True)
            with pytest.raises(RejectedError, match="get around"):
                migrate(guarded, rls=True)
            with pytest.raises(RejectedError, match="not prepared"):
                servers.probe(settings_module.settings())
        finally:
            conn.execute(closing.encode())
    servers.probe(settings_module.settings())


def test_a_login_without_rights_of_its_own_needs_an_administrator_once(endpoints: Endpoints) -> None:
    name = f"plain_{uuid4().hex}"
    here = psycopg.conninfo.make_conninfo(endpoints.postgres_dsn, dbname=name)
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        conn.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(*[sql.Identifier(name)] * 2))
        try:
            with psycopg.connect(here, autocommit=True) as other:
                for extension in ("vector", "pg_trgm", "btree_gin"):
                    other.execute(f"CREATE EXTENSION {extension}".encode())
            theirs = psycopg.conninfo.make_conninfo(here, user=name)
            with pytest.raises(RejectedError, match="as an administrator"):
                migrate(theirs, rls=True)
            for role in (TENANT, SYSTEM):
                conn.execute(
                    f"DO $$ BEGIN CREATE ROLE {role}; EXCEPTION WHEN duplicate_object THEN NULL; END $$".encode()
                )
                grant = sql.SQL("GRANT {} TO {} WITH SET TRUE, INHERIT FALSE")
                conn.execute(grant.format(sql.Identifier(role), sql.Identifier(name)))
            migrate(theirs, rls=True)
            with psycopg.connect(theirs, autocommit=True) as other:
                found = row_security.state(other)
                assert (found.ready, found.owner) == (True, True)
                other.execute("INSERT INTO banks (agent) VALUES ('a'), ('b')")
                other.execute(f"SET ROLE {TENANT}".encode())
                assert other.execute("SELECT count(*) FROM banks").fetchone() == (0,)
                other.execute("SELECT isotherm_reach(NULL, NULL, 'a', NULL, NULL), 1")
                assert other.execute("SELECT count(*) FROM banks").fetchone() == (0,)  # its settings ended with it
        finally:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
            conn.execute(sql.SQL("DROP OWNED BY {}").format(sql.Identifier(name)))
            conn.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


class Silent:
    """A progress nobody watches."""

    def begin(self, what: str, total: int) -> None: ...

    def advance(self) -> None: ...


def test_a_backup_takes_its_policies_nowhere(
    guarded: str, tmp_path: Path, endpoints: Endpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate(guarded, rls=True)
    producers.remember(OURS, "kelp", record_id="r")
    drive()
    assert isotherm("backup", str(tmp_path / "copy")).returncode == 0
    name = f"copy_{uuid4().hex}"
    there = psycopg.conninfo.make_conninfo(endpoints.postgres_dsn, dbname=name)
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            for on, policies in (("off", False), ("on", True)):
                storage.close()
                monkeypatch.setenv("ISOTHERM_RLS", on)
                monkeypatch.setenv("ISOTHERM_POSTGRES_DSN", endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{name}")
                settings_module.settings.cache_clear()
                backup.restore(settings_module.settings(), tmp_path / "copy", Silent(), replace=True)
                with psycopg.connect(there) as copy:
                    assert row_security.state(copy).any is policies
                assert [record.id for record in producers.list_all(OURS).records] == ["r"]
        finally:
            storage.close()
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def test_without_it_not_a_statement_more_is_sent(opened: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not opened.settings.rls
    monkeypatch.setattr(reach, "enter", lambda _: pytest.fail("the reach of a transaction costs a statement"))
    producers.remember(OURS, "kelp", record_id="r")
    assert producers.recall(OURS, "kelp").items
    with connection() as conn:
        assert conn.execute("SELECT current_user = session_user").fetchone() == (True,)
    assert fetch_all("SELECT count(*) FROM tier_records") == [(1,)]
    drive()
