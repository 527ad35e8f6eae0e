"""The files that run the product on servers, held to the product. No container engine is needed."""

import importlib.util
import re
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from isotherm.pipeline.stages import Queue
from isotherm.storage.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
DOCKERFILE_TEXT = (ROOT / "Dockerfile").read_text(encoding="utf-8")
IGNORED = set((ROOT / ".dockerignore").read_text(encoding="utf-8").split("\n"))
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE_TEXT)["services"]
VERSION: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

# Variables that compose itself reads, to build the product's settings and to set up the servers.
COMPOSE_ONLY = {"ISOTHERM_DB_PASSWORD", "ISOTHERM_REDIS_PASSWORD", "ISOTHERM_FLOWER_BASIC_AUTH"}

OURS = {name: service for name, service in SERVICES.items() if "build" in service}
STAYING = {name: service for name, service in SERVICES.items() if service["restart"] != "no"}
WORKERS = {name: service for name, service in OURS.items() if "worker" in service["command"]}

_EXACT_TAG = re.compile(r"[^:@\s]+:[\w.-]*\d+\.\d+\.\d+[\w.-]*")
_REQUIRED_VARIABLE = re.compile(r"\$\{ISOTHERM_\w+:\?[^}]+\}")
_SECRET_NAME = re.compile(r"PASSW|AUTH$|SECRET|TOKEN|API_KEY")
_URL_PASSWORD = re.compile(r"://[^\s:/@$]*:(\$\{[^}]*\}|[^\s@]*)@")


def queues_of(service: dict[str, Any]) -> list[str]:
    command = service["command"]
    return list(command[command.index("-Q") + 1].split(","))


def instructions(name: str) -> list[str]:
    """Arguments of every such instruction of the Dockerfile, with continued lines joined."""
    lines = re.sub(r"^\s*#.*\n", "", DOCKERFILE_TEXT, flags=re.MULTILINE).replace("\\\n", " ").splitlines()
    return [line.split(None, 1)[1] for line in lines if line.startswith(f"{name} ")]


def seconds(duration: str) -> timedelta:
    assert duration.endswith("s"), duration
    return timedelta(seconds=int(duration[:-1]))


def test_every_queue_is_consumed_by_exactly_one_worker_service() -> None:
    consumed = [queue for service in WORKERS.values() for queue in queues_of(service)]
    assert sorted(consumed) == sorted(Queue)


def test_there_is_one_beat_one_flower_and_one_migration() -> None:
    roles = [role for s in OURS.values() for role in ("beat", "flower", "migrate") if role in s["command"]]
    assert sorted(roles) == ["beat", "flower", "migrate"]


def test_celery_commands_name_a_package_that_exists() -> None:
    targets = {s["command"][s["command"].index("-A") + 1] for s in OURS.values() if s["command"][0] == "celery"}
    assert targets == {"isotherm.tasks"}
    assert all(importlib.util.find_spec(target) for target in targets)


@pytest.mark.parametrize("name", SERVICES)
def test_images_have_an_exact_tag(name: str) -> None:
    assert _EXACT_TAG.fullmatch(SERVICES[name]["image"])


def test_our_image_is_tagged_with_the_version_of_the_package() -> None:
    assert {service["image"] for service in OURS.values()} == {f"isotherm:{VERSION}"}


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_only(name: str) -> None:
    assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in SERVICES[name].get("ports", []))


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_is_root_or_can_become_it(name: str) -> None:
    service = SERVICES[name]
    assert service["user"].split(":")[0] not in {"", "0", "root"}
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["read_only"] is True


@pytest.mark.parametrize("name", SERVICES)
def test_logs_cannot_fill_the_disk(name: str) -> None:
    logging = SERVICES[name]["logging"]
    assert logging["driver"] == "json-file"
    assert {"max-size", "max-file"} <= set(logging["options"])


@pytest.mark.parametrize("name", STAYING)
def test_services_that_stay_have_a_healthcheck(name: str) -> None:
    assert STAYING[name]["healthcheck"]["test"]


@pytest.mark.parametrize("name", WORKERS)
def test_workers_ask_themselves_whether_they_live(name: str) -> None:
    (queue,) = queues_of(WORKERS[name])
    assert f"--hostname={queue}@%h" in WORKERS[name]["command"]
    assert WORKERS[name]["healthcheck"]["test"][1].endswith(f"-d {queue}@$$HOSTNAME")


@pytest.mark.parametrize("name", [*WORKERS, "beat"])
def test_runners_wait_for_the_schema_and_the_broker(name: str) -> None:
    conditions = {other: needs["condition"] for other, needs in SERVICES[name]["depends_on"].items()}
    assert conditions == {"migrate": "service_completed_successfully", "redis": "service_healthy"}


def test_migration_waits_for_its_server_and_runs_once() -> None:
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["migrate"]["restart"] == "no"


@pytest.mark.parametrize("name", WORKERS)
def test_workers_are_given_longer_than_their_soft_shutdown(name: str) -> None:
    soft: timedelta = Settings.model_fields["soft_shutdown"].default
    assert seconds(WORKERS[name]["stop_grace_period"]) >= soft + timedelta(seconds=10)


def test_termination_begins_the_soft_shutdown() -> None:
    assert any("REMAP_SIGTERM=SIGQUIT" in values.split() for values in instructions("ENV"))
    assert instructions("STOPSIGNAL") == ["SIGTERM"]


def test_redis_neither_evicts_nor_forgets() -> None:
    command = " ".join(SERVICES["redis"]["command"])
    assert "--maxmemory-policy noeviction" in command
    assert "--appendonly yes" in command
    assert "redis:/data" in SERVICES["redis"]["volumes"]


def test_variables_are_settings_of_the_product_or_known_to_compose() -> None:
    used = set(re.findall(r"\bISOTHERM_[A-Z0-9_]+", COMPOSE_TEXT + DOCKERFILE_TEXT))
    fields = {f"ISOTHERM_{name.upper()}" for name in Settings.model_fields}
    assert used - fields == COMPOSE_ONLY


@pytest.mark.parametrize("name", OURS)
def test_processes_of_the_product_know_both_servers(name: str) -> None:
    assert {"ISOTHERM_POSTGRES_DSN", "ISOTHERM_REDIS_URL"} <= set(OURS[name]["environment"])


@pytest.mark.parametrize("name", SERVICES)
def test_secrets_come_from_outside_and_are_asked_for(name: str) -> None:
    for variable, value in SERVICES[name].get("environment", {}).items():
        passwords = _URL_PASSWORD.findall(value)
        if _SECRET_NAME.search(variable):
            passwords.append(value)
        assert all(_REQUIRED_VARIABLE.fullmatch(password) for password in passwords), variable


@pytest.mark.parametrize("name", SERVICES)
def test_commands_hold_no_secret(name: str) -> None:
    command = " ".join(SERVICES[name].get("command", []))
    assert "ISOTHERM_" not in command
    assert not re.search(r"basic.auth|--requirepass|--password", command)
    assert re.findall(r"requirepass (\S+)", command) in ([], ["$$REDISCLI_AUTH"])


def test_dockerfile_holds_no_secret() -> None:
    values = " ".join(instructions("ENV") + instructions("ARG"))
    assert not _SECRET_NAME.search(values)
    assert not _URL_PASSWORD.search(DOCKERFILE_TEXT)


def test_image_starts_from_one_exact_base() -> None:
    bases = {line.split()[0] for line in instructions("FROM")}
    assert len(bases) == 1
    assert _EXACT_TAG.fullmatch(bases.pop())


def test_image_has_the_user_that_compose_names() -> None:
    last_stage_user = instructions("USER")[-1]
    assert {service["user"] for service in OURS.values()} == {last_stage_user} == {"10001:10001"}


def test_dependencies_are_installed_by_hash_and_never_built() -> None:
    (locked,) = [line for line in instructions("RUN") if "requirements.lock" in line]
    assert "--require-hashes" in locked
    assert "--only-binary :all:" in locked


def test_build_context_holds_no_secrets_caches_or_tests() -> None:
    assert {".git", ".venv", ".env", "*.env", "tests", "**/__pycache__"} <= IGNORED
    assert {".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis"} <= IGNORED


def test_build_context_holds_everything_that_is_copied_or_installed() -> None:
    needed = {"requirements.lock", "pyproject.toml", "README.md", "LICENSE", "pipeline", "storage", "tasks"}
    assert not needed & IGNORED
