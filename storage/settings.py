"""Settings: typed, read once from the environment (prefix ISOTHERM_), and passed down."""

from __future__ import annotations

from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlsplit

import psycopg
import redis
from psycopg.conninfo import conninfo_to_dict
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings.exceptions import SettingsError

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.quotas import Quota

_CENTURY = timedelta(days=36_525)


def _seconds(value: object) -> object:
    """A plain number in the environment means seconds."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise ValueError("must be longer than zero")
    if value > _CENTURY:  # a moment so far from now may be beyond the calendar
        raise ValueError("must be at most 36525 days")
    return value


def _demand_scheme(value: SecretStr, *schemes: str) -> None:
    if value.get_secret_value().partition("://")[0] not in schemes:
        raise ValueError(f"must start with {' or '.join(f'{scheme}://' for scheme in schemes)}")


def _demand_port(url: str) -> None:
    try:
        port = urlsplit(url).port
    except ValueError:
        port = 0
    if port == 0:
        raise ValueError("the port of a URL is no number from 1 to 65535")


Duration = Annotated[timedelta, BeforeValidator(_seconds), AfterValidator(_positive)]

_DEFAULT_DATA = Path("~/.local/share/isotherm")


class Settings(BaseSettings):
    """Where the servers are, how patient the work is, and the policy of the tiers.

    Durations are read as seconds or ISO 8601 ("PT30S"); sizes are bytes.
    """

    model_config = SettingsConfigDict(env_prefix="ISOTHERM_", frozen=True, extra="ignore", hide_input_in_errors=True)

    data_dir: Path = Field(_DEFAULT_DATA, description="Folder of the embedded servers, their logs and process files")
    postgres_dsn: SecretStr | None = Field(None, description="PostgreSQL to use; unset: the embedded one")
    redis_url: SecretStr | None = Field(None, description="Redis to use as broker and cache; unset: the embedded one")
    broker_url: SecretStr | None = Field(
        None, description="Broker, when it is not the Redis of redis_url: amqp://... is RabbitMQ"
    )
    pg_bin: Path | None = Field(None, description="Folder of PostgreSQL binaries for the embedded server")
    redis_bin: Path | None = Field(None, description="redis-server or valkey-server for the embedded server")

    redis_prefix: str = Field("isotherm", pattern=r"^[A-Za-z0-9_.-]{1,64}$", description="Start of every key in Redis")

    pool_size: int = Field(2, ge=1, le=100, description="Connections to PostgreSQL per process")
    rls: bool = Field(default=False, description="Row-level security as a second lock; `isotherm migrate` switches it")
    statement_timeout: Duration = Field(timedelta(seconds=60), description="Longest single statement")

    lease: Duration = Field(timedelta(seconds=30), description="How long a claimed step is its runner's without a sign")
    max_attempts: int = Field(5, ge=1, le=100, description="Crashes and errors after which a step is dead")
    retry_for: Duration = Field(timedelta(hours=24), description="How long passing failures are waited out")
    retry_base: Duration = Field(timedelta(seconds=2), description="First wait after a passing failure; doubles")
    retry_cap: Duration = Field(timedelta(minutes=5), description="Longest wait between two tries")
    outbox_grace: Duration = Field(
        timedelta(seconds=10), description="How long a producer has to publish its own message before the relay does"
    )
    nudge_after: Duration = Field(
        timedelta(seconds=30), description="When a step nobody claimed is announced again; doubles up to 10 minutes"
    )
    tick: Duration = Field(timedelta(seconds=2), description="Pace of relay and sweeper")
    touch_tick: Duration = Field(timedelta(seconds=10), description="Pace of applying counted accesses")
    reconcile_tick: Duration = Field(timedelta(seconds=60), description="Pace of looking for namespaces that are due")
    quota_tick: Duration = Field(timedelta(minutes=5), description="Pace of comparing tenants with their quotas")
    drift_tick: Duration = Field(
        timedelta(seconds=60), description="Pace of looking for graphs that are due for a check"
    )
    drift_every: Duration = Field(
        timedelta(minutes=15), description="How often the graph of a namespace is compared with its truth, and repaired"
    )
    keep_steps: Duration = Field(timedelta(days=7), description="How long steps stay after their operation ended")
    keep_operations: Duration = Field(timedelta(days=30), description="How long ended operations and their keys stay")
    keep_refused: Duration = Field(
        timedelta(days=30), description="How long lines that ingest and import refused stay in data_dir"
    )
    task_time_limit: Duration = Field(timedelta(minutes=10), description="Hard limit of one task")
    soft_shutdown: Duration = Field(timedelta(seconds=10), description="What a stopping worker lets its tasks finish")

    max_content: int = Field(1_048_576, ge=1, description="Largest text of a record, in bytes of UTF-8")
    max_metadata: int = Field(65_536, ge=2, description="Largest metadata of a record, in bytes of JSON")
    tail_ttl: Duration = Field(timedelta(seconds=60), description="How long a hot tail stays in Redis unused")
    max_pinned: int | None = Field(1_000, ge=0, description="Most pinned records of one namespace; unset: any number")
    cold_min_bytes: int = Field(1024, ge=1, description="Below this a record goes cold whole: its text is its summary")
    cold_summary_chars: int = Field(512, ge=16, description="Longest summary of a cold record, in characters")
    cold_summarizer: Literal["auto", "truncate"] = Field(
        "auto", description="Who summarizes: the chat model where there is one, or the beginning of the text always"
    )
    cold_refused: Literal["wait", "truncate"] = Field(
        "wait", description="When a model's summary is worth nothing: the record waits, warm, or its beginning serves"
    )
    hold_base: Duration = Field(
        timedelta(minutes=10), description="How long a record that a pass could not move is left alone; doubles"
    )
    hold_cap: Duration = Field(timedelta(days=1), description="Longest time such a record is left alone")

    blob_store: Literal["folder", "s3"] = Field("folder", description="Where large bodies of cold records are kept")
    blob_min_bytes: int = Field(16_384, ge=1, description="From this size on a compressed body goes to the blob store")
    blob_dir: Path | None = Field(None, description="Folder of the blob store; unset: blobs below data_dir")
    s3_bucket: str | None = Field(None, description="Bucket of the blob store; it must exist")
    s3_prefix: str | None = Field(None, description="Folder within the bucket")
    s3_endpoint: str | None = Field(None, description="Base URL of an S3-compatible server; unset: Amazon's")
    s3_region: str = Field("us-east-1", description="Region of the bucket")
    s3_access_key: SecretStr | None = Field(None, description="Access key; unset: what the machine's role provides")
    s3_secret_key: SecretStr | None = Field(None, description="Secret key")

    embedder: Literal["auto", "offline", "openai", "none"] = Field(
        "auto", description="Sentence vectors: the offline model (auto: where it is installed), an HTTP server, or none"
    )
    embedder_url: str | None = Field(None, description="Base URL of an OpenAI-compatible embedding server")
    embedder_key: SecretStr | None = Field(None, description="Key of the embedding server")
    embedder_model: str | None = Field(None, description="Name of the embedding model on the server")
    embedder_dimension: int | None = Field(None, ge=1, le=4000, description="Length of the server's vectors")
    minilm_model: Path | None = Field(None, description="ONNX file to use instead of the offline model's own")
    minilm_tokenizer: Path | None = Field(None, description="Tokenizer file that goes with it")
    chat: Literal["rules", "openai"] = Field(
        "rules", description="Who extracts and judges: built-in rules, or a server"
    )
    chat_url: str | None = Field(None, description="Base URL of an OpenAI-compatible chat server")
    chat_key: SecretStr | None = Field(None, description="Key of the chat server")
    chat_model: str | None = Field(None, description="Name of the chat model on the server")
    chat_parallel: int = Field(
        4, ge=1, le=64, description="Questions that one task asks the chat server at a time; with a budget it is one"
    )

    chat_input_price: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Price of a million tokens that a chat model reads, any currency"
    )
    chat_output_price: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Price of a million tokens that it writes"
    )
    run_tokens: int | None = Field(
        None, ge=0, description="Most tokens that the chat model may use for one run over a session; unset: any number"
    )
    run_money: float | None = Field(
        None, ge=0, allow_inf_nan=False, description="Most that it may cost for one run, by the two prices"
    )

    reranker: Literal["none", "http"] = Field(
        "none", description="Who orders the best of a search or recall once more: nobody, or a server"
    )
    reranker_url: str | None = Field(None, description="Base URL of a server with a rerank endpoint")
    reranker_key: SecretStr | None = Field(None, description="Key of the reranker's server")
    reranker_model: str | None = Field(None, description="Name of the reranker on the server")

    graph: Literal["postgres", "helix"] = Field(
        "postgres", description="Where edges are walked and objects searched: PostgreSQL, or HelixDB (extra `helix`)"
    )
    helix_url: str | None = Field(None, description="Base URL of a HelixDB server; unset: embedded in the graph worker")
    helix_key: SecretStr | None = Field(None, description="Key of the HelixDB server")
    helix_dir: Path | None = Field(None, description="Folder of the embedded HelixDB; unset: helix below data_dir")
    redactor: Literal["none", "secrets"] = Field("none", description="What takes secrets out before anything is stored")

    tier: Policy = Field(Policy(), description="Capacities and ages of the tiers, as JSON")
    quotas: dict[str, Quota] = Field(
        {},
        description='Quotas by tenant, as JSON: {"acme": {"records": 100000, "bytes": null}}; "*": every other tenant',
    )
    metrics_port: int | None = Field(None, ge=1, le=65535, description="Loopback port of the worker's Prometheus page")
    log_json: bool = Field(default=True, description="Logs as JSON lines; off: for people")

    @field_validator("postgres_dsn")
    @classmethod
    def _is_libpq(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            _demand_scheme(value, "postgresql", "postgres")
            try:
                conninfo_to_dict(value.get_secret_value())
            except psycopg.Error:
                raise ValueError("libpq cannot read it") from None  # its message would quote a part of it
        return value

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None:
            _demand_scheme(value, "redis", "rediss", "unix")
            try:
                redis.ConnectionPool.from_url(value.get_secret_value())  # parses, and connects to nothing
            except (ValueError, TypeError):
                raise ValueError("not a URL of Redis") from None
            parts = urlsplit(value.get_secret_value())
            if parts.scheme != "unix" and {"username", "password"} & dict(parse_qsl(parts.query)).keys():
                raise ValueError("Celery reads user and password before the host only")
        return value

    @field_validator("broker_url")
    @classmethod
    def _is_a_broker(cls, value: SecretStr | None) -> SecretStr | None:
        for one in [] if value is None else value.get_secret_value().split(";"):
            _demand_scheme(SecretStr(one), "amqp", "amqps", "pyamqp", "redis", "rediss", "redis+socket", "unix")
            _demand_port(one)
        return value

    @field_validator("s3_endpoint", "embedder_url", "chat_url", "reranker_url", "helix_url")
    @classmethod
    def _holds_no_secret(cls, value: str | None) -> str | None:
        """These are shown as they are, and logged by clients; what opens a server has a setting of its own."""
        if value is not None:
            parts = urlsplit(value)
            if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
                raise ValueError("must be a URL of http or https without a user")
            if parts.query or parts.fragment:
                raise ValueError("must be a base, without a query")
        return value

    @field_validator("run_money")
    @classmethod
    def _has_prices(cls, value: float | None, info: ValidationInfo) -> float | None:
        if value is not None and None in {info.data.get("chat_input_price"), info.data.get("chat_output_price")}:
            raise ValueError("needs both prices")
        return value

    @field_validator("data_dir", "blob_dir", "helix_dir", "pg_bin", "redis_bin", mode="before")
    @classmethod
    def _has_a_name(cls, value: object) -> object:
        """A blank path is the folder that the process happens to run in, another one for each worker."""
        if isinstance(value, str | Path) and (value == Path() or not str(value).strip()):
            raise ValueError("must not be blank")
        return value

    @field_validator("data_dir", "blob_dir", "helix_dir")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else value.expanduser().absolute()


@lru_cache(maxsize=1)
def settings() -> Settings:
    """The settings of this process.

    Raises: RejectedError naming the variables that are wrong, never their values.
    """
    try:
        return Settings()
    except ValidationError as error:
        found = sorted({f"ISOTHERM_{'.'.join(map(str, e['loc']))}".upper() for e in error.errors(include_input=False)})
        raise RejectedError(f"settings: invalid {', '.join(found)}") from None
    except SettingsError as error:  # JSON that cannot be read; the message names the field
        found = [f"ISOTHERM_{name}".upper() for name in Settings.model_fields if f'"{name}"' in str(error)]
        raise RejectedError(f"settings: invalid {', '.join(found) or 'JSON'}") from None
