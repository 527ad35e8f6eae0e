"""Models that remember what they said to a bank: one question is paid once, and a text is embedded once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from isotherm.pipeline.hashing import digest
from isotherm.pipeline.ports import AnswerT, ChatModel, Embedder, Question
from isotherm.storage.postgres import interest_copies
from isotherm.storage.postgres.pool import statement


@lru_cache(maxsize=64)
def _form(answer: type[BaseModel]) -> str:
    """A schema as text; to make one takes longer than all the rest of a question."""
    return json.dumps(answer.model_json_schema(), sort_keys=True)


@dataclass(frozen=True, slots=True)
class RememberingChat:
    """A chat model that is not asked what it answered before.

    Args: model: its name; another one is asked anew; erasures: of the bank, before anything was read that is asked about.
    """

    chat: ChatModel
    bank_id: int
    model: str
    erasures: int

    def ask(self, question: Question[AnswerT]) -> AnswerT:
        """The stored answer, else the model's own, which is then stored. Raises: as the model, and TransientError."""
        form = _form(question.answer)
        key = digest("answer", self.model, question.name, question.system, question.user, form)
        with statement() as conn:
            known = interest_copies.answer(conn, self.bank_id, key)
        if known is not None:
            try:
                return question.answer.model_validate(known)
            except ValidationError:
                pass  # of a form that has changed since
        said = self.chat.ask(question)
        with statement() as conn:
            interest_copies.keep_answer(conn, self.bank_id, key, said.model_dump(mode="json"), self.erasures)
        return said


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
