"""The tick that keeps records' vectors of one model: those of another one are made anew in the background, few at a time."""

from __future__ import annotations

from typing import Any

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.events import RecordEmbeddingRequested
from isotherm.storage.models import factory
from isotherm.storage.postgres import tier_reembed
from isotherm.tasks.catching_up import catch_up
from isotherm.tasks.observe import emit
from isotherm.tasks.ticks import tick

KIND = "tier.reembed"
# Few at once: a record without a vector is found by its words alone, and a new one must not wait behind all old ones.
_RECORDS = 640
_WAITING = 20


@tick(stages.TIER_REEMBED)
def reembed() -> dict[str, Any]:
    """Ask for vectors of records whose vector is of another model, or that have none, while the embedders keep up."""
    embedder = factory.embedder(storage.open().settings)
    if embedder is None:
        return {"records": 0}
    taken = catch_up(
        KIND,
        stages.TIER_EMBED,
        _WAITING,
        lambda conn: tier_reembed.take(conn, embedder.model, _RECORDS),
        tier_reembed.begin,
    )
    records = sum(map(len, taken.values()))
    if records:
        emit(RecordEmbeddingRequested(records, len(taken)))
    return {"records": records}
