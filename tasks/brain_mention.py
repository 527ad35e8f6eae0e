"""The stage that links texts with the objects whose names they mention."""

from __future__ import annotations

from collections import Counter
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
from isotherm.tasks.stage import TOGETHER, claimed, settle_together, stage_task, tell, together


@stage_task(stages.BRAIN_MENTION)
def mention(payload: dict[str, Any]) -> dict[str, Any]:
    """Link the texts of objects with the names in them, and their names with the texts that were there before.

    Those of other steps that wait go together with them. Each portion of texts is written by itself, and writing it again
    changes nothing, so a step that is repeated goes on.
    """
    with claimed(payload) as step, together(step, TOGETHER) as more:
        every = [step, *more]
        counts: Counter[str] = Counter(texts=0, linked=0, unlinked=0)
        for same in _by_namespace(every):
            counts.update(_mention(same))
        settle_together(step, every, dict(counts))  # of all that went together
        tell(step, MentionsLinked(**counts))
    return step.receipt


def _by_namespace(every: Sequence[ClaimedStep]) -> list[list[ClaimedStep]]:
    found: dict[int, list[ClaimedStep]] = {}
    for step in every:
        if step.namespace_id is None:
            raise RejectedError(f"step {step.id} names no namespace")
        found.setdefault(step.namespace_id, []).append(step)
    return list(found.values())


def _mention(same: Sequence[ClaimedStep]) -> Counter[str]:
    """The work of steps of one namespace. What follows from it is noted with the first of them."""
    step, counts = same[0], Counter[str]()
    assert step.namespace_id is not None  # noqa: S101 - they were told apart by it
    asked = list(dict.fromkeys(UUID(i) for each in same for i in each.input["ids"]))
    for portion, some in enumerate(brain_mentions.batches(asked)):
        named, ids = brain_mentions.follow_names(step.namespace_id, some)
        changed = [_link(step, f"{portion}.{n}", texts) for n, texts in enumerate(brain_mentions.batches(ids))]
        with connection() as conn:
            brain_names.settled(conn, [one.key for one in named])
        counts["texts"] += len(ids)
        counts["linked"] += sum(one.linked for one in changed)
        counts["unlinked"] += sum(one.unlinked for one in changed)
    return counts


def _link(step: ClaimedStep, number: str, ids: Sequence[UUID]) -> Changed:
    assert step.namespace_id is not None  # noqa: S101 - checked before the first portion
    reading = brain_mentions.read(step.namespace_id, ids)
    with connection() as conn:
        changed = brain_mentions.write(conn, step.namespace_id, ids, reading)
        unit = f"mentions/{step.unit}/{step.token}/{number}"
        follow_up = brain_mirror.follow_edges(conn, step, changed.keys, unit, storage.open().patience)
    publish_after_commit(follow_up)
    return changed
