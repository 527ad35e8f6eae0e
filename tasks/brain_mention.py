"""The stage that links texts with the objects whose names they mention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.events import MentionsLinked
from isotherm.storage import brain_mentions, brain_mirror
from isotherm.storage.postgres import brain_names
from isotherm.storage.postgres.brain_mentions import Changed
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.steps import ClaimedStep
from isotherm.tasks.publish import publish_after_commit
from isotherm.tasks.stage import claimed, stage_task, tell


@stage_task(stages.BRAIN_MENTION)
def mention(payload: dict[str, Any]) -> dict[str, Any]:
    """Link the texts of objects with the names in them, and their names with the texts that were there before.

    Each portion of texts is written by itself, and writing it again changes nothing, so a step that is repeated goes on.
    """
    with claimed(payload) as step:
        if step.namespace_id is None:
            raise RejectedError(f"step {step.id} names no namespace")
        named, ids = brain_mentions.follow_names(step.namespace_id, [UUID(i) for i in step.input["ids"]])
        changed = [_link(step, number, some) for number, some in enumerate(brain_mentions.batches(ids))]
        counts = {
            "texts": len(ids),
            "linked": sum(one.linked for one in changed),
            "unlinked": sum(one.unlinked for one in changed),
        }
        with connection() as conn:
            brain_names.settled(conn, [one.key for one in named])
            step.settle(conn, counts)
        tell(step, MentionsLinked(**counts))
    return step.receipt


def _link(step: ClaimedStep, number: int, ids: Sequence[UUID]) -> Changed:
    assert step.namespace_id is not None  # noqa: S101 - checked before the first portion
    reading = brain_mentions.read(step.namespace_id, ids)
    with connection() as conn:
        changed = brain_mentions.write(conn, step.namespace_id, ids, reading)
        unit = f"mentions/{step.unit}/{step.token}/{number}"
        follow_up = brain_mirror.follow_edges(conn, step, changed.keys, unit, storage.open().patience)
    publish_after_commit(follow_up)
    return changed
