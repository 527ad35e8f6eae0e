"""Chat models behind an OpenAI-compatible server."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Literal

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.ports import AnswerT, Question
from isotherm.storage.models.answer_format import (
    Dialect,
    InvalidAnswerError,
    parse_answer,
    repair_text,
    response_format,
    system_text,
)
from isotherm.storage.models.http import Body, ModelServer, StatusRejectedError
from isotherm.storage.models.usage import Usage, UsageObserver, ignore, tell

_ENDPOINT = "chat/completions"
_REFUSED_FORMAT = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})

TokenLimit = Literal["max_tokens", "max_completion_tokens"]


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    cut_off: bool


class HttpChatModel:
    """Asks by `POST /chat/completions`.

    Args: server: where; model: the name the server knows; dialect: how the form of answers is asked for; a server that
        refuses `json_schema` is asked by `json_object` from then on; token_limit: what the server calls the bound of an
        answer; temperature: None where a model accepts none; observer: told of each answered request.
    """

    def __init__(
        self,
        server: ModelServer,
        model: str,
        *,
        dialect: Dialect = "json_schema",
        token_limit: TokenLimit = "max_tokens",  # noqa: S107 - a name in the protocol
        temperature: float | None = 0.0,
        observer: UsageObserver = ignore,
    ) -> None:
        self._server = server
        self._model = model
        self._dialect = dialect
        self._token_limit = token_limit
        self._temperature = temperature
        self._observer = observer

    @property
    def model(self) -> str:
        """The name the server knows."""
        return self._model

    def ask(self, question: Question[AnswerT]) -> AnswerT:
        """Ask, validate, and have an invalid answer repaired once.

        Raises: TransientError; RejectedError when the request is refused, the model declines, or its second answer is
            invalid too; the message names the question and fields, never values.
        """
        answer = self._answer(question, [])
        try:
            return parse_answer(question, answer.text, cut_off=answer.cut_off)
        except InvalidAnswerError as error:
            said = [{"role": "assistant", "content": answer.text}, {"role": "user", "content": repair_text(error)}]
        answer = self._answer(question, said)
        try:
            return parse_answer(question, answer.text, cut_off=answer.cut_off)
        except InvalidAnswerError as error:
            fields = ", ".join(error.fields)
            raise RejectedError(f"{question.name}: the answer of {self._model} stayed invalid ({fields})") from None

    def _answer(self, question: Question[Any], said: list[dict[str, str]]) -> _Answer:
        dialect = self._dialect
        try:
            return self._send(question, said, dialect)
        except StatusRejectedError as error:
            if dialect == "json_object" or error.status not in _REFUSED_FORMAT:
                raise
        # Servers say in many ways that they do not know json_schema. If that was not it, this is refused as well.
        answer = self._send(question, said, "json_object")
        self._dialect = "json_object"
        return answer

    def _send(self, question: Question[Any], said: list[dict[str, str]], dialect: Dialect) -> _Answer:
        reply = self._server.post(_ENDPOINT, self._body(question, said, dialect))
        counts = reply.body.get("usage")
        counts = counts if isinstance(counts, dict) else {}
        tokens = counts.get("prompt_tokens"), counts.get("completion_tokens")
        tell(self._observer, Usage(question.name, self._model, reply.attempts, *tokens, reply.duration_ms))
        return _answer_of(question, reply.body)

    def _body(self, question: Question[Any], said: list[dict[str, str]], dialect: Dialect) -> Body:
        asked = [
            {"role": "system", "content": system_text(question, dialect)},
            {"role": "user", "content": question.user},
        ]
        body: Body = {
            "model": self._model,
            "messages": [*asked, *said],
            "response_format": response_format(question, dialect),
            self._token_limit: question.max_output_tokens,
        }
        return body if self._temperature is None else {**body, "temperature": self._temperature}


def _answer_of(question: Question[Any], body: Body) -> _Answer:
    try:
        choice = body["choices"][0]
        message = choice["message"]
        content, refusal = message.get("content"), message.get("refusal")
    except (KeyError, IndexError, TypeError, AttributeError):
        raise RejectedError(f"{question.name}: the model server answered no chat completion") from None
    finish = choice.get("finish_reason")
    if refusal or finish == "content_filter":
        raise RejectedError(f"{question.name}: the model declined to answer")
    return _Answer(content if isinstance(content, str) else "", finish == "length")
