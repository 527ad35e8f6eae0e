"""The tick that keeps records' vectors of one model: those of another one are made anew in the background, few at a time."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from uuid_utils.compat import uuid7

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.events import RecordEmbeddingRequested
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_vectors, tier_reembed
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import connection
from isotherm.tasks.observe import emit
from isotherm.tasks.publish import publish_after_commit
from isotherm.tasks.ticks import tick

KIND = "tier.reembed"
# Few at once: a record without a vector is found by its words alone, and a new one must not wait behind all old ones.
_RECORDS = 640
_WAITING = 20


@tick(stages.TIER_REEMBED)
def reembed() -> dict[str, Any]:
    """Ask for vectors of records whose vector is of another model, or that have none, while the embedders keep up."""
    opened = storage.open()
    embedder = factory.embedder(opened.settings)
    if embedder is None:
        return {"records": 0}
    messages: list[Message] = []
    with connection() as conn:
        if brain_vectors.waiting(conn, stages.TIER_EMBED, _WAITING) >= _WAITING:
            return {"records": 0}
        taken = tier_reembed.take(conn, embedder.model, _RECORDS)
        for (bank, namespace), keys in taken.items():
            new = NewOperation(uuid7(), KIND, uuid4(), bank_id=bank, namespace_id=namespace)
            messages += tier_reembed.begin(conn, new, keys, opened.patience)
    publish_after_commit(messages)
    records = sum(map(len, taken.values()))
    if records:
        emit(RecordEmbeddingRequested(records, len(taken)))
    return {"records": records}
