"""Which banks' vectors are in the index: those of more points than are compared whole in a moment."""

from __future__ import annotations

from isotherm.storage.postgres import interest_near
from isotherm.storage.postgres.pool import Connection, connection

# Points that enter the index in one transaction; each takes a millisecond or two.
_BATCH = 1_000

# A bank without a row has no points.
_GROWN = """
SELECT 1 FROM interest_banks AS b WHERE b.bank_id = %(bank)s AND NOT b.indexed AND %(exact)s < (
    SELECT count(*) FROM (SELECT 1 FROM interest_points AS p WHERE p.bank_id = b.bank_id AND p.embedding IS NOT NULL
                          LIMIT %(exact)s + 1) AS bounded)"""
_ENTER = """
UPDATE interest_points SET indexed = true WHERE bank_id = %(bank)s AND id IN (
    SELECT p.id FROM interest_points AS p WHERE p.bank_id = %(bank)s AND NOT p.indexed LIMIT %(batch)s)"""
_HOLD = "SELECT 1 FROM interest_banks WHERE bank_id = %(bank)s FOR UPDATE"
_INDEXED = "UPDATE interest_banks SET indexed = true WHERE bank_id = %(bank)s"


def grow(bank_id: int) -> bool:
    """Put the points of a bank into the index once there are many; returns whether it did. A killed runner has lost nothing.

    Raises: TransientError.
    """
    with connection() as conn:
        if conn.execute(_GROWN, {"bank": bank_id, "exact": interest_near.EXACT}).fetchone() is None:
            return False
    while True:
        with connection() as conn:
            if _enter(conn, bank_id) < _BATCH:
                break
    with connection() as conn:
        # From here on every new point waits for the commit, and is indexed after it.
        conn.execute(_HOLD, {"bank": bank_id})
        while _enter(conn, bank_id):
            pass
        conn.execute(_INDEXED, {"bank": bank_id})
    return True


def _enter(conn: Connection, bank_id: int) -> int:
    return conn.execute(_ENTER, {"bank": bank_id, "batch": _BATCH}).rowcount
