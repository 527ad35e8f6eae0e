"""What the figures were measured on."""

from __future__ import annotations

import os
import platform
import statistics
import time
from pathlib import Path

import psycopg
import redis

_PROBES = 60


def facts(dsn: str, client: redis.Redis, folder: Path) -> dict[str, str]:
    """Machine, versions and the cost of one durable write, by name."""
    with psycopg.connect(dsn) as conn:
        row = conn.execute("SELECT current_setting('server_version'), current_setting('shared_buffers')").fetchone()
    assert row is not None  # noqa: S101 - a SELECT without FROM answers with one row
    server = client.info("server")
    brand = "Valkey" if "valkey_version" in server else "Redis"
    return {
        "CPU": cpu(),
        "cores": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.1f} GiB",
        "system": platform.platform(),
        "Python": platform.python_version(),
        "PostgreSQL": f"{row[0]}, shared_buffers {row[1]}, fsync on",
        brand: str(server.get("valkey_version") or server.get("redis_version")),
        "write of 8 KiB + fsync": f"{fsync_ms(folder):.2f} ms (median of {_PROBES})",
    }


def cpu() -> str:
    """The processor's name as the system gives it."""
    known = Path("/proc/cpuinfo")
    lines = known.read_text(encoding="utf-8").splitlines() if known.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def fsync_ms(folder: Path) -> float:
    """Milliseconds of one 8 KiB write that reached the disk."""
    path, taken = folder / "fsync-probe", []
    with path.open("wb", buffering=0) as out:
        for _ in range(_PROBES):
            begun = time.perf_counter()
            out.write(b"x" * 8192)
            os.fsync(out.fileno())
            taken.append(time.perf_counter() - begun)
    path.unlink()
    return statistics.median(taken) * 1000


def load() -> str:
    """Load averages of 1, 5 and 15 minutes."""
    return ", ".join(f"{value:.2f}" for value in os.getloadavg())
