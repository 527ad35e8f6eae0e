"""A soak: programs that use every producer, while servers and processes are hurt by a seeded plan; then everything is compared.

    python tests/faults/soak.py --faults 100 --operations 2000 --seed 7

With `--broker rabbitmq` messages go by a RabbitMQ of its own, which is hurt too; Redis keeps what it has besides.
The same seed makes the same calls and the same injuries in the same order; what meets what is up to the machine.
Exit code 0 when nothing was lost, doubled, stuck, adrift or left over.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import brokers  # noqa: E402
import structlog  # noqa: E402
from harness import Processes, all_final, outbox_is_empty  # noqa: E402
from model_server import Script, model_server  # noqa: E402
from rabbit_server import RabbitServer, free_ports, program  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402
from soak_calls import Caller  # noqa: E402
from soak_check import Verdict, check, leftovers  # noqa: E402
from soak_injuries import injure, possible  # noqa: E402
from soak_model import HurtModel  # noqa: E402
from soak_proxy import Proxy  # noqa: E402
from soak_world import Disk, World  # noqa: E402
from topic_judge import environment_of  # noqa: E402

from isotherm import storage  # noqa: E402
from isotherm.pipeline.brain.write_kinds import WriteKinds  # noqa: E402
from isotherm.storage import settings  # noqa: E402
from isotherm.storage.embedded import Embedded  # noqa: E402
from isotherm.storage.postgres.migrate import migrate  # noqa: E402
from isotherm.storage.postgres.pool import fetch_all  # noqa: E402
from isotherm.tasks import producers, ticks  # noqa: E402
from isotherm.tasks.app import app  # noqa: E402

CALLERS = 4
_CALM_S = 400.0
_STILL_S = 20.0
_TOLD_EVERY = 25
# What a model said in the middle of a reply that broke off is said so by the run; asked again, the model answers.
_PARTIAL = "SELECT id FROM operations WHERE state = 'partial' AND kind = 'session.ingest'"
# Kills without end must not end a step: that a poisonous one does end is another test's.
_SETTINGS = {
    "ISOTHERM_LEASE": "3", "ISOTHERM_TICK": "1", "ISOTHERM_TOUCH_TICK": "1", "ISOTHERM_RECONCILE_TICK": "3",
    "ISOTHERM_RETRY_BASE": "0.2", "ISOTHERM_RETRY_CAP": "2", "ISOTHERM_OUTBOX_GRACE": "2", "ISOTHERM_NUDGE_AFTER": "2",
    "ISOTHERM_SOFT_SHUTDOWN": "3", "ISOTHERM_MAX_ATTEMPTS": "100", "ISOTHERM_LOG_JSON": "true",
    "ISOTHERM_POOL_SIZE": "6", "ISOTHERM_STATEMENT_TIMEOUT": "5", "ISOTHERM_COLD_MIN_BYTES": "64",
    "ISOTHERM_BLOB_MIN_BYTES": "1024", "ISOTHERM_TIER": '{"hot_capacity": 20, "warm_capacity": 40, "cooldown": null}',
}  # fmt: skip


def main() -> int:
    asked = _arguments()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)  # servers go away all the time here
    base = Path(tempfile.mkdtemp(prefix="isotherm-soak-"))
    base.chmod(0o755)
    model = HurtModel(asked.seed)
    with model_server(reply=model) as script:
        world, begun = _world(base, model, None if asked.plain else script, asked.broker), time.monotonic()
        well = False
        try:
            summary = _soak(world, asked, begun)
            well = summary["well"]
        finally:
            _end(world, base, keep=asked.keep or not well)
    if asked.json:
        sys.stdout.write(json.dumps(summary) + "\n")
    else:
        _show(summary)
    return 0 if summary["well"] else 1


def _end(world: World, base: Path, *, keep: bool) -> None:
    storage.close()
    world.processes.stop()
    world.postgres.close()
    world.redis.close()
    if world.rabbit is not None and world.broker is not None:
        world.broker.close()
        world.rabbit.stop()
    world.servers.stop()
    if world.disk is not None:
        if keep:
            shutil.copytree(world.blobs, base / "blobs")
        world.disk.unmount()
    if keep:
        sys.stderr.write(f"kept: {base}\n")
    else:
        shutil.rmtree(base, ignore_errors=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=1_000)
    parser.add_argument("--operations", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument(
        "--plain", action="store_true", help="rules instead of models and no vectors: more calls in less time"
    )
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis", help="by which messages go")
    parser.add_argument("--callers", type=int, default=CALLERS, help="programs side by side")
    parser.add_argument("--pause", type=float, nargs=2, default=(0.1, 1.0), help="seconds between two faults")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave data and logs where they are, as after a fault")
    return parser.parse_args()


def _world(base: Path, model: HurtModel, script: Script | None, broker: str) -> World:
    servers = Embedded(base / "servers", system_dir=base / "system")
    ends = servers.start()
    migrate(ends.postgres_dsn)
    front, run, folder, logs = base / "front", servers.status()[0].socket.parent, base / "hooks", base / "logs"
    for made in (front, folder, logs):
        made.mkdir()
    disk = Disk.mounted(base / "disk")
    blobs = base / "disk" / "blobs"
    blobs.mkdir()
    postgres = Proxy(front / ".s.PGSQL.5432", run / ".s.PGSQL.5432")
    redis = Proxy(front / "redis.sock", servers.status()[1].socket)
    values = {
        **_SETTINGS,
        **({"ISOTHERM_EMBEDDER": "none"} if script is None else environment_of(script)),
        "PYTHONPATH": os.pathsep.join([str(HERE / "apps"), str(HERE / "apps" / "shifted"), *_path()]),
        "SOAK_FOLDER": str(folder),
        "SHIFTED_CLOCK": str(folder / "clock"),
        "ISOTHERM_POSTGRES_DSN": f"postgresql://isotherm@{quote(str(front), safe='')}/isotherm",
        "ISOTHERM_REDIS_URL": f"unix://{front / 'redis.sock'}?db=0",
        "ISOTHERM_DATA_DIR": str(base / "data"),
        "ISOTHERM_BLOB_DIR": str(blobs),
    }
    results = f"redis+socket://{front / 'redis.sock'}?virtual_host=0"
    rabbit, before = _rabbit(base / "rabbit") if broker == "rabbitmq" else (None, None)
    if rabbit is not None and before is not None:
        values["ISOTHERM_BROKER_URL"] = rabbit.url_at(before.port)
    os.environ.update(values)
    settings.settings.cache_clear()
    app.conf.update(result_backend=results)
    brokers.use_settings()
    asked = None if script is None else model
    return World(servers, Processes(values, logs), postgres, redis, blobs, folder, asked, disk, rabbit, before)


def _rabbit(folder: Path) -> tuple[RabbitServer, Proxy]:
    script = program()
    if script is None:
        raise SystemExit("there is no RabbitMQ here: install Debian's rabbitmq-server")
    server = RabbitServer(folder, script).start()
    [port] = free_ports(1)
    return server, Proxy(port, server.port)


def _path() -> list[str]:
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]


def _soak(world: World, asked: argparse.Namespace, begun: float) -> dict[str, Any]:
    storage.open()
    world.tend()
    over = threading.Event()
    _save_kinds()
    callers = [Caller(n, asked.seed, over) for n in range(asked.callers)]
    with ThreadPoolExecutor(asked.callers) as programs:
        running = [programs.submit(c.run, -(-asked.operations // asked.callers)) for c in callers]
        try:
            made = injure(world, asked.seed, asked.faults, tuple(asked.pause), lambda n: _tell(n, callers))
        finally:
            world.heal()
            over.set()
        while not all(each.done() for each in running):
            world.tend()
            time.sleep(0.2)
        for each in running:
            each.result()
    hurt_s = time.monotonic() - begun
    verdict, retried = _calm(world, callers)
    return {
        "well": bool(verdict), "seed": asked.seed, "broker": asked.broker, "faults": made.total(), "by_kind": dict(sorted(made.items())),
        "operations": sum(len(c.operations | c.gone) for c in callers), "calls_repeated": sum(c.repeats for c in callers),
        "messages_again": world.duplicates, "messages_moved": world.shuffled, "runs_retried": retried,
        "model_answers": dict(sorted(world.model.answered.items())) if world.model else {}, "left_out": sorted(possible(rabbit=world.rabbit is not None).keys() - made.keys()),
        "processes_started": world.started, "seconds": round(hurt_s, 1),
        "calm_seconds": round(time.monotonic() - begun - hurt_s, 1), **asdict(verdict),
    }  # fmt: skip


def _tell(faults: int, callers: list[Caller]) -> None:
    if faults % _TOLD_EVERY == 0:
        operations = sum(len(c.operations | c.gone) for c in callers)
        sys.stderr.write(f"{faults} faults, {operations} operations\n")


def _save_kinds() -> None:
    storage.open().brain.use_write_kinds(WriteKinds("finding", "fact", "memory"))


def _calm(world: World, callers: list[Caller]) -> tuple[Verdict, int]:
    """Wait until nothing is left to do, then compare. Returns how many runs a person had to start again, too."""
    deadline, retried = time.monotonic() + _CALM_S, 0
    while True:
        while not (all_final() and outbox_is_empty()) and time.monotonic() < deadline:
            world.tend()
            time.sleep(0.2)
        again = [operation_id for (operation_id,) in fetch_all(_PARTIAL)]
        if not again or time.monotonic() > deadline:
            break
        retried += len(again)
        for operation_id in again:
            producers.retry(operation_id)
    producers.flush()
    found = leftovers()
    _still(world)
    while ticks.collect()["objects"]:
        pass
    unsaid = world.model.unsaid if world.model else ()
    return check(callers, found, models=world.model is not None, unsaid=unsaid), retried


def _still(world: World) -> None:
    """End all processes once what beat asked for is done, so that what is compared does not move."""
    world.running["beat"].kill_all()
    deadline = time.monotonic() + _STILL_S
    while not (all_final() and outbox_is_empty()) and time.monotonic() < deadline:
        time.sleep(0.1)
    world.processes.stop()


def _show(summary: dict[str, Any]) -> None:
    table = Table("", "", title=f"Soak by {summary['broker']}, seed {summary['seed']}", title_justify="left")
    for name in (
        "operations",
        "faults",
        "calls_repeated",
        "messages_again",
        "messages_moved",
        "runs_retried",
        "processes_started",
        "seconds",
        "calm_seconds",
    ):
        table.add_row(name.replace("_", " "), str(summary[name]))
    for name, count in summary["by_kind"].items():
        table.add_row(f"  {name}", str(count))
    for name in ("lost", "doubled", "stuck", "drift", "residue"):
        table.add_row(name, f"[red]{len(summary[name])}[/red]" if summary[name] else "[green]0[/green]")
    console = Console()
    console.print(table)
    for name in ("lost", "doubled", "stuck", "drift", "residue"):
        for line in summary[name]:
            console.print(f"{name}: {line}", markup=False)


if __name__ == "__main__":
    raise SystemExit(main())
