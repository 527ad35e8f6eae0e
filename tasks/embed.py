"""The stage that gives records their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.events import RecordsEmbedded
from isotherm.pipeline.ports import Embedder
from isotherm.storage import cold
from isotherm.storage.models import factory
from isotherm.storage.postgres import tier_vectors
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.tier_vectors import Unembedded
from isotherm.tasks.stage import claimed, stage_task, tell


@stage_task(stages.TIER_EMBED)
def embed(payload: dict[str, Any]) -> dict[str, Any]:
    """Embed the texts of new and changed records in one batch.

    The vectors are not stored in the step first: that write and this one would be of the same size and moment.
    """
    with claimed(payload) as step:
        with connection() as conn:
            found = tier_vectors.unembedded(conn, step.input["keys"])
        try:
            model = _embedder()
            vectors = model.embed(_texts(found))
        except RejectedError:
            with connection() as conn:
                tier_vectors.mark_failed(conn, found)
            raise
        with connection() as conn:
            embedded = tier_vectors.write(conn, model.model, found, vectors)
            step.settle(conn, {"records": len(step.input["keys"]), "embedded": embedded})
        tell(step, RecordsEmbedded(embedded))
    return step.receipt


def _texts(found: Sequence[Unembedded]) -> list[str]:
    """What each record is about; a cold one is about what its whole text said."""
    blobs = storage.open().blobs
    return [r.text if r.stored is None else cold.text_or_summary(r.stored, blobs)[: tier_vectors.CHARS] for r in found]


def _embedder() -> Embedder:
    model = factory.embedder(storage.open().settings)
    if model is None:
        raise RejectedError("this worker has no embedder: see ISOTHERM_EMBEDDER")
    return model
