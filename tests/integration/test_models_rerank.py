from __future__ import annotations

from typing import Any

import pytest
from model_server import Answer, Script, model_server
from pydantic import SecretStr

from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.storage.models import factory
from isotherm.storage.models.http import ModelServer, Patience
from isotherm.storage.models.rerank import HttpReranker
from isotherm.storage.settings import Settings


def results(*rated: tuple[Any, Any]) -> Answer:
    return Answer({"results": [{"index": index, "relevance_score": score} for index, score in rated]})


def reranker(script: Script) -> HttpReranker:
    server = ModelServer(script.url, api_key=SecretStr("k"), patience=Patience(attempts=1))
    return HttpReranker(server, "judge-1")


def test_documents_are_sent_and_come_back_best_first() -> None:
    with model_server(results((2, 0.4), (0, 0.9), (1, 0.4))) as script:
        assert reranker(script).rerank("kelp?", ["a", "b", "c"]) == [(0, 0.9), (1, 0.4), (2, 0.4)]
        assert script.asked == [{"model": "judge-1", "query": "kelp?", "documents": ["a", "b", "c"], "top_n": 3}]
        assert script.paths == ["/v1/rerank"]
        assert reranker(script).rerank("kelp?", []) == []


def test_some_may_be_left_out() -> None:
    with model_server(results((1, 0.2))) as script:
        assert reranker(script).rerank("kelp?", ["a", "b"]) == [(1, 0.2)]


@pytest.mark.parametrize(
    "wrong",
    [
        results((0, 0.1), (0, 0.2)),
        results((2, 0.1)),
        results((-1, 0.1)),
        results((True, 0.1)),
        results((0, "high")),
        results((0, None)),
        Answer({"results": "none"}),
        Answer({"results": [3]}),
    ],
)
def test_what_is_no_subset_of_the_documents_with_scores_is_refused(wrong: Answer) -> None:
    with model_server(wrong) as script, pytest.raises(RejectedError, match="rerank"):
        reranker(script).rerank("kelp?", ["a", "b"])


def test_a_server_that_is_busy_is_a_passing_failure() -> None:
    with model_server(Answer(status=503)) as script, pytest.raises(TransientError):
        reranker(script).rerank("kelp?", ["a"])


def test_settings_name_what_is_missing() -> None:
    assert factory.reranker(Settings()) is None
    with pytest.raises(RejectedError, match="ISOTHERM_RERANKER_URL"):
        factory.reranker(Settings(reranker="http"))
