"""Stages of single records: their words, and their way back from cold."""

from __future__ import annotations

from typing import Any

from isotherm import storage
from isotherm.pipeline import stages, text
from isotherm.pipeline.events import RecordsIndexed, RecordsRestored
from isotherm.storage import cold
from isotherm.storage.models import factory
from isotherm.storage.postgres import outbox, steps, tier_index, tier_move
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import Connection, connection
from isotherm.storage.postgres.steps import ClaimedStep, NewStep
from isotherm.storage.postgres.tier_held import Patience
from isotherm.tasks.publish import publish_and_remove
from isotherm.tasks.stage import claimed, stage_task, tell


@stage_task(stages.INDEX)
def index(payload: dict[str, Any]) -> dict[str, Any]:
    """Write the words of new and changed records into the index."""
    with claimed(payload) as step:
        with connection() as conn:
            found = tier_index.unindexed(conn, step.input["keys"])
        words = [(record, text.terms(record.text)) for record in found]
        with connection() as conn:
            indexed = tier_index.write_terms(conn, words)
            step.settle(conn, {"records": len(step.input["keys"]), "indexed": indexed}, is_result=True)
        tell(step, RecordsIndexed(indexed))
    return step.receipt


@stage_task(stages.RESTORE)
def restore(payload: dict[str, Any]) -> dict[str, Any]:
    """Bring a batch of cold records back, byte for byte."""
    with claimed(payload) as step:
        opened = storage.open()
        chosen = opened.settings
        moves = tier_move.decode(step.input["moves"])
        fetched = cold.fetch(moves, opened.blobs)
        embeds = factory.embedder(chosen) is not None
        with connection() as conn:
            moved = tier_move.restore(
                conn,
                step.operation_id,
                moves,
                fetched=fetched,
                embeds=embeds,
                patience=Patience(chosen.hold_base, chosen.hold_cap),
            )
            messages = _embed_again(conn, step, moved.unembedded)
            step.settle(conn, moved.receipt(), is_result=True)
        publish_and_remove(messages)
        tell(step, RecordsRestored(len(moved.moves), len(moved.set_aside), step.receipt["reasons"]))
    return step.receipt


def _embed_again(conn: Connection, step: ClaimedStep, keys: list[int]) -> list[Message]:
    """Texts that came back get their vectors in a step of the same operation."""
    if not keys:
        return []
    patience = storage.open().patience
    new = NewStep(stages.TIER_EMBED, {"keys": keys}, step.unit)
    ids = steps.add(conn, step.operation_id, [new], retry_for=patience.retry_for, nudge_after=patience.nudge_after)
    return [
        outbox.announce(
            conn,
            stages.TIER_EMBED,
            ids[0],
            operation_id=step.operation_id,
            trace_id=step.trace_id,
            delay=patience.grace,
        )
    ]
