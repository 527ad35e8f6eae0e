"""Passwords and keys of the settings stay where they are used: in no log, event, answer, backup, table or list of processes."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from commanding import answer
from harness import conversation, ingest, wait_until
from verbs import call, verbs

from isotherm import storage
from isotherm.pipeline.identity import Namespace
from isotherm.storage import settings as settings_module
from isotherm.storage.postgres import programs
from isotherm.storage.postgres.pool import fetch_all
from isotherm.storage.settings import Settings
from isotherm.tasks import producers
from isotherm.tasks.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

    import redis
    from harness import Processes

    from isotherm.storage.embedded import Endpoints

USER, CANARY = "keeper", "xyzzyplugh"
NOWHERE = "127.0.0.1:1"
SECRETS = sorted(name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation))
_BUG = 70
_KINDS = {
    "ISOTHERM_CHAT": "openai",
    "ISOTHERM_CHAT_MODEL": "m",
    "ISOTHERM_EMBEDDER": "openai",
    "ISOTHERM_EMBEDDER_MODEL": "m",
    "ISOTHERM_EMBEDDER_DIMENSION": "8",
    "ISOTHERM_RERANKER": "http",
    "ISOTHERM_RERANKER_MODEL": "m",
    "ISOTHERM_BLOB_STORE": "s3",
    "ISOTHERM_S3_BUCKET": "b",
}


def canary(name: str) -> str:
    """The secret of a setting: one that nobody writes by chance."""
    return f"{CANARY}-{name.replace('_', '-')}"


def guarded(url: str, name: str, user: str = USER) -> str:
    """A server's URL with a user and the canary of its setting."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"{user}:{canary(name)}@{place}").geturl()


def filled(**servers: str) -> dict[str, str]:
    """Settings with every secret there is; models, rerankers and blobs are away."""
    keys = {name: canary(name) for name in SECRETS if name not in servers}
    places = dict.fromkeys(("chat_url", "embedder_url", "reranker_url", "s3_endpoint"), f"http://{NOWHERE}/v1")
    return _KINDS | {f"ISOTHERM_{name}".upper(): value for name, value in (keys | places | servers).items()}


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Settings full of secrets whose servers nobody can reach."""
    values = filled(
        postgres_dsn=guarded(f"postgresql://{NOWHERE}/d?sslpassword={canary('postgres_dsn')}", "postgres_dsn"),
        redis_url=guarded(f"redis://{NOWHERE}/0", "redis_url"),
        broker_url=guarded(f"redis://{NOWHERE}/1", "broker_url"),
    )
    for name, value in {**values, "ISOTHERM_DATA_DIR": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    settings_module.settings.cache_clear()
    yield values
    storage.close()
    settings_module.settings.cache_clear()


def test_settings_hold_a_canary_for_every_secret_and_never_show_one(away: dict[str, str]) -> None:
    chosen = settings_module.settings()
    for name in SECRETS:
        assert canary(name) in getattr(chosen, name).get_secret_value(), name
    assert CANARY in str(away)
    assert CANARY not in f"{chosen!r} {chosen} {chosen.model_dump()} {chosen.model_dump_json()}"


@pytest.mark.parametrize("argument", ["x", "note.txt", "0198c000-0000-7000-8000-000000000000", "1"])
def test_no_verb_tells_a_secret_when_its_servers_are_away(away: dict[str, str], argument: str, tmp_path: Path) -> None:
    assert away
    (tmp_path / "note.txt").write_text("kelp")
    for verb in verbs():
        for switch in [[], *([s] for s in verb.switches if s in {"--json", "--deep"})]:
            ended = call("--verbose", *verb.line(*switch, argument=argument))
            assert CANARY not in ended.said, (str(verb), ended.said[-1_000:])
            assert ended.code != _BUG, (str(verb), ended.said[-1_000:])


@pytest.mark.parametrize(
    "form", ["redis://{}@one:1/0;redis://{}@two:1/0", "redis+socket://{}@/run/redis.sock?virtual_host=0"]
)
def test_a_worker_tells_of_its_broker_without_passwords(form: str) -> None:
    url = form.replace("{}", f"{USER}:{canary('broker_url')}")
    connection = app.connection_for_read(url)
    told = {name: value for name, value in connection.info().items() if name != "password"}  # as a worker tells it
    assert "**" in str(told)
    assert CANARY not in f"{told} {connection!r} {connection.as_uri()}"
    again = connection.clone()
    assert url.endswith(";".join(again.alt or [again.hostname])), "it connects by the whole URL"


def test_programs_of_postgresql_get_secrets_by_no_argument(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = {name: programs.program(settings_module.settings(), name, 1) for name in ("pg_dump", "pg_restore")}
    (tmp_path / "bin").mkdir()
    for name, path in real.items():
        script = tmp_path / "bin" / name
        script.write_text(f'#!/bin/sh\necho "$0 $*" >> {tmp_path}/arguments\nexec {path} "$@"\n')
        script.chmod(0o755)
    dsn = guarded(environment["ISOTHERM_POSTGRES_DSN"], "postgres_dsn", "isotherm")
    dsn += f"?sslpassword={canary('postgres_dsn')}"
    monkeypatch.setenv("ISOTHERM_POSTGRES_DSN", dsn)
    monkeypatch.setenv("ISOTHERM_PG_BIN", str(tmp_path / "bin"))
    settings_module.settings.cache_clear()
    kept = tmp_path / "kept"
    answer("remember", "kelp")
    told = [call("--verbose", "backup", str(kept))]
    storage.close()
    told += [call("--verbose", "restore-db", str(kept), "--replace"), call("recall", "kelp")]
    assert [each.code for each in told] == [0, 0, 0], told
    arguments = (tmp_path / "arguments").read_text()
    assert "pg_dump --format" in arguments
    assert "pg_restore --schema" in arguments
    assert CANARY not in arguments + str(told)
    assert [file for file in kept.rglob("*") if file.is_file() and CANARY.encode() in file.read_bytes()] == []


class Heard:
    """Every command that anybody sends to Redis, as its monitor tells it."""

    def __init__(self, client: redis.Redis) -> None:
        self.commands: list[str] = []
        self._client = client
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        assert self._begun.wait(10)

    def _listen(self) -> None:
        # Not by the client's own monitor, which cannot read what comes by a Unix socket.
        connection = self._client.connection_pool.get_connection()
        connection.send_command("MONITOR")
        while not self.commands or "over-and-out" not in self.commands[-1]:
            self.commands.append(str(connection.read_response(timeout=60)))
            self._begun.set()
        connection.disconnect()

    def stop(self) -> str:
        self._client.echo("over-and-out")
        self._thread.join(10)
        assert not self._thread.is_alive()
        return "\n".join(self.commands)


@pytest.fixture
def locked(
    dsn: str, endpoints: Endpoints, client: redis.Redis, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, str]]:
    """Real servers with passwords, and models that are away."""
    client.execute_command("ACL", "SETUSER", USER, "on", f">{canary('redis_url')}", "~*", "&*", "+@all")
    values = filled(
        postgres_dsn=guarded(dsn, "postgres_dsn", "isotherm"),
        redis_url=guarded(endpoints.redis_url, "redis_url"),
        broker_url=guarded(endpoints.broker_url, "redis_url"),
    )
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings_module.settings.cache_clear()
    yield environment | values
    producers.flush()
    storage.close()
    client.acl_deluser(USER)
    settings_module.settings.cache_clear()


def _command_lines() -> str:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended meanwhile
            continue
    return "\n".join(found)


def _tables() -> str:
    names = fetch_all("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
    return "\n".join(str(fetch_all(f"SELECT t::text FROM {name} AS t")) for (name,) in names)  # type: ignore[arg-type]


def test_worker_with_passwords_tells_none_while_its_servers_fail(
    locked: dict[str, str], processes: Processes, client: redis.Redis
) -> None:
    processes.environment.update(locked)
    heard = Heard(client)
    worker = processes.worker("guarded", concurrency=1)
    beat = processes.beat()
    operations = [str(i) for i in ingest(conversation(20))]
    producers.ingest_session(Namespace.of("atlas", "s1"), conversation(4))
    waiting = "SELECT count(DISTINCT stage) FROM operation_steps WHERE last_error IS NOT NULL"
    wait_until(lambda: fetch_all(waiting)[0][0] >= 2, 60, "models to be missed")
    with app.connection_for_read(locked["ISOTHERM_BROKER_URL"]) as connection:
        inspect = app.control.inspect(timeout=3.0, connection=connection)
        told = json.dumps([inspect.stats(), inspect.conf(with_defaults=True), inspect.registered()], default=str)
    assert "guarded@" in told
    shown = [
        call("--verbose", *line) for line in (["doctor", "--json"], ["ops", "list"], ["ops", "show", operations[0]])
    ]
    lines = _command_lines()
    assert "guarded@" in lines
    # Nobody may in any more: workers, beat and the command are turned away by a server that is there.
    client.execute_command("ACL", "SETUSER", USER, "resetpass", ">other")
    client.client_kill_filter(user=USER)
    wait_until(lambda: "WRONGPASS" in worker.output() or "Cannot connect" in worker.output(), 60, "a refusal")
    shown.append(call("--verbose", "doctor", "--json"))
    assert "cannot be reached" in shown[-1].said
    tables, commands = _tables(), heard.stop()
    assert "tier.index" in commands
    for what, text in {"log": worker.output(), "beat": beat.output(), "inspect": told, "shown": str(shown), "ps": lines,
                       "tables": tables, "redis": commands}.items():  # fmt: skip
        place = text.find(CANARY)
        assert place < 0, (what, text[max(place - 300, 0) : place + 100])
