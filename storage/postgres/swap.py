"""Another schema in the place of `public`: what was there is kept aside until its successor is whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

ASIDE = "isotherm_replaced"
# Extensions belong to the database and not to one of its schemas: both the old tables and the new ones need them.
_MOVE_EXTENSIONS = """
DO $$ DECLARE e text; BEGIN
    FOR e IN SELECT extname FROM pg_extension AS x JOIN pg_namespace AS n ON n.oid = x.extnamespace
             WHERE n.nspname = '{source}' AND x.extrelocatable LOOP
        EXECUTE format('ALTER EXTENSION %I SET SCHEMA {target}', e);
    END LOOP; END $$"""
_ROWS = "SELECT EXISTS (SELECT FROM public.banks) OR EXISTS (SELECT FROM public.operations)"
_OTHERS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name = 'isotherm'"""

_TABLES = """
SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relkind = 'r'"""

Plain = psycopg.Connection[tuple[object, ...]]


def holds_memory(conn: Plain) -> bool:
    """Whether the database has rows of this product."""
    if conn.execute("SELECT to_regclass('public.operations')").fetchone() == (None,):
        return False
    return conn.execute(_ROWS).fetchone() == (True,)


def tables(conn: Plain, schema: str = "public") -> int:
    """How many tables a schema has."""
    row = conn.execute(_TABLES, (schema,)).fetchone()
    return int(str(row[0])) if row else 0


def in_use(conn: Plain) -> int:
    """How many other connections of this product the database has."""
    row = conn.execute(_OTHERS).fetchone()
    return int(str(row[0])) if row else 0


@contextmanager
def successor(conn: Plain) -> Iterator[None]:
    """Give the block an empty `public`; after it the old one is dropped, or put back when the block fails.

    A process that is killed meanwhile leaves the old one aside: the next call puts it back first.
    """
    with conn.transaction():
        _put_back(conn)
        _put_aside(conn)
    try:
        yield
    except BaseException:
        with conn.transaction():
            _put_back(conn)
        raise
    conn.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(ASIDE)))


def _put_aside(conn: Plain) -> None:
    conn.execute(sql.SQL("ALTER SCHEMA public RENAME TO {}").format(sql.Identifier(ASIDE)))
    conn.execute("CREATE SCHEMA public")
    conn.execute(_MOVE_EXTENSIONS.format(source=ASIDE, target="public").encode())


def _put_back(conn: Plain) -> None:
    known = conn.execute("SELECT FROM pg_namespace WHERE nspname = %s", (ASIDE,)).fetchone()
    if known is None:
        return
    conn.execute(_MOVE_EXTENSIONS.format(source="public", target=ASIDE).encode())
    conn.execute("DROP SCHEMA public CASCADE")
    conn.execute(sql.SQL("ALTER SCHEMA {} RENAME TO public").format(sql.Identifier(ASIDE)))
