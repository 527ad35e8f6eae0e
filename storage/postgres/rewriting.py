"""Files written anew, so that what was deleted is no longer in them: of tables, planner's statistics, write-ahead log."""

from __future__ import annotations

import time

from psycopg import errors as pg

from isotherm.pipeline.errors import TransientError
from isotherm.storage.postgres.pool import Connection

_TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename"
# A row that was deleted is written again while a snapshot from before is in use: a transaction's here (a sampling autovacuum's
# too), a prepared one's, a standby's that asks for its rows.
_NEXT = "SELECT pg_snapshot_xmax(pg_current_snapshot())::xid::text"
_BEFORE = """
SELECT held.who, age(held.xmin) AS transactions FROM (
    SELECT 'process ' || pid AS who, backend_xmin AS xmin FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND (datname = current_database() OR backend_type = 'walsender')
    UNION ALL
    SELECT 'prepared transaction ' || gid, transaction FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot ' || slot_name, xmin FROM pg_replication_slots
) AS held WHERE age(held.xmin) > age(%s::text::xid) ORDER BY transactions DESC LIMIT 1"""
_PATIENCE_S = 60.0
_POLL_S = 0.05
# To sample an empty table leaves the sample of what it had.
_FORGET_SAMPLES = """
DELETE FROM pg_statistic USING pg_class
WHERE pg_class.oid = starelid AND relnamespace = current_schema()::regnamespace AND reltuples = 0"""
_SAMPLES = "VACUUM (FULL) pg_statistic"
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


def settled(conn: Connection, patience_s: float = _PATIENCE_S) -> None:
    """Wait until nobody sees what was deleted before this call.

    Raises: TransientError after `patience_s` seconds, with who holds it.
    """
    ours, deadline = _one(conn, _NEXT), time.monotonic() + patience_s
    while holder := conn.execute(_BEFORE, (ours,)).fetchone():
        if time.monotonic() > deadline:
            raise TransientError(
                f"files keep what was deleted while {holder[0]} still sees it: end that, or wait for it"
            )
        time.sleep(_POLL_S)


def statistics(conn: Connection) -> bool:
    """Drop the planner's samples of empty tables, and write the file of all samples anew; False when the role may not."""
    try:
        conn.execute(_FORGET_SAMPLES)
        conn.execute(_SAMPLES)
    except pg.InsufficientPrivilege:
        return False
    return True


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
