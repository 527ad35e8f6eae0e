"""What the rules need from models, as Protocols; the adapters are in `isotherm.storage.models`.

Every port raises by remedy: TransientError when the same call may succeed later (a rate limit, an overloaded server, a
lost connection, a time-out), RejectedError when it never can (a refused request, an answer that stays invalid).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

AnswerT = TypeVar("AnswerT", bound=BaseModel)


class Embedder(Protocol):
    """Turns texts into vectors. Vectors of two models are never compared, so each is stored with `model`."""

    @property
    def model(self) -> str:
        """The stamp stored beside each vector; another model, or another form of one, has another stamp."""
        ...

    @property
    def dimension(self) -> int:
        """Length of every vector."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts.

        Returns: shape (n, dimension), row i for text i, each of unit L2 norm; n may be 0.
        Raises: TransientError, RejectedError.
        """
        ...


@dataclass(frozen=True, slots=True)
class Question(Generic[AnswerT]):
    """What a chat model is asked, and the form its answer must have.

    Args: name: constant name of the kind of question, in metrics and messages, such as `s1_merge`; system: what to do;
        user: the data, stored text delimited in it; answer: the model's answer is parsed as this, an object at its top;
        max_output_tokens: the answer is cut off there; keep_whole_items: whether the whole items of a list that was cut
        off may serve, for answers where a missing item loses nothing.
    """

    name: str
    system: str
    user: str
    answer: type[AnswerT]
    max_output_tokens: int = 2048
    keep_whole_items: bool = False


class ChatModel(Protocol):
    """Answers questions with validated values."""

    def ask(self, question: Question[AnswerT]) -> AnswerT:
        """Ask, and validate the answer.

        Raises: TransientError; RejectedError, also when the answer stays invalid after one repair.
        """
        ...


class Redactor(Protocol):
    """Takes secrets out of a text."""

    def redact(self, text: str) -> str:
        """Return the text with each secret replaced; redacting twice changes nothing."""
        ...


@dataclass(frozen=True, slots=True)
class Keyphrase:
    """Words of a text that say what it is about; a higher score says it more, and scores of one text only compare."""

    text: str
    score: float


class KeyphraseExtractor(Protocol):
    """Finds what a text is about, without asking a chat model."""

    def extract(self, text: str, limit: int) -> list[Keyphrase]:
        """Return at most `limit` keyphrases, best first, scores in (0, 1]; none for a text without words."""
        ...


class TextReranker(Protocol):
    """Reads a query and texts together, and says which texts answer it best: slower than an index, and better."""

    def rerank(self, query: str, texts: Sequence[str]) -> list[tuple[int, float]]:
        """Rate texts.

        Returns: (index of the text, relevance), best first, each index at most once; texts may be left out.
        Raises: TransientError, RejectedError.
        """
        ...
