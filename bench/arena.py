"""Where benches run: private servers in a temporary folder, a fresh database for each bench, and workers of their own."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import psycopg
import redis
import structlog
from psycopg import sql

from isotherm import storage
from isotherm.storage import settings as settings_module
from isotherm.storage.embedded import Embedded, Endpoints
from isotherm.storage.opened import Storage
from isotherm.storage.postgres.migrate import migrate
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import app
from isotherm.tasks.publish import TOGETHER, take_sent

_TEMPLATE = "bench_template"
_OPEN_STEPS = "SELECT count(*) FROM operation_steps WHERE state IN ('pending', 'running')"
_READY_STEPS = """
SELECT s.id, s.operation_id, o.trace_id, s.stage FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
WHERE s.state = 'pending' AND (cardinality(%(only)s::text[]) = 0 OR s.stage = ANY(%(only)s)) AND NOT EXISTS (
    SELECT 1 FROM operation_steps AS w WHERE w.operation_id = s.operation_id AND w.state IN ('pending', 'running')
      AND (w.stage = ANY(s.waits_for) OR w.stage || '/' || w.unit = ANY(s.waits_for)))
ORDER BY s.id LIMIT 1000"""


@dataclass(slots=True)
class Arena:
    """Running servers. `dsn` names the database of the present bench."""

    endpoints: Endpoints
    folder: Path
    client: redis.Redis
    dsn: str = ""
    _workers: int = field(default=0)

    @contextmanager
    def fresh(self) -> Iterator[Storage]:
        """A migrated database and an empty Redis, opened as a program opens them."""
        name = f"bench_{time.monotonic_ns()}"
        self._make(name)
        try:
            yield self._enter(name)
        finally:
            storage.close()
            self._drop(name)

    @contextmanager
    def several(self, names: Collection[str]) -> Iterator[Callable[[str], Storage]]:
        """Databases side by side. What is given turns this process to one of them, with an empty Redis."""
        for name in names:
            self._make(name)
        try:
            yield self._enter
        finally:
            storage.close()
            for name in names:
                self._drop(name)

    def _make(self, name: str) -> None:
        with psycopg.connect(self.endpoints.postgres_dsn, autocommit=True) as conn:
            make = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
            conn.execute(make.format(sql.Identifier(name), sql.Identifier(_TEMPLATE)))

    def _drop(self, name: str) -> None:
        with psycopg.connect(self.endpoints.postgres_dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def _enter(self, name: str) -> Storage:
        storage.close()
        self.dsn = self.database(name)
        self.client.flushall()
        while take_sent():
            pass  # outbox ids of the database before
        os.environ["ISOTHERM_POSTGRES_DSN"] = self.dsn
        settings_module.settings.cache_clear()
        return storage.open()

    def database(self, name: str) -> str:
        """The DSN of another database of the same server."""
        return self.endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{name}"

    @contextmanager
    def bare(self) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
        """A driver's connection without a pool; each statement commits by itself and is prepared at its second run."""
        with psycopg.connect(self.dsn, autocommit=True, prepare_threshold=1) as conn:
            yield conn

    def tidy(self, *tables: str) -> None:
        """VACUUM ANALYZE, as autovacuum does sooner or later, so that a round does not depend on when."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            for table in tables:
                conn.execute(sql.SQL("VACUUM (ANALYZE) {}").format(sql.Identifier(table)))

    def rewrite(self, *tables: str) -> None:
        """VACUUM FULL, so that sizes tell what is stored and not what was there before."""
        with psycopg.connect(self.dsn, autocommit=True) as conn:
            for table in tables:
                conn.execute(sql.SQL("VACUUM (FULL) {}").format(sql.Identifier(table)))

    def empty_queues(self, *queues: str) -> None:
        """Drop the messages that wait in the broker."""
        self.client.delete(*queues)

    @contextmanager
    def worker(self, application: str, queues: str, *, concurrency: int = 2) -> Iterator[str]:
        """A prefork worker in a process of its own; gives its node name."""
        self._workers += 1
        name = f"bench{self._workers}@localhost"
        log = self.folder / f"worker{self._workers}.log"
        command = ["-m", "celery", "-A", application, "worker", "-n", name, "-Q", queues, "-c", str(concurrency)]
        environment = {
            "OPENBLAS_NUM_THREADS": "1",  # as `isotherm up` and the image start workers
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "BENCH_BROKER": self.endpoints.broker_url,
        }
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
                cwd=self.folder,
            )
        try:
            wait_until(lambda: process.poll() is not None or b" ready." in log.read_bytes(), 40, "a worker")
            if process.poll() is not None:
                raise RuntimeError(f"the worker ended: {log.read_text(errors='replace')[-1500:]}")
            yield name
        finally:
            _end(process)


def wait_until(condition: Callable[[], bool], timeout: float, what: str, every: float = 0.01) -> None:
    """Wait for another process. Raises: TimeoutError."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:.0f} s for {what}")
        time.sleep(every)


def open_steps() -> int:
    """How many steps are not final."""
    return int(fetch_all(_OPEN_STEPS)[0][0])


def run_steps(*, only: Collection[str] = ()) -> int:
    """Run every ready step in this process, by the messages that a worker would be sent; returns how many there were.

    Args: only: stages to run, all of them when there are none.
    """
    app.loader.import_default_modules()
    count = 0
    while rows := fetch_all(_READY_STEPS, {"only": list(only)}):
        for stage, alike in groupby(rows, key=itemgetter(3)):
            jobs = [{"step_id": s, "operation_id": str(o), "trace_id": str(t)} for s, o, t, _ in alike]
            for first, *more in (jobs[at : at + TOGETHER] for at in range(0, len(jobs), TOGETHER)):
                app.tasks[stage]({**first, "more": more})
        count += len(rows)
    return count


@contextmanager
def reopened(**environment: str) -> Iterator[Storage]:
    """The present bench's storage under other settings, and at the end as it was before."""
    known = {name: os.environ.get(name) for name in environment}

    def under(values: Mapping[str, str | None]) -> Storage:
        storage.close()
        for name, value in values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        settings_module.settings.cache_clear()
        return storage.open()

    try:
        yield under(environment)
    finally:
        under(known)


@contextmanager
def arena() -> Iterator[Arena]:
    """Start the servers, and stop them and remove their folder at the end."""
    # The servers' user must be able to walk into it, and other users' processes find nothing inside.
    base = Path(tempfile.mkdtemp(prefix="isotherm-bench-"))
    base.chmod(0o755)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    servers = Embedded(base / "data", system_dir=base / "system")
    try:
        endpoints = servers.start()
        os.environ |= {"ISOTHERM_REDIS_URL": endpoints.redis_url, "ISOTHERM_DATA_DIR": str(base / "data")}
        client = redis.Redis.from_url(endpoints.redis_url)
        ground = Arena(endpoints, base, client)
        with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
            conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_TEMPLATE)))
        migrate(ground.database(_TEMPLATE))
        yield ground
    finally:
        servers.stop()
        shutil.rmtree(base, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
