"""The tick that keeps vectors of one model: rows with another stamp, or without a vector, get one in the background."""

from __future__ import annotations

from typing import Any

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.events import EmbeddingRequested
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_vectors, brain_write
from isotherm.tasks.catching_up import catch_up
from isotherm.tasks.observe import emit
from isotherm.tasks.ticks import tick

KIND = "brain.reembed"
# Few at once: a row without a vector is found by its words alone, and a new write must not wait behind an old library.
_ROWS = 640
_WAITING = 20


@tick(stages.BRAIN_REEMBED)
def reembed() -> dict[str, Any]:
    """Ask for vectors of rows whose vector is of another model, or that have none, while the embedders keep up."""
    embedder = factory.embedder(storage.open().settings)
    if embedder is None:
        return {"objects": 0}
    stale = catch_up(
        KIND,
        stages.BRAIN_EMBED,
        _WAITING,
        lambda conn: brain_vectors.take_stale(conn, embedder.model, _ROWS),
        brain_write.begin_embedding,
    )
    objects = sum(map(len, stale.values()))
    if objects:
        emit(EmbeddingRequested(objects, len(stale)))
    return {"objects": objects}
