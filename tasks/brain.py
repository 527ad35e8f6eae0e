"""Stages of the knowledge base: vectors and the graph, which follow every write; and the tick that folds statistics."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.brain.long_texts import embed_whole
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.events import GraphMirrored, ObjectsEmbedded, StatisticsFolded
from isotherm.pipeline.ports import Embedder
from isotherm.storage import brain_mirror
from isotherm.storage.brain_mirror import Asked
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_vectors, brain_words, steps
from isotherm.storage.postgres.brain_vectors import Unembedded
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.steps import ClaimedStep
from isotherm.tasks.observe import emit
from isotherm.tasks.publish import publish_after_commit
from isotherm.tasks.stage import TOGETHER, claimed, settle_together, stage_task, tell, together
from isotherm.tasks.ticks import tick

_FOLDS = 50


@stage_task(stages.BRAIN_EMBED)
def embed(payload: dict[str, Any]) -> dict[str, Any]:
    """Make the vectors of a batch of objects; what a model answered is stored before it is applied."""
    with claimed(payload) as step:
        namespace_id, keys = _namespace_of(step), [int(key) for key in step.input["keys"]]
        if step.answer is None:
            with connection() as conn:
                found = brain_vectors.unembedded(conn, namespace_id, keys)
            step.answer = answer_of(factory.embedder(storage.open().settings), found)
            with connection() as conn:
                steps.store_answer(conn, step, step.answer)
        rows = _stamped(step.answer["rows"])
        refused = _stamped(step.answer["refused"])
        vectors = unpack(step.answer["vectors"], len(rows))
        with connection() as conn:
            written = brain_vectors.write(conn, namespace_id, rows, vectors, step.answer["model"])
            brain_vectors.set_state(conn, namespace_id, refused, step.answer["state"])
            counts = {"objects": written, "changed": len(rows) - written, "refused": len(refused)}
            follow_up = brain_mirror.follow(conn, step, [key for key, _ in rows], storage.open().patience)
            step.settle(conn, counts)
        publish_after_commit(follow_up)
        tell(step, ObjectsEmbedded(**counts))
    return step.receipt


def answer_of(embedder: Embedder | None, found: Sequence[Unembedded]) -> dict[str, Any]:
    """Embed texts, as JSON: row key and hash of each, the vectors in half precision, and which were refused.

    A batch that the model refuses is tried text by text, so that one text does not keep the others from theirs.
    """
    kept: list[Unembedded] = []
    refused: list[Unembedded] = []
    vectors: list[NDArray[np.float32]] = []
    if embedder is not None and found:
        try:
            vectors, kept = list(embed_whole(embedder, [one.text for one in found])), list(found)
        except RejectedError:
            kept, refused, vectors = _one_by_one(embedder, found)
    return {
        "model": "" if embedder is None else embedder.model,
        "state": "none" if embedder is None else "failed",
        "rows": [[one.key, one.sha256.hex()] for one in kept],
        "refused": [[one.key, one.sha256.hex()] for one in (found if embedder is None else refused)],
        "vectors": base64.b64encode(np.asarray(vectors, dtype="<f2").tobytes()).decode(),
    }


def _one_by_one(
    embedder: Embedder, found: Sequence[Unembedded]
) -> tuple[list[Unembedded], list[Unembedded], list[NDArray[np.float32]]]:
    kept, refused, vectors = [], [], []
    for one in found:
        try:
            vectors.append(embed_whole(embedder, [one.text])[0])
        except RejectedError:
            refused.append(one)
        else:
            kept.append(one)
    return kept, refused, vectors


def unpack(packed: str, count: int) -> NDArray[np.float16]:
    """Vectors as `answer_of` packed them; shape (count, dimension)."""
    return np.frombuffer(base64.b64decode(packed), dtype="<f2").reshape(count, -1 if count else 0)


@stage_task(stages.BRAIN_MIRROR)
def mirror(payload: dict[str, Any]) -> dict[str, Any]:
    """Bring objects and edges to the graph, each at its newest revision, with those of other steps that wait.

    The graph ignores what is older than what it has, so a repeated or late message is harmless; while the graph is away
    the steps are given back, without end.
    """
    with claimed(payload) as step, together(step, TOGETHER) as more:
        every = [step, *more]
        counts = brain_mirror.bring(storage.open().brain.graph, [_asked(each) for each in every])
        receipt = {"nodes": counts.nodes, "edges": counts.edges}  # of all that went together
        settle_together(step, every, receipt)
        tell(step, GraphMirrored(counts.nodes, counts.edges))
    return step.receipt


def _asked(step: ClaimedStep) -> Asked:
    ids, edges = [UUID(i) for i in step.input["ids"]], [int(key) for key in step.input["edges"]]
    return Asked(_namespace_of(step), ids, edges)


@tick(stages.BRAIN_FOLD)
def fold() -> dict[str, Any]:
    """Add waiting changes to the statistics of words."""
    storage.open()
    folded = 0
    for _ in range(_FOLDS):
        with connection() as conn:
            now = brain_words.fold(conn)
        folded += now
        if not now:
            break
    if folded:
        emit(StatisticsFolded(folded))
    return {"changes": folded}


def _namespace_of(step: ClaimedStep) -> int:
    if step.namespace_id is None:
        raise RejectedError(f"step {step.id} names no namespace")
    return step.namespace_id


def _stamped(rows: Sequence[Sequence[Any]]) -> list[tuple[int, bytes]]:
    return [(int(key), bytes.fromhex(sha)) for key, sha in rows]
