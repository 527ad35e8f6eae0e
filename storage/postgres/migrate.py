"""Numbered SQL migrations with checksums, applied in order under an advisory lock."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources

import psycopg

from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage.postgres import row_security

_LOCK = 0x1507_4E12  # advisory lock of every migration of this product
_MIN_SERVER = 160_000
_MIN_VECTOR = (0, 8)

_TABLE = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    number integer PRIMARY KEY,
    name text NOT NULL,
    sha256 text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)"""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of `migrations/`: its number, its name, its statements and their SHA-256 (hex)."""

    number: int
    name: str
    sql: str
    sha256: str


def declared() -> list[Migration]:
    """The migrations that come with this version, in order."""
    files = [f for f in resources.files(f"{__package__}.migrations").iterdir() if f.name.endswith(".sql")]
    found = []
    for file in sorted(files, key=lambda f: f.name):
        sql = file.read_text(encoding="utf-8")
        number, _, name = file.name.removesuffix(".sql").partition("_")
        found.append(Migration(int(number), name, sql, hashlib.sha256(sql.encode()).hexdigest()))
    return found


def migrate(dsn: str, *, rls: bool | None = None) -> list[Migration]:
    """Bring the database to this version; returns what was applied now, in order.

    Args: rls: whether row-level security is to be on; None leaves it as it is, and takes in tables that are new.

    Every migration runs in a transaction of its own, under one advisory lock, so several callers at once are safe.
    Raises: UnavailableError when the server cannot be reached; RejectedError when it is too old, an applied migration was
    changed afterwards, or the database is newer than this version.
    """
    try:
        with psycopg.connect(dsn, autocommit=True, connect_timeout=10) as conn:
            check_server(conn)
            conn.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
            check_vector(conn)
            conn.execute(_TABLE)
            todo = pending(conn)
            for migration in todo:
                _apply(conn, migration)
            row_security.switch(conn, on=row_security.state(conn).any if rls is None else rls)
            return todo
    except psycopg.errors.InsufficientPrivilege as error:
        raise RejectedError("the database user may not create the extension `vector` or tables here") from error
    except psycopg.OperationalError as error:
        raise UnavailableError(f"PostgreSQL cannot be reached: {str(error).splitlines()[0]}") from error


def _apply(conn: psycopg.Connection[tuple[object, ...]], migration: Migration) -> None:
    with conn.transaction():
        conn.execute(migration.sql.encode())
        conn.execute(
            "INSERT INTO schema_migrations (number, name, sha256) VALUES (%s, %s, %s)",
            (migration.number, migration.name, migration.sha256),
        )


def pending(conn: psycopg.Connection[tuple[object, ...]]) -> list[Migration]:
    """Declared migrations that this database has not had, after checking those it has.

    Raises: RejectedError when they do not fit together.
    """
    rows = conn.execute("SELECT number, sha256 FROM schema_migrations ORDER BY number").fetchall()
    applied = {int(str(number)): sha for number, sha in rows}
    ours = {m.number: m for m in declared()}
    if unknown := sorted(set(applied) - set(ours)):
        raise RejectedError(f"the database is newer than this version: it has migration {unknown[-1]}")
    if changed := [m.name for m in ours.values() if m.number in applied and applied[m.number] != m.sha256]:
        raise RejectedError(f"migration {changed[0]} was changed after it was applied")
    return [m for m in ours.values() if m.number not in applied]


def check_server(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    """Raise RejectedError unless the server is PostgreSQL 16 or newer."""
    if conn.info.server_version < _MIN_SERVER:
        raise RejectedError(f"PostgreSQL 16 or newer is needed; this server is {conn.info.server_version // 10_000}")


def check_vector(conn: psycopg.Connection[tuple[object, ...]]) -> None:
    """Raise RejectedError unless pgvector 0.8 or newer is installed in this database."""
    row = conn.execute("SELECT extversion FROM pg_extension WHERE extname = 'vector'").fetchone()
    if row is None:
        raise RejectedError("this database has no extension `vector`: run `isotherm migrate`")
    version = str(row[0])
    if tuple(int(part) for part in version.split(".")[:2]) < _MIN_VECTOR:
        raise RejectedError(f"pgvector 0.8 or newer is needed; this server has {version}")
