"""Models that remember what they said to a bank: one question is paid once, and a text is embedded once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from isotherm.pipeline.hashing import digest
from isotherm.pipeline.interest.budget import Spent
from isotherm.pipeline.ports import AnswerT, Embedder, Question
from isotherm.storage.gathered import Gathered
from isotherm.storage.interest_meter import MeteredChat
from isotherm.storage.postgres import interest_copies
from isotherm.storage.postgres.pool import connection, statement


@lru_cache(maxsize=64)
def _form(answer: type[BaseModel]) -> str:
    """A schema as text; to make one takes longer than all the rest of a question."""
    return json.dumps(answer.model_json_schema(), sort_keys=True)


class _Kept(NamedTuple):
    key: bytes
    said: dict[str, Any]
    spent: Spent


class RememberingChat:
    """A chat model that is not asked what it answered before. It may be shared by threads, which read and write together.

    Args: erasures: of the bank, before anything was read that is asked about.
    """

    def __init__(self, chat: MeteredChat, bank_id: int, erasures: int) -> None:
        self._chat = chat
        self._bank_id = bank_id
        self._erasures = erasures
        self._known = Gathered(self._find)
        self._keep = Gathered(self._write)

    def ask(self, question: Question[AnswerT]) -> AnswerT:
        """The stored answer, else the model's own, which is stored when this returns. Raises: as the model, and TransientError."""
        form, model = _form(question.answer), self._chat.meter.model
        key = digest("answer", model, question.name, question.system, question.user, form)
        known = self._known(key)
        if known is not None:
            try:
                return question.answer.model_validate(known)
            except ValidationError:
                pass  # of a form that has changed since
        said, spent = self._chat.ask(question)
        self._keep(_Kept(key, said.model_dump(mode="json"), spent))
        return said

    def _find(self, keys: Sequence[bytes]) -> list[dict[str, Any] | None]:
        with statement() as conn:
            found = interest_copies.answers(conn, self._bank_id, keys)
        return [found.get(key) for key in keys]

    def _write(self, kept: Sequence[_Kept]) -> list[None]:
        """Keep answers, and count what they cost, in one transaction and one round trip."""
        with connection() as conn, conn.pipeline():
            # The bank before the operation, as an erasure locks them.
            answers = {one.key: one.said for one in kept}
            interest_copies.keep_answers(conn, self._bank_id, answers, self._erasures)
            self._chat.meter.add(conn, sum((one.spent for one in kept), Spent()))
        return [None] * len(kept)


@dataclass(frozen=True, slots=True)
class RememberingEmbedder:
    """An embedder that is not given a text twice; vectors are known by model, dimension and text.

    Args: erasures: of the bank, before any of the texts was read.
    """

    embedder: Embedder
    bank_id: int
    erasures: int

    @property
    def model(self) -> str:
        """The stamp of its vectors."""
        return self.embedder.model

    @property
    def dimension(self) -> int:
        """Length of every vector."""
        return self.embedder.dimension

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts, those that are not known in one call. Raises: as the embedder, and TransientError."""
        keys = {text: digest("vector", self.model, str(self.dimension), text) for text in texts}
        with statement() as conn:
            known = interest_copies.vectors(conn, self.bank_id, list(keys.values()))
        missing = [text for text, key in keys.items() if key not in known]
        if missing:
            made = dict(zip((keys[text] for text in missing), self.embedder.embed(missing), strict=True))
            with statement() as conn:
                interest_copies.keep_vectors(conn, self.bank_id, made, self.erasures)
            known |= made
        found = np.empty((len(texts), self.dimension), dtype=np.float32)
        for row, text in enumerate(texts):
            found[row] = known[keys[text]]
        return found
