"""Rerankers on a server, by the endpoint that hosted ones share: query and documents in, indices with relevance scores out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from uuid import UUID

from isotherm.pipeline.brain.index_text import index_text
from isotherm.pipeline.brain.objects import Object
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.ports import TextReranker
from isotherm.storage.models.http import Body, ModelServer
from isotherm.storage.models.usage import Usage, UsageObserver, ignore, tell

_ENDPOINT = "rerank"
# Rerankers read some hundred tokens of a document; the rest only costs.
_CHARS = 4_000


class HttpReranker:
    """Rates texts by `POST /rerank` with query, documents and top_n; `results` hold index and relevance_score.

    Args: server: where; model: the name the server knows; observer: told of each answered request.
    """

    def __init__(self, server: ModelServer, model: str, *, observer: UsageObserver = ignore) -> None:
        self._server, self._model, self._observer = server, model, observer

    def rerank(self, query: str, texts: Sequence[str]) -> list[tuple[int, float]]:
        """Rate texts, best first; equal ones keep their order.

        Raises: TransientError; RejectedError, also when the server names a text that it was not given, or one twice.
        """
        if not texts:
            return []
        body: Body = {
            "model": self._model,
            "query": _sendable(query),
            "documents": [_sendable(text[:_CHARS]) for text in texts],
            "top_n": len(texts),
        }
        reply = self._server.post(_ENDPOINT, body)
        tell(self._observer, Usage("rerank", self._model, reply.attempts, None, None, reply.duration_ms))
        return sorted(_checked(reply.body.get("results"), len(texts)), key=lambda rated: (-rated[1], rated[0]))


class ObjectReranker:
    """Orders objects of a search by what a reranker says of their texts; false when there is none, so that none is read.

    Args: texts: gives the reranker, or None.
    """

    def __init__(self, texts: Callable[[], TextReranker | None]) -> None:
        self._texts = texts

    def __bool__(self) -> bool:
        """Whether there is a reranker."""
        return self._texts() is not None

    def rerank(self, query: str, objects: Sequence[Object]) -> Sequence[UUID] | None:
        """Ids, best first; None, which keeps the order, when there is no reranker. Raises: as `TextReranker.rerank`."""
        reranker = self._texts()
        if reranker is None:
            return None
        rated = reranker.rerank(query, [index_text(o.title, o.summary, o.content or "") for o in objects])
        return [objects[index].id for index, _ in rated]


def _checked(results: object, count: int) -> list[tuple[int, float]]:
    if not isinstance(results, list):
        raise RejectedError(f"{_ENDPOINT}: the model server answered no list of results")
    rated = [_rated(result) for result in results]
    indices = [index for index, _ in rated]
    if len(set(indices)) != len(indices) or not set(indices) <= set(range(count)):
        raise RejectedError(f"{_ENDPOINT}: {count} documents were sent; a result names another one, or one twice")
    return rated


def _rated(result: object) -> tuple[int, float]:
    if isinstance(result, dict):
        index, score = result.get("index"), result.get("relevance_score")
        if type(index) is int and type(score) in {int, float} and math.isfinite(score or 0.0):
            return index, float(score or 0.0)
    raise RejectedError(f"{_ENDPOINT}: a result has no index, or no relevance score that is a number")


def _sendable(text: str) -> str:
    """Servers refuse an empty text, and unpaired surrogates have no UTF-8 form."""
    return text.encode("utf-8", "replace").decode() or " "
