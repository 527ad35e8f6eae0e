"""The messages of a session, as the interest pipeline reads them."""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.pipeline.interest.windows import Message
from isotherm.storage.postgres.cold_bodies import StoredBody
from isotherm.storage.postgres.pool import Connection

# The order of a session is that of its times; messages of one moment keep the order in which they came.
_OUTLINE = """
SELECT r.key, r.role FROM tier_records AS r WHERE r.namespace_id = %(namespace)s ORDER BY r.created_at, r.key"""

_MESSAGES = """
SELECT r.key, r.id, r.role, r.created_at, r.content, r.summary, b.body, b.raw_bytes, r.content_sha256,
       o.object_key
FROM tier_records AS r LEFT JOIN cold_bodies AS b ON b.record_key = r.key LEFT JOIN cold_blobs AS o ON o.id = b.blob_id
WHERE r.namespace_id = %(namespace)s AND r.key = ANY(%(keys)s)"""


def outline(conn: Connection, namespace_id: int) -> list[tuple[int, str]]:
    """Key and role of every message of a session, in order; a message without a role has a blank one."""
    rows = conn.execute(_OUTLINE, {"namespace": namespace_id}).fetchall()
    return [(int(key), str(role or "")) for key, role in rows]


def messages(
    conn: Connection, namespace_id: int, keys: Sequence[int], first: int
) -> list[tuple[Message, StoredBody | None]]:
    """Messages of a session, in the order of the keys, each with where its text is; those that are gone are left out.

    Args: first: place of the first key in the session.
    Returns: a message that is not cold has its text and no stored body; a cold one has its summary until it is read.
    """
    rows = conn.execute(_MESSAGES, {"namespace": namespace_id, "keys": list(keys)}).fetchall()
    found = {int(row[0]): row for row in rows}
    made: list[tuple[Message, StoredBody | None]] = []
    for turn, key in enumerate(keys, start=first):
        if key in found:
            _, record_id, role, at, content, *stored = found[key]
            text = content if content is not None else stored[0] or ""
            message = Message(turn, str(role or ""), text, at, namespace_id, key, record_id)
            made.append((message, None if content is not None else StoredBody(*stored)))
    return made
