"""One pool per process, opened after the fork, and transactions that translate the driver's errors."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import Any, TypeVar

import psycopg
from pgvector.psycopg import register_vector
from psycopg import errors as pg
from psycopg.rows import TupleRow
from psycopg_pool import ConnectionPool, PoolTimeout

from isotherm.pipeline.errors import (
    DeadlockError,
    ErasedError,
    OutOfReachError,
    RacedError,
    RejectedError,
    TransientError,
    UnavailableError,
)
from isotherm.storage.postgres import reach

Connection = psycopg.Connection[TupleRow]
T = TypeVar("T")

# A connection that was used this recently is not asked again whether it lives; the ping costs a round trip.
_TRUSTED_S = 2.0

# A plan for any values reads a small table whole, and goes on to when the table has grown, until the server has looked at it
# anew: a minute, in which a hundred thousand records are written, or never with autovacuum off. So plans are made anew, of
# the statements that are still used, after this long.
_PLANNED_S = 10.0

# Times that a write is made which others come between.
_TRIES = 4

# What another try may cure. Other database errors are bugs and keep their type.
_PASSING = (
    pg.OperationalError,
    pg.SerializationFailure,
    pg.LockNotAvailable,
    pg.QueryCanceled,
    pg.InterfaceError,
)


# What no other try cures, since a value of the call is to blame; some of them are operational errors to the driver.
_REFUSED = (
    pg.ProgramLimitExceeded,
    pg.StatementTooComplex,
    pg.UntranslatableCharacter,
    pg.CharacterNotInRepertoire,
    pg.NumericValueOutOfRange,
    pg.DatetimeFieldOverflow,
    pg.InvalidTextRepresentation,
)

# References to a namespace or a bank, which an erasure may have taken away since their ids were looked up.
_OWNERS = re.compile(r"_(namespace_id|bank_id|namespace_id_bank_id)_fkey$")


class _State:
    on_erased: list[Callable[[], None]] = []  # noqa: RUF012 - one per process, as the pool is
    pool: ConnectionPool[Connection] | None = None
    guarded = False  # by row-level security
    used: dict[int, float] = {}  # noqa: RUF012 - one per process, as the pool is
    planned: dict[int, float] = {}  # noqa: RUF012 - the same
    generic: set[int] = set()  # noqa: RUF012 - the same


def open_pool(
    dsn: str, *, size: int = 2, statement_timeout: timedelta = timedelta(seconds=60), guarded: bool = False
) -> None:
    """Open this process's pool. Connections are made when first used.

    Args: dsn: libpq URI; size: most connections; statement_timeout: longest single statement; guarded: by row-level
        security. Every connection has the tenants' role then, and sees the rows that `reach` names, so none of its own.
    """
    close_pool()
    timeout_ms = int(statement_timeout.total_seconds() * 1000)
    _State.guarded = guarded
    _State.pool = ConnectionPool(
        dsn,
        min_size=0,
        max_size=size,
        timeout=10.0,
        reconnect_timeout=10.0,
        check=_check,
        configure=_configure,
        kwargs={
            "application_name": "isotherm",
            # Neither compiled nor spread over processes: to begin that takes longer than these statements do, and a plan that
            # could do it begins it for branches too that are then not run.
            "options": f"-c statement_timeout={timeout_ms} -c timezone=UTC -c random_page_cost=1.1 -c jit=off "
            "-c max_parallel_workers_per_gather=0 -c idle_in_transaction_session_timeout=60000"
            + (f" -c role={reach.TENANT}" if guarded else ""),
        },
        open=True,
    )


def close_pool() -> None:
    """Close this process's pool, if it has one."""
    if _State.pool is not None:
        _State.pool.close(timeout=2.0)
        _State.pool = None
        _State.used.clear()
        _State.planned.clear()
        _State.generic.clear()


def on_erased(forget: Callable[[], None]) -> None:
    """Have a function drop what this process remembers of ids, when a write met ids that were erased."""
    _State.on_erased.append(forget)


def is_open() -> bool:
    """Tell whether this process has a pool."""
    return _State.pool is not None


def _forget_after_fork() -> None:
    _State.pool = None
    _State.used = {}
    _State.planned = {}
    _State.generic = set()


os.register_at_fork(after_in_child=_forget_after_fork)


def _configure(conn: Connection) -> None:
    conn.prepare_threshold = 2
    _State.planned[id(conn)] = time.monotonic()
    _State.generic.discard(id(conn))  # the id may be that of one that was closed
    if conn.execute("SELECT to_regtype('vector') IS NOT NULL").fetchone() == (True,):
        register_vector(conn)
    conn.commit()


def _check(conn: Connection) -> None:
    if time.monotonic() - _State.planned.get(id(conn), 0.0) > _PLANNED_S:
        conn.autocommit = True
        conn.execute("DISCARD PLANS")  # tells as well whether it lives
        conn.autocommit = False
        _State.planned[id(conn)] = time.monotonic()
    elif time.monotonic() - _State.used.get(id(conn), 0.0) > _TRUSTED_S:
        ConnectionPool.check_connection(conn)


@contextmanager
def connection() -> Iterator[Connection]:
    """A connection in a transaction that commits at the end and rolls back on an error.

    Raises: UnavailableError when no connection can be had; TransientError for errors that may pass; other errors of the
    driver as they are, since they are bugs. RuntimeError when nobody opened the pool.
    """
    with _translated(), _pool().connection() as conn:
        if id(conn) in _State.generic:
            conn.autocommit = True  # in the transaction, a rollback would undo it
            _plan(conn, "auto")
            conn.autocommit = False
        if _State.guarded:
            reach.enter(conn)
        yield conn
        conn.commit()
        _State.used[id(conn)] = time.monotonic()


@contextmanager
def statement() -> Iterator[Connection]:
    """A connection whose every statement is a transaction of its own, for a write that is one statement.

    Under row-level security the block is one transaction, since what is in reach ends with it. Raises: as `connection`.
    """
    yield from _statements(generic=False)


@contextmanager
def maintaining() -> Iterator[Connection]:
    """As `statement`, with the rights of the login: for what only an owner of tables may do, as an operator asks.

    Raises: as `connection`.
    """
    with _translated(), _pool().connection() as conn:
        conn.autocommit = True
        try:
            if _State.guarded:
                conn.execute("SET ROLE NONE")
            yield conn
        finally:
            if not conn.closed:
                if _State.guarded:
                    conn.execute("RESET ROLE")  # to that of the pool
                conn.autocommit = False


@contextmanager
def reading() -> Iterator[Connection]:
    """As `statement`, for hot reads whose plans do not depend on their parameters: each is planned once per connection.

    To plan takes as long as to run where a statement asks several indexes for little. A connection stays in this mode until
    it is used for something else, so that reads that follow each other pay nothing for it.
    """
    yield from _statements(generic=True)


def _statements(*, generic: bool) -> Iterator[Connection]:
    with _translated(), _pool().connection() as conn:
        conn.autocommit = True
        try:
            if (id(conn) in _State.generic) != generic:
                _plan(conn, "force_generic_plan" if generic else "auto")
            with conn.transaction() if _State.guarded else nullcontext():
                if _State.guarded:
                    reach.enter(conn)
                yield conn
        finally:
            if not conn.closed:
                conn.autocommit = False
        _State.used[id(conn)] = time.monotonic()


def lasts(conn: Connection) -> bool:
    """Whether what a statement sets for its transaction is still set for the next one."""
    return _State.guarded or not conn.autocommit


def _plan(conn: Connection, mode: str) -> None:
    conn.execute(f"SET plan_cache_mode = {mode}")
    (_State.generic.discard if mode == "auto" else _State.generic.add)(id(conn))


def _pool() -> ConnectionPool[Connection]:
    if _State.pool is None:
        raise RuntimeError("no pool: call open_pool() in this process first")
    return _State.pool


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except PoolTimeout as error:
        raise UnavailableError("PostgreSQL cannot be reached") from error
    except _REFUSED as error:
        raise RejectedError(f"a value that PostgreSQL cannot store: {type(error).__name__}") from error
    except pg.DeadlockDetected as error:
        raise DeadlockError(f"PostgreSQL: {type(error).__name__} {error.sqlstate}") from error
    except _PASSING as error:
        _State.used.clear()  # what ended this connection may have ended the others
        raise TransientError(f"PostgreSQL: {type(error).__name__} {error.sqlstate or ''}".rstrip()) from error
    except (pg.ForeignKeyViolation, pg.InsufficientPrivilege) as error:
        meant = _about_owners(error)
        if meant is None:
            raise
        raise meant from error
    except psycopg.DataError as error:
        if error.sqlstate is not None:
            raise
        raise RejectedError("a value that PostgreSQL cannot store") from error  # the driver's own: a NUL, a far date
    except UnicodeEncodeError:
        raise RejectedError("text with an unpaired surrogate") from None  # its traceback would show the text


def _about_owners(error: psycopg.Error) -> Exception | None:
    """What a refused write means where it is about its owner; this process may remember ids of one that was erased."""
    meant: Exception
    if error.diag.source_function == "ExecWithCheckOptions":
        meant = OutOfReachError("a write to rows of another owner, or of one that was erased meanwhile")
    elif _OWNERS.search(error.diag.constraint_name or ""):
        meant = ErasedError("what owned these rows was erased meanwhile; the same call begins anew")
    else:
        return None
    for forget in _State.on_erased:
        forget()
    return meant


def again_if_raced(write: Callable[[], T]) -> T:
    """Make a write in its own transaction, and again, a few times in all, when another writer came between.

    Raises: as `write` does, in the end RacedError too.
    """
    for left in reversed(range(_TRIES)):
        try:
            return write()
        except RacedError:
            if not left:
                raise
    raise AssertionError("the loop returns or raises")


def moment(conn: Connection) -> datetime:
    """The time by the clock of the database. Ages are compared by it, as leases are, whatever this machine's clock says."""
    row = conn.execute("SELECT now()").fetchone()
    if row is None:
        raise RuntimeError("SELECT answers with a row")
    found: datetime = row[0]
    return found


def fetch_all(sql: str, params: dict[str, Any] | None = None) -> list[TupleRow]:
    """Run one statement over all owners, in a transaction of its own, and return its rows."""
    with reach.system(), connection() as conn:
        return conn.execute(sql, params).fetchall()
