from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from isotherm.pipeline.errors import RejectedError, TransientError, UnavailableError
from isotherm.storage.postgres import pool
from isotherm.storage.postgres.pool import connection, fetch_all

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage

_FORK = """
import os, sys
from isotherm import storage
from isotherm.storage.postgres import pool
from isotherm.storage.redis import client
from isotherm.storage.opened import _State

storage.open()
assert pool.fetch_all("SELECT 1") == [(1,)]
child = os.fork()
if child == 0:
    try:
        pool.fetch_all("SELECT 1")
    except RuntimeError:
        fresh = _State.opened is None and client._State.client is None
        storage.open()
        os._exit(0 if fresh and pool.fetch_all("SELECT 2") == [(2,)] else 3)
    os._exit(4)
_, status = os.waitpid(child, 0)
assert pool.fetch_all("SELECT 3") == [(3,)]
storage.close()
sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_forked_child_has_no_pool_until_it_opens_its_own(environment: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FORK], env={**os.environ, **environment}, timeout=60, check=False, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_nothing_works_before_the_pool_is_open() -> None:
    assert not pool.is_open()
    with pytest.raises(RuntimeError, match="open_pool"), connection():
        pass


def _terminate_others(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()"""
        )
        while conn.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        ).fetchone():
            time.sleep(0.01)


def _hold(_: int) -> None:
    with connection() as conn:
        conn.execute("SELECT pg_sleep(0.1)")


def test_dead_connections_are_replaced_after_the_first_error(opened: Storage, dsn: str) -> None:
    assert opened
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(_hold, range(2)))  # two connections, both just used and so trusted
    _terminate_others(dsn)
    with pytest.raises(TransientError, match="PostgreSQL: "):
        fetch_all("SELECT 1")
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(_hold, range(2)))


def test_connection_that_died_while_idle_is_replaced_before_it_is_used(
    opened: Storage, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opened
    monkeypatch.setattr(pool, "_TRUSTED_S", 0.0)
    fetch_all("SELECT 1")
    _terminate_others(dsn)
    assert fetch_all("SELECT 1") == [(1,)]


def test_connection_that_dies_in_the_middle_is_a_passing_error_and_nothing_is_written(
    opened: Storage, dsn: str
) -> None:
    assert opened

    def write() -> None:
        with connection() as conn:
            conn.execute("INSERT INTO touch_batches (id) VALUES ('b1')")
            _terminate_others(dsn)
            conn.execute("SELECT 1")

    with pytest.raises(TransientError):
        write()
    assert fetch_all("SELECT count(*) FROM touch_batches") == [(0,)]


def test_server_that_is_away_is_unavailable() -> None:
    pool.open_pool("postgresql://nobody:secret@127.0.0.1:1/none")
    try:
        assert pool._State.pool is not None
        pool._State.pool.timeout = 0.3
        with pytest.raises(UnavailableError, match="PostgreSQL cannot be reached") as caught:
            fetch_all("SELECT 1")
        assert "secret" not in str(caught.value)
    finally:
        pool.close_pool()


def test_pool_that_is_all_in_use_is_unavailable(dsn: str) -> None:
    pool.open_pool(dsn, size=1)
    assert pool._State.pool is not None
    pool._State.pool.timeout = 0.2
    with connection(), pytest.raises(UnavailableError):
        fetch_all("SELECT 1")
    assert fetch_all("SELECT 1") == [(1,)]


@pytest.mark.parametrize(
    ("statement", "kind"),
    [
        ("SET LOCAL statement_timeout = 20; SELECT pg_sleep(5)", TransientError),
        ("SELECT 1 / 0", psycopg.errors.DivisionByZero),
        ("SELECT no_such_column", psycopg.errors.UndefinedColumn),
        (r"""SELECT '"\u0000"'::jsonb""", RejectedError),
    ],
)
def test_errors_that_may_pass_are_told_from_bugs(opened: Storage, statement: str, kind: type[Exception]) -> None:
    assert opened
    with pytest.raises(kind), connection() as conn:
        conn.execute(statement)
    assert fetch_all("SELECT 1") == [(1,)]


def test_error_of_the_caller_rolls_back(opened: Storage) -> None:
    assert opened

    def write() -> None:
        with connection() as conn:
            conn.execute("INSERT INTO touch_batches (id) VALUES ('b1')")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        write()
    assert fetch_all("SELECT count(*) FROM touch_batches") == [(0,)]


def test_sessions_speak_utc_and_are_bounded_in_time(opened: Storage) -> None:
    assert opened
    assert fetch_all("SELECT current_setting('timezone'), current_setting('statement_timeout')") == [("UTC", "1min")]
