"""Overload: programs that write five times as fast as the workers embed, then more workers, until nothing is left to do.

    python tests/faults/overload.py --seconds 300

The workers' capacity is that of one process whose embedder takes a fixed time for each text. Exit code 0 when answers stayed
under three times their idle median, the memory of every process stopped growing, the age of the oldest work was seen, and
everything that was acknowledged is there in the end.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import redis  # noqa: E402
import structlog  # noqa: E402
from harness import Process, Processes, wait_until  # noqa: E402
from hash_embedder import HashEmbedder  # noqa: E402

from isotherm import storage  # noqa: E402
from isotherm.pipeline.identity import Namespace  # noqa: E402
from isotherm.storage import settings  # noqa: E402
from isotherm.storage.embedded import Embedded  # noqa: E402
from isotherm.storage.models import factory  # noqa: E402
from isotherm.storage.postgres import operations  # noqa: E402
from isotherm.storage.postgres.migrate import migrate  # noqa: E402
from isotherm.storage.postgres.pool import connection, fetch_all  # noqa: E402
from isotherm.tasks import producers  # noqa: E402
from isotherm.tasks.app import app  # noqa: E402

TIMES = 5
PROGRAMS = 4
_IDLE_CALLS = 100
_IDLE_PAUSE_S = 0.05
# Growth of a process from the first half of the load to the second that is noise.
_GROWTH, _GROWTH_BYTES = 1.15, 24 << 20
_SETTINGS = {"ISOTHERM_EMBEDDER": "none", "ISOTHERM_LOG_JSON": "true", "ISOTHERM_RECONCILE_TICK": "600"}


@dataclass
class Watch:
    """Samples of a second each: resident bytes by process, Redis' own bytes, depth and age of the work."""

    processes: list[Process]
    client: redis.Redis
    over: threading.Event = field(default_factory=threading.Event)
    resident: list[dict[int, int]] = field(default_factory=list)
    broker: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    oldest_s: list[float] = field(default_factory=list)

    def run(self) -> None:
        while not self.over.wait(1.0):
            pids = [pid for p in self.processes for pid in (p.pid, *p.children())]
            self.resident.append({pid: _resident(pid) for pid in (*pids, os.getpid())})
            self.broker.append(int(self.client.info("memory")["used_memory"]))
            with connection() as conn:
                llm = [b for b in operations.backlog(conn) if b.queue == "llm"]
            self.depth.append(llm[0].steps if llm else 0)
            self.oldest_s.append(llm[0].oldest_s if llm else 0.0)

    def grown(self) -> dict[int, tuple[int, int]]:
        """Processes whose peak of the second half is more than noise above that of the first: both peaks in bytes.

        One that took the place of another, as after 10,000 tasks, is held against the largest of the first half.
        """
        middle = len(self.resident) // 2
        first, second = self.resident[:middle], self.resident[middle:]
        largest = max((size for sample in first for size in sample.values()), default=0)
        peaks = {pid: (_peak(first, pid) or largest, _peak(second, pid)) for pid in self.resident[-1]}
        return {pid: (a, b) for pid, (a, b) in peaks.items() if b > a * _GROWTH + _GROWTH_BYTES}


def _peak(samples: list[dict[int, int]], pid: int) -> int:
    return max((sample.get(pid, 0) for sample in samples), default=0)


def _resident(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass
class Programs:
    """Calls at a fixed rate, whoever is behind; each knows how long its answer took."""

    answers_s: list[float] = field(default_factory=list)
    late: int = 0

    def call(self, program: int, number: int) -> None:
        begun = time.perf_counter()
        producers.remember(Namespace.of(f"agent{program}", "s1"), f"note {number} on kelp", key=f"{program}/{number}")
        self.answers_s.append(time.perf_counter() - begun)

    def run(self, program: int, rate: float, seconds: float) -> None:
        begun = time.monotonic()
        for number in range(int(rate * seconds)):
            wait = begun + number / rate - time.monotonic()
            self.late += wait < -1.0
            time.sleep(max(0.0, wait))
            self.call(program, number)


def main() -> int:
    asked = _arguments()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    base = Path(tempfile.mkdtemp(prefix="isotherm-overload-"))
    base.chmod(0o755)
    servers = Embedded(base / "servers", system_dir=base / "system")
    processes = _processes(servers, base, asked.each)
    try:
        summary = _overload(processes, asked)
    finally:
        storage.close()
        processes.stop()
        servers.stop()
        shutil.rmtree(base, ignore_errors=True)
    sys.stdout.write(json.dumps(summary, indent=None if asked.json else 2) + "\n")
    return 0 if summary["well"] else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--each", type=float, default=0.1, help="seconds the embedder takes for a text")
    parser.add_argument("--drain", type=float, default=600.0, help="seconds until nothing may be left to do")
    parser.add_argument("--json", action="store_true", help="on one line")
    return parser.parse_args()


def _processes(servers: Embedded, base: Path, each_s: float) -> Processes:
    ends = servers.start()
    migrate(ends.postgres_dsn)
    path = os.pathsep.join(filter(None, [str(HERE / "apps"), str(HERE.parent), os.environ.get("PYTHONPATH")]))
    values = {
        **_SETTINGS,
        "ISOTHERM_POSTGRES_DSN": ends.postgres_dsn,
        "ISOTHERM_REDIS_URL": ends.redis_url,
        "ISOTHERM_DATA_DIR": str(base / "data"),
        "OVERLOAD_EACH_S": str(each_s),
        "PYTHONPATH": path,
    }
    os.environ.update(values)
    settings.settings.cache_clear()
    app.conf.update(broker_url=ends.broker_url, result_backend=ends.broker_url)
    factory.use_embedder(settings.settings(), HashEmbedder())
    logs = base / "logs"
    logs.mkdir()
    return Processes(values, logs)


def _overload(processes: Processes, asked: argparse.Namespace) -> dict[str, Any]:
    opened = storage.open()
    started = [
        processes.worker("embeds", queues="llm", concurrency=1, app="overloaded"),
        processes.worker("rest", queues="db,maintenance", concurrency=1, app="overloaded"),
        processes.beat(),
    ]
    idle = Programs()
    for number in range(_IDLE_CALLS):
        idle.call(PROGRAMS, number)
        time.sleep(_IDLE_PAUSE_S)
    wait_until(_nothing_left, 120, "the idle calls' work")
    watch, busy = Watch(started, redis.Redis.from_url(str(opened.settings.redis_url.get_secret_value()))), Programs()  # type: ignore[union-attr]
    rate = TIMES / asked.each
    with ThreadPoolExecutor(PROGRAMS + 1) as pool:
        watching = pool.submit(watch.run)
        running = [pool.submit(busy.run, n, rate / PROGRAMS, asked.seconds) for n in range(PROGRAMS)]
        for each in running:
            each.result()
        watch.over.set()
        watching.result()
    begun = time.monotonic()
    processes.worker("more", queues="llm", concurrency=2, app="overloaded", OVERLOAD_EACH_S="0")
    producers.flush()
    wait_until(_nothing_left, asked.drain, "the backlog to drain")
    return _summary(idle, busy, watch, time.monotonic() - begun)


def _nothing_left() -> bool:
    return not fetch_all("SELECT 1 FROM operations WHERE finished_at IS NULL LIMIT 1")


def _summary(idle: Programs, busy: Programs, watch: Watch, drained_s: float) -> dict[str, Any]:
    calls = len(idle.answers_s) + len(busy.answers_s)
    [(records, embedded)] = fetch_all(
        "SELECT count(*), count(*) FILTER (WHERE vector_state = 'done') FROM tier_records"
    )
    states = dict(fetch_all("SELECT state, count(*) FROM operations WHERE kind = 'tier.remember' GROUP BY state"))
    median, before = statistics.median(busy.answers_s), statistics.median(idle.answers_s)
    grown = watch.grown()
    peak_depth, message = max(watch.depth), max(watch.broker) - watch.broker[0]
    found: dict[str, Any] = {
        "calls": calls,
        "records": records,
        "embedded": embedded,
        "states": states,
        "idle_median_ms": round(before * 1e3, 2),
        "busy_median_ms": round(median * 1e3, 2),
        "busy_p99_ms": round(statistics.quantiles(busy.answers_s, n=100)[98] * 1e3, 2),
        "ratio": round(median / before, 2),
        "calls_late": busy.late,
        "peak_depth": peak_depth,
        "oldest_s_at_the_end": round(watch.oldest_s[-1], 1),
        "peak_resident_mb": sorted(round(_peak(watch.resident, pid) / 2**20) for pid in watch.resident[-1]),
        "grown_mb": {str(pid): [round(a / 2**20), round(b / 2**20)] for pid, (a, b) in grown.items()},
        "broker_bytes_for_each_waiting_step": round(message / max(1, peak_depth)),
        "drained_s": round(drained_s, 1),
    }
    whole = records == embedded == calls and set(states) == {"done"}
    found["well"] = whole and found["ratio"] < 3 and not grown and watch.oldest_s[-1] > 1.0
    return found


if __name__ == "__main__":
    raise SystemExit(main())
