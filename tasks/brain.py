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
from isotherm.pipeline.brain.graph_port import Counts, GraphPort
from isotherm.pipeline.brain.long_texts import embed_whole
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.events import GraphMirrored, ObjectsEmbedded, StatisticsFolded
from isotherm.pipeline.ports import Embedder
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_mirror, brain_vectors, brain_words, steps
from isotherm.storage.postgres.brain_mirror import Projection
from isotherm.storage.postgres.brain_vectors import Unembedded
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.steps import ClaimedStep
from isotherm.tasks.observe import emit
from isotherm.tasks.stage import claimed, stage_task, tell
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
            step.settle(conn, counts)
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
    """Bring a batch of objects and edges to the graph, each at its newest revision.

    The graph ignores what is older than what it has, so a repeated or late message is harmless; while the graph is away
    the step is given back, without end.
    """
    with claimed(payload) as step:
        ids, edges = [UUID(i) for i in step.input["ids"]], [int(key) for key in step.input["edges"]]
        with connection() as conn:
            wanted = brain_mirror.projection(conn, _namespace_of(step), ids, edges)
        counts = Counts() if wanted is None else apply(storage.open().brain.graph, wanted)
        with connection() as conn:
            step.settle(conn, {"nodes": counts.nodes, "edges": counts.edges}, is_result=True)
        tell(step, GraphMirrored(counts.nodes, counts.edges))
    return step.receipt


def apply(graph: GraphPort, wanted: Projection) -> Counts:
    """Write a projection to the graph. Raises: TransientError when the graph is out of reach."""
    written = removed = Counts()
    if wanted.nodes or wanted.edges:
        written = graph.upsert(wanted.namespace, wanted.nodes, wanted.edges)
    if wanted.gone_nodes or wanted.gone_edges:
        removed = graph.remove(wanted.namespace, wanted.gone_nodes, wanted.gone_edges)
    return Counts(written.nodes + removed.nodes, written.edges + removed.edges)


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
