from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Literal

import pytest
from model_server import Answer, Script, model_server, said
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from isotherm.pipeline.errors import RejectedError, TransientError, UnavailableError
from isotherm.pipeline.ports import ChatModel, Question
from isotherm.storage.models.chat import HttpChatModel
from isotherm.storage.models.http import ModelServer, Patience
from isotherm.storage.models.usage import Usage


class Choice(BaseModel):
    model_config = ConfigDict(extra="forbid")
    handle: str = Field(max_length=8)
    action: Literal["merge", "keep"] = "keep"


class Choices(BaseModel):
    choices: list[Choice]


QUESTION = Question("s1_merge", "Judge.", "n1: confidential words", Choices, max_output_tokens=100)
GOOD = {"choices": [{"handle": "n1", "action": "merge"}]}
GOOD_TEXT = json.dumps(GOOD)
MERGED = Choices(choices=[Choice(handle="n1", action="merge")])


class Harness:
    """A chat model before a scripted server, with the waits it asked for."""

    def __init__(self, script: Script, **options: Any) -> None:
        self.script = script
        self.waits: list[float] = []
        self.usages: list[Usage] = []
        timeout, patience = options.pop("timeout", 5.0), options.pop("patience", None)
        self.server = ModelServer(
            script.url, api_key=SecretStr("sk-key"), timeout=timeout, patience=patience, sleep=self.waits.append
        )
        self.model = HttpChatModel(self.server, "test-model", **{"observer": self.usages.append, **options})

    def ask(self, question: Question[Any] = QUESTION) -> Any:
        return self.model.ask(question)


@pytest.fixture
def against(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Harness]]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ExitStack() as stack:

        def start(*answers: Answer, **options: Any) -> Harness:
            harness = Harness(stack.enter_context(model_server(*answers)), **options)
            stack.callback(harness.server.close)
            return harness

        yield start


Against = Callable[..., Harness]


@pytest.mark.parametrize("way", ["the connection breaks", "the text breaks off"])
def test_half_a_reply_is_asked_for_again_and_never_taken_for_an_answer(against: Against, way: str) -> None:
    whole = said(GOOD_TEXT)
    text = json.dumps(whole.body)
    half = replace(whole, half=True) if way == "the connection breaks" else Answer(text[: len(text) // 2])
    harness = against(half, half, whole)
    assert harness.ask() == MERGED
    assert len(harness.script.asked) == 3
    with pytest.raises(TransientError):
        against(half).ask()


def test_a_page_that_is_no_answer_at_all_is_refused_at_once(against: Against) -> None:
    harness = against(Answer("<html>It works!</html>"))
    with pytest.raises(RejectedError):
        harness.ask()
    assert len(harness.script.asked) == 1


def test_a_good_answer_is_asked_once_with_a_strict_schema(against: Against) -> None:
    harness = against(said(GOOD_TEXT))
    assert harness.ask() == MERGED
    [body] = harness.script.asked
    assert harness.script.paths == ["/v1/chat/completions"]
    assert harness.script.headers[0]["Authorization"] == "Bearer sk-key"
    assert body["messages"][0] == {"role": "system", "content": "Judge."}
    assert (body["model"], body["max_tokens"], body["temperature"]) == ("test-model", 100, 0.0)
    asked = body["response_format"]["json_schema"]
    assert (asked["name"], asked["strict"]) == ("s1_merge", True)
    choice = asked["schema"]["$defs"]["Choice"]
    assert choice["required"] == ["handle", "action"]
    assert choice["additionalProperties"] is False
    assert choice["properties"]["handle"] == {"type": "string"}


def test_it_is_a_chat_model(against: Against) -> None:
    model: ChatModel = against(said(GOOD_TEXT)).model
    assert model.ask(QUESTION).choices[0].handle == "n1"


def test_json_object_carries_the_schema_in_words(against: Against) -> None:
    harness = against(said(GOOD_TEXT), dialect="json_object", token_limit="max_completion_tokens", temperature=None)
    harness.ask()
    [body] = harness.script.asked
    assert body["response_format"] == {"type": "json_object"}
    assert '"maxLength": 8' in body["messages"][0]["content"]
    assert body["max_completion_tokens"] == 100
    assert not {"temperature", "max_tokens"} & body.keys()


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{GOOD_TEXT}\n```",
        f"Sure, see [1]. Here it is:\n{GOOD_TEXT}\nAnything else?",
        '<think>{"choices": []}</think>' + GOOD_TEXT,
        '{"choices": [{"handle": "n1", "action": "merge",},]}',
        json.dumps(GOOD["choices"]),
    ],
    ids=["fenced", "chatty", "reasoning", "trailing commas", "list alone"],
)
def test_untidy_answers_are_read_without_asking_again(against: Against, text: str) -> None:
    harness = against(said(text))
    assert harness.ask() == MERGED
    assert len(harness.script.asked) == 1


def test_a_bad_answer_is_repaired_with_the_validation_error(against: Against) -> None:
    harness = against(said('{"choices": [{"handle": "n1", "action": "erase"}]}'), said(GOOD_TEXT))
    assert harness.ask() == MERGED
    _, repair = harness.script.asked
    assert [message["role"] for message in repair["messages"]] == ["system", "user", "assistant", "user"]
    assert "choices.0.action" in repair["messages"][-1]["content"]
    assert "'merge' or 'keep'" in repair["messages"][-1]["content"]
    assert [usage.purpose for usage in harness.usages] == ["s1_merge", "s1_merge"]


@pytest.mark.parametrize("text", ["no idea", "{}", '{"choices": [{"handle": "secret-value"}]}', "", None])
def test_an_answer_that_stays_bad_is_rejected_and_names_only_the_field(against: Against, text: str | None) -> None:
    harness = against(said(text))
    with pytest.raises(RejectedError) as caught:
        harness.ask()
    assert len(harness.script.asked) == 2
    assert "s1_merge" in str(caught.value)
    assert "secret-value" not in str(caught.value)
    assert "confidential" not in str(caught.value)
    assert "(choices)" in str(caught.value) or "(answer)" in str(caught.value)


def test_an_answer_cut_off_serves_by_its_whole_items_where_allowed(against: Against) -> None:
    cut = GOOD_TEXT[:-2] + ', {"handle": "n2", "act'
    lenient = Question("extract", "Find.", "text", Choices, keep_whole_items=True)
    assert against(said(cut, finish_reason="length")).ask(lenient) == MERGED
    strict = against(said(cut, finish_reason="length"), said(GOOD_TEXT))
    assert strict.ask() == MERGED
    assert "cut off" in strict.script.asked[1]["messages"][-1]["content"]


@pytest.mark.parametrize("status", [400, 422])
def test_a_server_without_json_schema_is_asked_by_json_object_from_then_on(against: Against, status: int) -> None:
    harness = against(Answer({"error": {"message": "response_format?"}}, status), said(GOOD_TEXT))
    assert harness.ask() == MERGED
    assert harness.ask() == MERGED
    formats = [body["response_format"]["type"] for body in harness.script.asked]
    assert formats == ["json_schema", "json_object", "json_object"]


@pytest.mark.parametrize(("status", "requests"), [(400, 2), (401, 1), (403, 1), (404, 1), (413, 1)])
def test_refusals_are_not_repeated(against: Against, status: int, requests: int) -> None:
    harness = against(Answer({"error": {"message": "confidential words"}}, status))
    with pytest.raises(RejectedError, match=str(status)) as caught:
        harness.ask()
    assert "confidential" not in str(caught.value)
    assert len(harness.script.asked) == requests
    assert harness.waits == []


def test_a_rate_limit_waits_as_long_as_the_server_asks(against: Against) -> None:
    harness = against(Answer(status=429, headers={"Retry-After": "3"}), said(GOOD_TEXT))
    assert harness.ask() == MERGED
    assert len(harness.waits) == 1
    assert harness.waits[0] >= 3
    assert harness.usages[0].attempts == 2


def test_a_wait_longer_than_the_bound_goes_back_to_the_caller_at_once(against: Against) -> None:
    harness = against(Answer(status=429, headers={"Retry-After": "3600"}))
    with pytest.raises(TransientError, match="429"):
        harness.ask()
    assert len(harness.script.asked) == 1
    assert harness.waits == []


def test_a_wait_may_be_a_date_and_nonsense_is_ignored(against: Against) -> None:
    past, nonsense = "Wed, 21 Oct 2015 07:28:00 GMT", "soon"
    harness = against(
        Answer(status=429, headers={"Retry-After": past}),
        Answer(status=503, headers={"Retry-After": nonsense}),
        said(GOOD_TEXT),
    )
    assert harness.ask() == MERGED
    assert len(harness.waits) == 2
    assert all(0 <= wait <= 20 for wait in harness.waits)


def test_errors_of_the_server_pass(against: Against) -> None:
    harness = against(Answer(status=500), Answer("<html>", status=502), said(GOOD_TEXT))
    assert harness.ask() == MERGED
    assert len(harness.script.asked) == 3


def test_four_requests_are_enough(against: Against) -> None:
    harness = against(Answer(status=500))
    with pytest.raises(TransientError, match="500"):
        harness.ask()
    assert len(harness.script.asked) == 4
    assert len(harness.waits) == 3


def test_no_request_is_sent_after_the_total_time(against: Against) -> None:
    harness = against(Answer(status=500), patience=Patience(total=0.0))
    with pytest.raises(TransientError):
        harness.ask()
    assert len(harness.script.asked) == 1


def test_a_failure_inside_a_good_status_counts_as_that_failure(against: Against) -> None:
    harness = against(Answer({"error": {"code": 502}}), said(GOOD_TEXT))
    assert harness.ask() == MERGED
    with pytest.raises(RejectedError):
        against(Answer({"error": {"code": "invalid"}})).ask()


def test_a_server_that_never_answers_is_transient(against: Against) -> None:
    harness = against(Answer(silent=True), timeout=0.1, patience=Patience(attempts=2))
    started = time.monotonic()
    with pytest.raises(TransientError, match=r"0\.1 s"):
        harness.ask()
    assert len(harness.script.asked) == 2
    assert time.monotonic() - started < 5


def test_a_server_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as taken:  # bound and not listening: connections are refused, and nobody else can take it
        taken.bind(("127.0.0.1", 0))
        harness = Harness(Script([], url=f"http://127.0.0.1:{taken.getsockname()[1]}/v1"))
        with pytest.raises(UnavailableError):
            harness.ask()
    harness.server.close()
    assert len(harness.waits) == 3


@pytest.mark.parametrize("url", ["localhost/v1", "ftp://127.0.0.1/v1"])
def test_an_unusable_url_is_rejected(url: str) -> None:
    harness = Harness(Script([], url=url))
    with pytest.raises(RejectedError, match="base URL"):
        harness.ask()
    harness.server.close()


@pytest.mark.parametrize(
    "answer",
    [Answer("<html>"), Answer("[]"), Answer({}), Answer({"choices": []}), Answer({"choices": [{"message": None}]})],
)
def test_what_is_no_chat_completion_is_rejected(against: Against, answer: Answer) -> None:
    with pytest.raises(RejectedError):
        against(answer).ask()


def test_a_model_that_declines_is_rejected_without_a_repair(against: Against) -> None:
    for answer in (
        said("", finish_reason="content_filter"),
        said(None, message={"content": None, "refusal": "I won't"}),
    ):
        harness = against(answer)
        with pytest.raises(RejectedError, match="declined"):
            harness.ask()
        assert len(harness.script.asked) == 1


def test_usage_is_told_and_a_failing_observer_disturbs_nobody(against: Against) -> None:
    harness = against(said(GOOD_TEXT))
    harness.ask()
    [usage] = harness.usages
    assert (usage.purpose, usage.model, usage.attempts) == ("s1_merge", "test-model", 1)
    assert (usage.input_tokens, usage.output_tokens) == (11, 7)
    assert usage.duration_ms >= 0

    def fail(_: Usage) -> None:
        raise RuntimeError

    assert against(said(GOOD_TEXT), observer=fail).ask() == MERGED


def test_neither_key_nor_content_is_logged(against: Against, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        against(Answer(status=500), said(GOOD_TEXT)).ask()
    assert "sk-key" not in caplog.text
    assert "confidential" not in caplog.text
    assert "sk-key" not in repr(ModelServer("http://x", api_key=SecretStr("sk-key")).__dict__)
