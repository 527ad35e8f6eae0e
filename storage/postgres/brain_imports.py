"""Files on their way into the knowledge base: accepted with their operation, gone with the step that stored them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from isotherm.pipeline.brain.documents import Document
from isotherm.pipeline.identity import Namespace
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import Connection

_ADD = """
INSERT INTO brain_imports (operation_id, namespace_id, object_id, name, content, kind, title, content_type, source_time)
SELECT %(operation)s, %(ns)s, g.id, g.name, g.content, g.kind, g.title, g.content_type, g.source_time
FROM unnest(%(ids)s::uuid[], %(names)s::text[], %(texts)s::text[], %(kinds)s::text[], %(titles)s::text[],
            %(types)s::text[], %(times)s::timestamptz[])
    WITH ORDINALITY AS g (id, name, content, kind, title, content_type, source_time, place)
ORDER BY g.place RETURNING id"""

_GET = """
SELECT n.id, n.bank_id, n.tenant, n.scope, n.agent, n.session, n.run,
       i.object_id, i.name, i.content, i.kind, i.title, i.content_type, i.source_time
FROM brain_imports AS i JOIN namespaces AS n ON n.id = i.namespace_id WHERE i.id = %s"""

# In order of their ids, so that two of one object never wait for each other.
_TAKE = """
WITH waiting AS (
    SELECT id FROM brain_imports WHERE namespace_id = %(ns)s AND object_id = %(object)s AND id <= %(key)s
    ORDER BY id FOR UPDATE
)
DELETE FROM brain_imports AS i USING waiting AS w WHERE i.id = w.id AND i.namespace_id = %(ns)s RETURNING i.id"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A file that waits, and where it belongs."""

    place: Place
    namespace: Namespace
    document: Document


def add(conn: Connection, new: NewOperation, documents: Sequence[Document]) -> list[int]:
    """Keep files until their steps run; returns their row keys in order."""
    values = {
        "operation": new.id,
        "ns": new.namespace_id,
        "ids": [each.id for each in documents],
        "names": [each.name for each in documents],
        "texts": [each.text for each in documents],
        "kinds": [each.kind for each in documents],
        "titles": [each.title for each in documents],
        "types": [each.content_type for each in documents],
        "times": [each.source_time for each in documents],
    }
    return [int(row[0]) for row in conn.execute(_ADD, values).fetchall()]


def get(conn: Connection, key: int) -> Waiting | None:
    """A file that waits; None when a newer text of its object was stored, or its namespace was erased."""
    row = conn.execute(_GET, (key,)).fetchone()
    if row is None:
        return None
    namespace_id, bank_id, tenant, scope, agent, session, run, *document = row
    name = Namespace(tenant=tenant, scope=scope, agent=agent, session=session, run=run)
    return Waiting(Place(int(namespace_id), int(bank_id)), name, Document(*document))


def take(conn: Connection, key: int, waiting: Waiting) -> bool:
    """Take a file out, in the transaction that stores it; False when a newer text of the same object was stored before.

    Older texts of the object that still wait are taken out with it: whenever their steps run, they must not come after it.
    Whoever stores one of them at this moment is waited for.
    """
    values = {"ns": waiting.place.namespace_id, "object": waiting.document.id, "key": key}
    return key in {int(row[0]) for row in conn.execute(_TAKE, values).fetchall()}
