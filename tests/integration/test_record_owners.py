"""A record belongs to a namespace of its bank, whatever order things happen in, though no foreign key says so."""

from __future__ import annotations

import threading

import psycopg
import pytest
from psycopg import errors as pg

from isotherm.pipeline.errors import ErasedError
from isotherm.pipeline.identity import Namespace
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers

pytestmark = pytest.mark.usefixtures("memory")

NS = Namespace.of("atlas", "s1")
OTHER = Namespace.of("boreas", "s1")
_INSERT = """
INSERT INTO tier_records (namespace_id, bank_id, id, content, content_sha256, importance, tier, value_log, created_at,
                          last_access_at, size_bytes)
SELECT u.namespace_id, u.bank_id, 'r' || u.namespace_id, 'kelp', sha256('kelp'), 0.5, 3, 0, now(), now(), 4
FROM unnest(%s::bigint[], %s::bigint[]) AS u (namespace_id, bank_id)"""


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def insert(conn: psycopg.Connection[tuple[object, ...]], *places: Place) -> None:
    conn.execute(_INSERT, ([p.namespace_id for p in places], [p.bank_id for p in places]))


def records() -> int:
    return int(fetch_all("SELECT count(*) FROM tier_records")[0][0])


def waiting(dsn: str) -> bool:
    with psycopg.connect(dsn) as conn:
        sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        return conn.execute(sql).fetchone() == (1,)


@pytest.mark.parametrize("wrong", ["namespace", "bank"])
def test_record_of_no_namespace_or_of_another_bank_is_refused_with_its_statement(wrong: str) -> None:
    mine, other = namespaces.resolve(NS), namespaces.resolve(OTHER)
    stray = Place(mine.namespace_id + 1_000 if wrong == "namespace" else mine.namespace_id, other.bank_id)
    with pytest.raises(ErasedError), connection() as conn:
        insert(conn, other, stray)
    assert records() == 0


def test_namespace_with_records_stays_and_rows_keep_their_owner(dsn: str) -> None:
    producers.remember(NS, "kelp", record_id="a")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("DELETE FROM operations")
        for sql in (
            "DELETE FROM namespaces",
            "TRUNCATE namespaces CASCADE",
            "UPDATE tier_records SET namespace_id = namespace_id + 1",
            "UPDATE tier_records SET bank_id = bank_id + 1",
            "UPDATE namespaces SET bank_id = bank_id + 1",
        ):
            with pytest.raises(pg.ForeignKeyViolation, match=r"owner|has records|have records"):
                conn.execute(sql)
        conn.execute("DELETE FROM tier_records")
        assert conn.execute("DELETE FROM namespaces").rowcount == 1


def test_namespace_waits_for_a_writer_and_stays_when_it_commits(dsn: str) -> None:
    place = namespaces.resolve(NS)
    refused: list[Exception] = []

    def delete() -> None:
        try:
            with psycopg.connect(dsn, autocommit=True) as conn:
                conn.execute("DELETE FROM namespaces WHERE id = %s", (place.namespace_id,))
        except pg.ForeignKeyViolation as error:
            refused.append(error)

    with psycopg.connect(dsn) as writer:
        insert(writer, place)
        thread = threading.Thread(target=delete)
        thread.start()
        while thread.is_alive() and not waiting(dsn):
            thread.join(0.01)
        assert thread.is_alive()
        writer.commit()
        thread.join(10)
    assert (len(refused), records()) == (1, 1)


def test_writer_waits_for_an_erasure_and_is_refused_when_it_commits(dsn: str) -> None:
    place = namespaces.resolve(NS)
    outcome: list[Exception | None] = []

    def write() -> None:
        try:
            with psycopg.connect(dsn) as conn:
                insert(conn, place)
            outcome.append(None)
        except pg.ForeignKeyViolation as error:
            outcome.append(error)

    with psycopg.connect(dsn) as eraser:
        eraser.execute("SELECT 1 FROM namespaces WHERE id = %s FOR UPDATE", (place.namespace_id,))
        thread = threading.Thread(target=write)
        thread.start()
        while thread.is_alive() and not waiting(dsn):
            thread.join(0.01)
        assert thread.is_alive()
        eraser.execute("UPDATE namespaces SET agent = '', forgotten_at = now() WHERE id = %s", (place.namespace_id,))
        eraser.commit()
        thread.join(10)
    assert [type(error) for error in outcome] == [pg.ForeignKeyViolation]
    assert records() == 0
