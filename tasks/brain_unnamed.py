"""The tick that brings objects of an earlier version their names, and their texts the edges to what they mention."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from uuid_utils.compat import uuid7

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.storage.postgres import brain_names, brain_vectors, brain_write
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import connection
from isotherm.tasks.publish import publish_after_commit
from isotherm.tasks.ticks import tick

KIND = "brain.mention"
# Few at once: a new write must not wait behind an old library.
_ROWS = 1_000
_WAITING = 8


@tick(stages.BRAIN_UNNAMED)
def unnamed() -> dict[str, Any]:
    """Ask for the mentions of objects that nobody looked at yet, while the stage keeps up."""
    opened = storage.open()
    messages: list[Message] = []
    with connection() as conn:
        if brain_vectors.waiting(conn, stages.BRAIN_MENTION, _WAITING) >= _WAITING:
            return {"objects": 0}
        taken = brain_names.take_unnamed(conn, _ROWS)
        for (bank, namespace), ids in taken.items():
            new = NewOperation(uuid7(), KIND, uuid4(), bank_id=bank, namespace_id=namespace)
            messages += brain_write.begin_mentions(conn, new, ids, opened.patience)
    publish_after_commit(messages)
    return {"objects": sum(map(len, taken.values()))}
