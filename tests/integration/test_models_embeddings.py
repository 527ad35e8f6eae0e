from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from model_server import Answer, Script, model_server, vectors

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.ports import Embedder
from isotherm.storage.models.embeddings import HttpEmbedder
from isotherm.storage.models.http import ModelServer
from isotherm.storage.models.usage import Usage

Against = Callable[..., tuple[HttpEmbedder, Script]]


@pytest.fixture
def against(monkeypatch: pytest.MonkeyPatch) -> Iterator[Against]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ExitStack() as stack:

        def start(*answers: Answer, **options: Any) -> tuple[HttpEmbedder, Script]:
            script = stack.enter_context(model_server(*answers))
            server = ModelServer(script.url, timeout=5, sleep=lambda _: None)
            stack.callback(server.close)
            return HttpEmbedder(server, "test-embed", 2, **options), script

        yield start


def test_rows_are_unit_and_in_the_order_of_the_texts(against: Against) -> None:
    embedder, script = against(vectors((1, [0.0, 2.0]), (0, [3.0, 4.0])))
    port: Embedder = embedder
    found = port.embed(["a", "b"])
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, [[0.6, 0.8], [0.0, 1.0]], atol=1e-6)
    assert script.paths == ["/v1/embeddings"]
    assert script.asked == [{"model": "test-embed", "input": ["a", "b"], "encoding_format": "float"}]
    assert (port.model, port.dimension) == ("test-embed", 2)


def test_texts_go_in_batches(against: Against) -> None:
    usages: list[Usage] = []
    embedder, script = against(
        vectors((0, [1, 0]), (1, [0, 1])), vectors((0, [0, -1])), batch=2, ask_dimension=True, observer=usages.append
    )
    found = embedder.embed(["a", "b", "c"])
    assert [body["input"] for body in script.asked] == [["a", "b"], ["c"]]
    assert {body["dimensions"] for body in script.asked} == {2}
    np.testing.assert_allclose(found, [[1, 0], [0, 1], [0, -1]])
    assert [(usage.purpose, usage.input_tokens, usage.output_tokens) for usage in usages] == [("embed", 5, None)] * 2


def test_no_text_asks_nothing(against: Against) -> None:
    embedder, script = against()
    assert embedder.embed([]).shape == (0, 2)
    assert script.asked == []


def test_texts_that_servers_refuse_are_sent_in_a_form_they_take(against: Against) -> None:
    embedder, script = against(vectors((0, [1, 0]), (1, [1, 0])))
    embedder.embed(["", "\ud800"])
    assert script.asked[0]["input"] == [" ", "?"]


@pytest.mark.parametrize(
    "answer",
    [
        vectors((0, [1, 0, 0]), (1, [1, 0, 0])),
        vectors((0, [1, 0]), (1, [1, 0, 0])),
        vectors((0, [1, 0])),
        vectors((0, [1, 0]), (0, [1, 0])),
        vectors((0, [1, 0]), (2, [1, 0])),
        vectors((0, [1, 0]), (1, [0, 0])),
        vectors((0, [1, 0]), (1, [float("nan"), 0])),
        Answer({"data": [{"index": 0, "embedding": "abc"}, {"index": 1, "embedding": [1, 0]}]}),
        Answer({"data": None}),
        Answer({"data": ["a", "b"]}),
        Answer({}),
    ],
    ids=["longer", "ragged", "missing", "doubled", "gap", "zero", "not finite", "text", "null", "no objects", "empty"],
)
def test_vectors_that_cannot_be_stored_are_rejected(against: Against, answer: Answer) -> None:
    embedder, script = against(answer)
    with pytest.raises(RejectedError):
        embedder.embed(["a", "b"])
    assert len(script.asked) == 1


def test_an_error_of_the_server_passes(against: Against) -> None:
    embedder, script = against(Answer(status=503), vectors((0, [1, 0])))
    assert embedder.embed(["a"]).shape == (1, 2)
    assert len(script.asked) == 2
