from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr

from isotherm.pipeline.errors import RejectedError
from isotherm.storage import servers
from isotherm.storage import settings as module
from isotherm.storage.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"ISOTHERM_{name}".upper(), raising=False)
    module.settings.cache_clear()
    yield
    module.settings.cache_clear()


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("30", timedelta(seconds=30)),
        ("0.5", timedelta(seconds=0.5)),
        ("PT2M", timedelta(minutes=2)),
        ("P1D", timedelta(days=1)),
        ("00:00:05", timedelta(seconds=5)),
    ],
)
def test_durations_are_seconds_or_iso(monkeypatch: pytest.MonkeyPatch, given: str, read: timedelta) -> None:
    monkeypatch.setenv("ISOTHERM_LEASE", given)
    assert module.settings().lease == read


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ISOTHERM_LEASE", "-1"),
        ("ISOTHERM_LEASE", "0"),
        ("ISOTHERM_LEASE", "nan"),
        ("ISOTHERM_LEASE", "inf"),
        ("ISOTHERM_LEASE", "1e400"),
        ("ISOTHERM_LEASE", "soon"),
        ("ISOTHERM_RETRY_FOR", "P200000000D"),
        ("ISOTHERM_POOL_SIZE", "hunter2"),
        ("ISOTHERM_POOL_SIZE", "0"),
        ("ISOTHERM_REDIS_PREFIX", "a:{b}"),
        ("ISOTHERM_TIER", '{"hot_capacity": hunter2'),
        ("ISOTHERM_POSTGRES_DSN", "host=h password=hunter2"),
        ("ISOTHERM_POSTGRES_DSN", "postgresql://u:hunter2@h/d?nonsense=1"),
        ("ISOTHERM_POSTGRES_DSN", ""),
        ("ISOTHERM_REDIS_URL", "http://:hunter2@h"),
        ("ISOTHERM_REDIS_URL", "redis://:hunter2@h:port"),
        ("ISOTHERM_REDIS_URL", "redis://h/0?password=hunter2"),
        ("ISOTHERM_CHAT_URL", "http://u:hunter2@h/v1"),
        ("ISOTHERM_EMBEDDER_URL", "https://hunter2@h/v1"),
        ("ISOTHERM_RERANKER_URL", "http://h/v1?key=hunter2"),
        ("ISOTHERM_S3_ENDPOINT", "hunter2"),
        ("ISOTHERM_HELIX_URL", "http://u:hunter2@h"),
        ("ISOTHERM_METRICS_PORT", "99999"),
        ("ISOTHERM_RUN_MONEY", "0.5"),
        ("ISOTHERM_RUN_TOKENS", "-1"),
        ("ISOTHERM_CHAT_INPUT_PRICE", "inf"),
    ],
)
def test_bad_values_name_the_variable_and_never_the_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(RejectedError) as caught:
        module.settings()
    assert str(caught.value) == f"settings: invalid {name}"
    assert caught.value.__cause__ is None


def test_every_bad_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTHERM_LEASE", "x")
    monkeypatch.setenv("ISOTHERM_TIER", '{"hot_capacity": -1}')
    with pytest.raises(RejectedError, match=r"ISOTHERM_LEASE, ISOTHERM_TIER\.HOT_CAPACITY$"):
        module.settings()


def test_policies_are_read_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTHERM_TIER", '{"hot_capacity": 0, "hot_ttl": null, "warm_ttl": "P1D"}')
    tier = module.settings().tier
    assert (tier.hot_capacity, tier.hot_ttl, tier.warm_ttl) == (0, None, timedelta(days=1))


def test_secrets_are_not_shown() -> None:
    chosen = Settings(
        postgres_dsn=SecretStr("postgresql://u:hunter2@h/d"),
        redis_url=SecretStr("redis://:hunter2@h"),
        broker_url=SecretStr("amqp://u:hunter2@h"),
    )
    assert "hunter2" not in f"{chosen!r} {chosen} {chosen.model_dump_json()}"


def test_settings_are_read_once_and_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    first = module.settings()
    monkeypatch.setenv("ISOTHERM_LEASE", "7")
    assert module.settings() is first
    with pytest.raises(ValueError, match="frozen"):
        first.lease = timedelta(1)  # type: ignore[misc]


@pytest.mark.parametrize("name", ["data_dir", "blob_dir", "helix_dir"])
@pytest.mark.parametrize("given", ["~/data", "data"])
def test_folders_are_absolute(monkeypatch: pytest.MonkeyPatch, name: str, given: str) -> None:
    monkeypatch.setenv(f"ISOTHERM_{name.upper()}", given)
    chosen = getattr(module.settings(), name)
    assert chosen.is_absolute()
    assert "~" not in str(chosen)


@pytest.mark.parametrize("name", ["DATA_DIR", "BLOB_DIR", "HELIX_DIR", "PG_BIN", "REDIS_BIN"])
@pytest.mark.parametrize("blank", ["", " "])
def test_a_blank_folder_is_not_the_working_directory(monkeypatch: pytest.MonkeyPatch, name: str, blank: str) -> None:
    monkeypatch.setenv(f"ISOTHERM_{name}", blank)
    with pytest.raises(RejectedError, match=f"ISOTHERM_{name}"):
        module.settings()


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("redis://h:6379/2", "redis://h:6379/2"),
        ("rediss://:p@h", "rediss://:p@h"),
        ("unix:///run/r.sock", "redis+socket:///run/r.sock"),
        ("unix:///run/r.sock?db=3", "redis+socket:///run/r.sock?virtual_host=3"),
        ("unix:///run/r.sock?socket_timeout=5&db=3", "redis+socket:///run/r.sock?socket_timeout=5&virtual_host=3"),
        ("unix://:p@/run/r.sock?db=1", "redis+socket://:p@/run/r.sock?virtual_host=1"),
    ],
)
def test_broker_and_results_read_the_redis_url_in_their_own_spelling(url: str, seen: str) -> None:
    chosen = Settings(redis_url=SecretStr(url))
    assert servers.redis_url(chosen) == url
    assert servers.result_url(chosen) == servers.broker_url(chosen) == seen


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("amqp://u:p@h//", "amqp://u:p@h//"),
        ("amqps://u:p@h:5671/v", "amqps://u:p@h:5671/v"),
        ("amqp://u:p@a:5672//;amqp://u:p@b:5672//", "amqp://u:p@a:5672//;amqp://u:p@b:5672//"),
        ("unix://:p@/run/r.sock?db=1", "redis+socket://:p@/run/r.sock?virtual_host=1"),
    ],
)
def test_broker_of_its_own_is_given_to_celery_in_its_spelling(url: str, seen: str) -> None:
    assert servers.broker_url(Settings(broker_url=SecretStr(url))) == seen


@pytest.mark.parametrize(
    "url", ["rabbitmq://u:hunter2@h", "h", "", "amqp://u:hunter2@h;nothing://h", "amqp://u:hunter2@h:5x", "amqp://h:0"]
)
def test_broker_that_is_none_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="broker_url") as refusal:
        Settings(broker_url=SecretStr(url))
    assert "hunter2" not in str(refusal.value)


def test_broker_of_its_own_leaves_results_in_redis() -> None:
    chosen = Settings(redis_url=SecretStr("redis://h"), broker_url=SecretStr("amqp://b"))
    assert (servers.broker_url(chosen), servers.result_url(chosen)) == ("amqp://b", "redis://h")


def test_embedded_servers_are_needed_where_no_address_is_set(tmp_path: Path) -> None:
    dsn, url = SecretStr("postgresql://h/d"), SecretStr("redis://h")
    assert servers.needs_embedded(Settings(data_dir=tmp_path))
    assert servers.needs_embedded(Settings(data_dir=tmp_path, postgres_dsn=dsn))
    assert not servers.needs_embedded(Settings(postgres_dsn=dsn, redis_url=url))


def test_check_lists_every_server_that_is_away_without_its_secrets() -> None:
    faults = servers.check(
        Settings(
            postgres_dsn=SecretStr("postgresql://u:hunter2@127.0.0.1:1/d"),
            redis_url=SecretStr("redis://:hunter2@127.0.0.1:1"),
        )
    )
    assert [fault.lasting for fault in faults] == [False, False]
    assert ["PostgreSQL" in faults[0].text, "Redis" in faults[1].text] == [True, True]
    assert not any("hunter2" in fault.text for fault in faults)


def test_money_for_a_run_needs_both_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTHERM_RUN_MONEY", "0.5")
    monkeypatch.setenv("ISOTHERM_CHAT_INPUT_PRICE", "0")
    with pytest.raises(RejectedError, match="ISOTHERM_RUN_MONEY"):
        module.settings()
    monkeypatch.setenv("ISOTHERM_CHAT_OUTPUT_PRICE", "10")
    module.settings.cache_clear()
    assert module.settings().run_money == 0.5
