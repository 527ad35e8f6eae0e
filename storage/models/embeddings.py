"""Embeddings from an OpenAI-compatible server."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.errors import RejectedError
from isotherm.storage.models.http import Body, ModelServer
from isotherm.storage.models.usage import Usage, UsageObserver, ignore, tell

_ENDPOINT = "embeddings"


class HttpEmbedder:
    """Embeds by `POST /embeddings`.

    Args: server: where; model: the name the server knows, also the stamp; dimension: length that every vector must
        have; ask_dimension: send it along, for models whose vectors can be shortened; batch: texts per request;
        observer: told of each answered request.
    """

    def __init__(
        self,
        server: ModelServer,
        model: str,
        dimension: int,
        *,
        ask_dimension: bool = False,
        batch: int = 64,
        observer: UsageObserver = ignore,
    ) -> None:
        self._server = server
        self._model = model
        self._dimension = dimension
        self._ask_dimension = ask_dimension
        self._batch = batch
        self._observer = observer

    @property
    def model(self) -> str:
        """The stamp of its vectors."""
        return self._model

    @property
    def dimension(self) -> int:
        """Length of every vector."""
        return self._dimension

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts; shape (n, dimension), rows of unit L2 norm, in the order of the texts whatever the server's.

        Raises: TransientError; RejectedError, also when vectors are missing, doubled, not finite, zero, or of another
            length.
        """
        found = np.empty((len(texts), self._dimension), dtype=np.float32)
        for first in range(0, len(texts), self._batch):
            part = texts[first : first + self._batch]
            found[first : first + len(part)] = self._ask(part)
        return found

    def _ask(self, texts: Sequence[str]) -> NDArray[np.float32]:
        body: Body = {"model": self._model, "input": [_sendable(text) for text in texts], "encoding_format": "float"}
        if self._ask_dimension:
            body["dimensions"] = self._dimension
        reply = self._server.post(_ENDPOINT, body)
        counts = reply.body.get("usage") or {}
        tokens = counts.get("prompt_tokens") if isinstance(counts, dict) else None
        tell(self._observer, Usage("embed", self._model, reply.attempts, tokens, None, reply.duration_ms))
        return _unit_rows(_in_order(reply.body.get("data"), len(texts)), self._dimension)


def _sendable(text: str) -> str:
    """Servers refuse an empty text, and unpaired surrogates have no UTF-8 form."""
    return text.encode("utf-8", "replace").decode() or " "


def _in_order(data: object, count: int) -> list[Any]:
    if not isinstance(data, list) or not all(isinstance(item, dict) for item in data):
        raise RejectedError(f"{_ENDPOINT}: the model server answered no list of vectors")
    by_index = {item.get("index"): item.get("embedding") for item in data}
    if len(data) != count or by_index.keys() != set(range(count)):
        raise RejectedError(f"{_ENDPOINT}: {count} vectors were asked, {len(data)} came, or not one for each text")
    return [by_index[index] for index in range(count)]


def _unit_rows(rows: list[Any], dimension: int) -> NDArray[np.float32]:
    try:
        vectors = np.asarray(rows, dtype=np.float64)
    except (ValueError, TypeError):
        raise RejectedError(f"{_ENDPOINT}: a vector is not a list of {dimension} numbers") from None
    if vectors.shape != (len(rows), dimension):
        raise RejectedError(f"{_ENDPOINT}: vectors of {dimension} numbers were expected, {vectors.shape[1:]} came")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not (np.isfinite(norms).all() and norms.all()):
        raise RejectedError(f"{_ENDPOINT}: a vector is zero or not finite")
    unit: NDArray[np.float32] = (vectors / norms).astype(np.float32)
    return unit
