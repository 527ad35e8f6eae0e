"""Files written anew, so that what was deleted is no longer in them: those of the tables, and the write-ahead log."""

from __future__ import annotations

from psycopg import errors as pg

from isotherm.storage.postgres.pool import Connection

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename"
_LAST = "SELECT max(name) FROM pg_ls_waldir() WHERE name ~ '^[0-9A-F]{24}$'"
_CURRENT = "SELECT pg_walfile_name(pg_current_wal_insert_lsn())"
# A segment that is left is filled with zeros, and one that nothing was written to is not left.
_LEAVE = "SELECT pg_logical_emit_message(false, 'isotherm', ''), pg_switch_wal()"
# A checkpoint gives old segments to the future as they are: a second round writes over those.
_ROUNDS = 2
_MOST_SEGMENTS = 256


def tables(conn: Connection) -> int:
    """Write each table anew; returns how many. The connection's statements must be transactions of their own."""
    names = [str(row[0]) for row in conn.execute(_TABLES).fetchall()]
    conn.execute("SET statement_timeout = 0")
    try:
        for name in names:
            conn.execute(f'VACUUM (FULL, ANALYZE) "{name}"')
    finally:
        conn.execute("RESET statement_timeout")
    return len(names)


def log(conn: Connection) -> bool:
    """Write over every segment of the write-ahead log; False when the role may not, or something else keeps writing it.

    A segment that a standby or a slot still needs stays until that has it.
    """
    conn.execute("SET statement_timeout = 0")
    try:
        return all(_round(conn) for _ in range(_ROUNDS))
    except pg.InsufficientPrivilege:
        return False
    finally:
        conn.execute("RESET statement_timeout")


def _round(conn: Connection) -> bool:
    last = _one(conn, _LAST)
    for _ in range(_MOST_SEGMENTS):
        if _one(conn, _CURRENT) > last:
            conn.execute("CHECKPOINT")
            return True
        conn.execute(_LEAVE)
    return False


def _one(conn: Connection, sql: str) -> str:
    row = conn.execute(sql).fetchone()
    return str(row[0]) if row else ""
