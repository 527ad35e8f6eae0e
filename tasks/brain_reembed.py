"""The tick that keeps vectors of one model: rows with another stamp, or without a vector, get one in the background."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from uuid_utils.compat import uuid7

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.events import EmbeddingRequested
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_vectors, brain_write
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import connection
from isotherm.tasks.observe import emit
from isotherm.tasks.publish import publish_after_commit
from isotherm.tasks.ticks import tick

KIND = "brain.reembed"
# Few at once: a row without a vector is found by its words alone, and a new write must not wait behind an old library.
_ROWS = 640
_WAITING = 20


@tick(stages.BRAIN_REEMBED)
def reembed() -> dict[str, Any]:
    """Ask for vectors of rows whose vector is of another model, or that have none, while the embedders keep up."""
    opened = storage.open()
    embedder = factory.embedder(opened.settings)
    if embedder is None:
        return {"objects": 0}
    messages: list[Message] = []
    with connection() as conn:
        if brain_vectors.waiting(conn, stages.BRAIN_EMBED, _WAITING) >= _WAITING:
            return {"objects": 0}
        stale = brain_vectors.take_stale(conn, embedder.model, _ROWS)
        for (bank, namespace), keys in stale.items():
            new = NewOperation(uuid7(), KIND, uuid4(), bank_id=bank, namespace_id=namespace)
            messages += brain_write.begin_embedding(conn, new, keys, opened.patience)
    publish_after_commit(messages)
    objects = sum(map(len, stale.values()))
    if objects:
        emit(EmbeddingRequested(objects, len(stale)))
    return {"objects": objects}
