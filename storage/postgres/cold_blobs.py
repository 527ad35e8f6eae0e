"""Rows of the blob store's objects, and the states that keep them and the bodies that refer to them in step.

writing -> live -> orphan -> dead -> gone. An upload is announced before it begins; the transaction that moves a body out
makes its object live; what no body refers to any more is an orphan. Collection first makes a row dead and commits, then
removes the object, then the row. So no object is without a row, and none that a body refers to is ever removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from uuid_utils.compat import uuid7

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.blobs import owner_prefix
from isotherm.storage.postgres.pool import Connection

_ANNOUNCE = """
INSERT INTO cold_blobs (object_key, bank_id, namespace_id, record_key, stored_bytes)
SELECT g.object_key, r.bank_id, r.namespace_id, r.key, g.bytes
FROM unnest(%(keys)s::bigint[], %(objects)s::text[], %(bytes)s::integer[]) AS g (key, object_key, bytes)
JOIN tier_records AS r ON r.key = g.key
RETURNING id, record_key, object_key"""

_OWNERS = """
SELECT r.key, n.tenant, n.scope, n.agent, n.session, n.run
FROM tier_records AS r JOIN namespaces AS n ON n.id = r.namespace_id WHERE r.key = ANY(%s)"""

_MAKE_LIVE = """
UPDATE cold_blobs SET state = 'live', changed_at = now() WHERE id = ANY(%s) AND state = 'writing' RETURNING id"""

_LET_GO = """
UPDATE cold_blobs SET state = 'orphan', changed_at = now() WHERE id = ANY(%s) AND state IN ('writing', 'live')"""

_CONDEMN = """
UPDATE cold_blobs SET state = 'dead', changed_at = now() WHERE id IN (
    SELECT id FROM cold_blobs
    WHERE state = 'orphan' OR (state = 'writing' AND changed_at < now() - %(grace)s)
    ORDER BY changed_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)"""

_CONDEMN_OF = """
UPDATE cold_blobs SET state = 'dead', changed_at = now() WHERE id IN (
    SELECT id FROM cold_blobs WHERE namespace_id = %(ns)s AND state = 'orphan' ORDER BY id LIMIT %(limit)s FOR UPDATE)"""
_DEAD_OF = """
SELECT id, object_key FROM cold_blobs WHERE namespace_id = %(ns)s AND state = 'dead' ORDER BY id LIMIT %(limit)s"""
_ARE_LEFT = "SELECT EXISTS (SELECT 1 FROM cold_blobs WHERE namespace_id = %s AND state IN ('orphan', 'dead'))"

# A backup holds it alone while it copies objects; whoever condemns some holds it with others for one transaction.
_COPIED = 0x1507_B10B
_MAY_CONDEMN = "SELECT pg_try_advisory_xact_lock_shared(%s)"
_HOLD = "SELECT pg_try_advisory_lock(%s)"
_LIVE = "SELECT object_key, stored_bytes FROM cold_blobs WHERE state = 'live' ORDER BY id"

_DEAD = "SELECT id, object_key FROM cold_blobs WHERE state = 'dead' ORDER BY changed_at LIMIT %s"
_REMOVE = "DELETE FROM cold_blobs WHERE id = ANY(%s) AND state = 'dead'"
_COUNTS = "SELECT state, count(*), coalesce(sum(stored_bytes), 0) FROM cold_blobs GROUP BY state ORDER BY state"


@dataclass(frozen=True, slots=True)
class Blob:
    """An object of the store by its row.

    Args: id: of the row; object_key: its name in the store.
    """

    id: int
    object_key: str


def announce(conn: Connection, sizes: Mapping[int, int]) -> dict[int, Blob]:
    """Write rows for objects that are about to be uploaded; commit before the first upload.

    Args: sizes: bytes of each object, by the key of its record.
    Returns: by record key; records that are gone are left out. Each object has a name of its own, below its owner's prefix.
    """
    owners = {int(key): Namespace(tenant=tenant, scope=scope, agent=agent, session=session, run=run)
              for key, tenant, scope, agent, session, run in conn.execute(_OWNERS, (list(sizes),)).fetchall()}  # fmt: skip
    values = {
        "keys": list(owners),
        "objects": [f"{owner_prefix(namespace)}{uuid7()}" for namespace in owners.values()],
        "bytes": [sizes[key] for key in owners],
    }
    rows = conn.execute(_ANNOUNCE, values).fetchall()
    return {int(key): Blob(int(blob_id), object_key) for blob_id, key, object_key in rows}


def make_live(conn: Connection, ids: Sequence[int]) -> set[int]:
    """Make uploaded objects live, in the transaction that refers to them; returns those that collection has not taken."""
    return {int(row[0]) for row in conn.execute(_MAKE_LIVE, (list(ids),)).fetchall()} if ids else set()


def let_go(conn: Connection, ids: Sequence[int]) -> None:
    """Leave objects to collection, since nothing refers to them."""
    if ids:
        conn.execute(_LET_GO, (list(ids),))


def condemn(conn: Connection, *, grace: timedelta, limit: int) -> int:
    """Make orphans dead, and uploads that never ended within `grace`; returns how many. Commit before removing objects.

    None are made dead while a backup copies objects, since its copy of the database may still refer to them.
    """
    if conn.execute(_MAY_CONDEMN, (_COPIED,)).fetchone() != (True,):
        return 0
    return conn.execute(_CONDEMN, {"grace": grace, "limit": limit}).rowcount


def condemn_of(conn: Connection, namespace_id: int, limit: int) -> list[Blob]:
    """Make the orphans of a namespace dead, as `condemn` does; returns its objects that are dead and still there.

    Commit before removing objects.
    """
    values = {"ns": namespace_id, "limit": limit}
    if conn.execute(_MAY_CONDEMN, (_COPIED,)).fetchone() == (True,):
        conn.execute(_CONDEMN_OF, values)
    return [Blob(int(blob_id), object_key) for blob_id, object_key in conn.execute(_DEAD_OF, values).fetchall()]


def are_left(conn: Connection, namespace_id: int) -> bool:
    """Whether a namespace has objects that nothing refers to any more."""
    return conn.execute(_ARE_LEFT, (namespace_id,)).fetchone() == (True,)


def hold(conn: Connection) -> bool:
    """Keep every object where it is until this connection ends; False when another one holds them."""
    return conn.execute(_HOLD, (_COPIED,)).fetchone() == (True,)


def live(conn: Connection) -> list[tuple[str, int]]:
    """The objects that cold bodies refer to, with their bytes."""
    return [(str(key), int(size)) for key, size in conn.execute(_LIVE).fetchall()]


def dead(conn: Connection, limit: int) -> list[Blob]:
    """Objects to remove from the store."""
    return [Blob(int(blob_id), object_key) for blob_id, object_key in conn.execute(_DEAD, (limit,)).fetchall()]


def remove(conn: Connection, ids: Sequence[int]) -> int:
    """Delete the rows of objects that are gone from the store; returns how many."""
    return conn.execute(_REMOVE, (list(ids),)).rowcount if ids else 0


def counts(conn: Connection) -> dict[str, tuple[int, int]]:
    """Objects and their bytes by state."""
    return {str(state): (int(n), int(size)) for state, n, size in conn.execute(_COUNTS).fetchall()}
