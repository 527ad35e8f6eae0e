from __future__ import annotations

import math
from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest
from brain_kit import check_brain
from explaining_rows import LEARNED, RECORDS, WORK, filled_with
from inprocess import check_database
from psycopg import sql

from isotherm import storage
from isotherm.storage.embedded import Endpoints
from isotherm.storage.models import factory
from isotherm.storage.opened import Storage
from isotherm.storage.postgres import pool
from isotherm.tasks import produce_records, publish

# Triggers off, so that the order of the tables does not matter.
_EMPTY = """
DO $$ DECLARE t text; BEGIN
    SET LOCAL session_replication_role = replica;
    FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'schema_migrations' LOOP
        EXECUTE format('DELETE FROM %I', t);
    END LOOP;
    PERFORM setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S';
END $$"""


@pytest.fixture(scope="module")
def module_dsn(endpoints: Endpoints, template: str) -> Iterator[str]:
    """A migrated database that the tests of a module use one after the other."""
    name = f"module_{uuid4().hex}"
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
        yield endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{name}"
        storage.close()
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def emptied_dsn(module_dsn: str) -> str:
    """The module's database, empty: hundreds of tests cannot each wait for a database of their own."""
    storage.close()
    with psycopg.connect(module_dsn, autocommit=True) as conn:
        conn.execute(_EMPTY)
    return module_dsn


@pytest.fixture
def memory(opened: Storage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """Storage whose messages stay in the outbox, since the test runs the stages; the database is checked at the end."""
    monkeypatch.setattr(publish._State, "paused_until", math.inf)
    # What follows a commit is done before the call returns, so that a test can look at it.
    monkeypatch.setattr(produce_records, "after_commit", lambda follow_up, item: follow_up([item]))
    yield opened
    if pool.is_open():
        check_database()


@pytest.fixture
def words_only(memory: Storage) -> Iterator[None]:
    """A knowledge base without an embedder, unless a test uses one; it is checked at the end."""
    factory.use_embedder(memory.settings, None)
    yield
    factory._made.forget()
    check_brain()


@pytest.fixture(scope="session")
def filled_rows(endpoints: Endpoints, template: str) -> Iterator[str]:
    """A database with a namespace of 100,000 records; tests roll back what they write."""
    with filled_with(endpoints, template, RECORDS, WORK, LEARNED) as dsn:
        yield dsn
