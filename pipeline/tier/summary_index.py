"""Summaries of cold records searched by meaning, in the memory of this process."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.ports import Embedder
from isotherm.pipeline.tier.ranking import RELEVANT_COSINE


class EmbeddedSummaryIndex:
    """A `ColdSummaryIndexer` that embeds summaries and compares them with queries.

    Args: embedder: one model for all of them.
    """

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._vectors: dict[Namespace, dict[str, NDArray[np.float32]]] = {}
        self._lock = threading.Lock()

    def upsert_summary(self, namespace: Namespace, record_id: str, summary: str) -> None:
        """Embed and keep a summary. Raises: what the embedder raises."""
        vector = self._embedder.embed([summary])[0]
        with self._lock:
            self._vectors.setdefault(namespace, {})[record_id] = vector

    def search_summaries(self, namespace: Namespace, query: str, limit: int) -> Sequence[str]:
        """Ids of summaries that are more alike than chance, best first, ties by id. Raises: what the embedder raises."""
        with self._lock:
            known = dict(self._vectors.get(namespace, {}))
        if not known or limit <= 0:
            return ()
        cosines = np.stack(list(known.values())) @ self._embedder.embed([query])[0]
        rated = sorted(zip(cosines.tolist(), known, strict=True), key=lambda pair: (-pair[0], pair[1]))
        return [record_id for cosine, record_id in rated[:limit] if cosine >= RELEVANT_COSINE]

    def delete_summary(self, namespace: Namespace, record_id: str) -> None:
        """Forget a summary."""
        with self._lock:
            held = self._vectors.get(namespace, {})
            held.pop(record_id, None)
            if not held:
                self._vectors.pop(namespace, None)
