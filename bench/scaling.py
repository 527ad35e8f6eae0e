"""Benches of size: passes, moves and writes at 10,000 to 1,000,000 records, in one namespace and in 1,000."""

from __future__ import annotations

import gc
import resource
import statistics
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from arena import Arena
from filling import fill, made
from floors import Bare, Inserts, SpecLoop, Updates
from measure import Line, alternate, quantile, timed
from moving import one_pass
from writing import against_inserts

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.storage.postgres import tier_passes, tier_plan
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.pool import connection, fetch_all

_SPREAD = 1_000
_MOVED = 2_000
_LOOPED = 20
_HOT, _WARM = 3, 2


@dataclass(frozen=True, slots=True)
class _Measured:
    """Seconds at one size."""

    all_hot: float
    settled: float
    spread: float
    moved: float


def scale(ground: Arena, *, quick: bool, large: bool) -> list[Line]:
    """All stages run in this process, by the tasks a worker would run. Args: large: 1,000,000 records too."""
    sizes = (2_000, 10_000) if quick else (10_000, 100_000, 1_000_000) if large else (10_000, 100_000)
    lines: list[Line] = []
    measured = {}
    for size in sizes:
        found, of_size = _at(ground, size, rounds=2 if quick else 5)
        measured[size] = found
        lines += of_size
    small, most = sizes[0], sizes[-1]
    for name, before, after in (
        ("nothing due, all hot", measured[small].all_hot, measured[most].all_hot),
        ("nothing due, most of it cold", measured[small].settled, measured[most].settled),
        ("per moved record", measured[small].moved, measured[most].moved),
    ):
        lines.append(Line("scale", f"{name}, {most:,} / {small:,} records", after * 1000, "ms", "lower",
                          floor=before * 1000, gate=2.0, note="flat in the number of records"))  # fmt: skip
    return lines


def _at(ground: Arena, size: int, rounds: int) -> tuple[_Measured, list[Line]]:
    with ground.fresh(), ground.bare() as conn:
        hot, settled = made("hot", 1), made("settled", 1)
        fill(conn, hot, size, hot=size, warm=size)
        fill(conn, settled, size, hot=50, warm=550)
        ground.tidy("tier_records", "tier_depth")
        resident = _resident()
        roomy = Policy(hot_capacity=2 * size)
        all_hot = _quiet(hot[0], roomy, rounds * 5)
        quiet = _quiet(settled[0], Policy(), rounds * 5)
        moved, of_moves = _moved(ground, conn, hot[0], size, rounds)
        lines = [
            _ms(f"{size:,} in one namespace: nothing due, all hot", all_hot, gate=0.05),
            _ms(f"{size:,} in one namespace: nothing due, 50 hot, 500 warm, the rest cold", quiet, gate=0.05),
            of_moves,
            *against_inserts(
                ground,
                Inserts(conn, filled=True),
                Namespace.of("bench-hot", "s0"),
                "scale",
                f"{size:,} in one namespace: remember",
                rounds,
            ),
            *_looped(conn, hot[0], size),
        ]
        grown = _resident() - resident
    with ground.fresh(), ground.bare() as conn:
        many = made("many", _SPREAD)
        fill(conn, many, size, hot=50, warm=550)
        ground.tidy("tier_records", "tier_depth", "namespaces")
        spread = _quiet(many[7], Policy(), rounds * 5)
        conn.execute("UPDATE namespaces SET due_at = now() WHERE id % 100 = 0")
        due = _due(rounds * 10)
    lines += [
        _ms(f"{size:,} in {_SPREAD:,} namespaces: nothing due in one of them", spread, gate=0.05),
        _ms(f"{size:,} in {_SPREAD:,} namespaces: the due ones found", due),
        Line("scale", f"{size:,} records: memory grown by passes, moves and writes", grown / 2**20, "MiB", "lower",
             note="resident set of the process that ran them"),
    ]  # fmt: skip
    return _Measured(all_hot, quiet, spread, moved), lines


def _ms(name: str, seconds: float, gate: float | None = None) -> Line:
    limit = None if gate is None else gate * 1000
    return Line("scale", name, seconds * 1000, "ms", "lower", floor=limit, gate=None if gate is None else 1.0,
                note="" if gate is None else f"floor: the limit of {limit:.0f} ms; median of passes, asked for, planned and settled")  # fmt: skip


def _quiet(place: Place, policy: Policy, count: int) -> float:
    """Median seconds of a pass that moves nothing."""
    one_pass(place.namespace_id, policy)
    taken = [timed(lambda: one_pass(place.namespace_id, policy)) for _ in range(count)]
    _expect_moves(place, 0)
    return quantile(taken, 0.5)


def _expect_moves(place: Place, count: int) -> None:
    """A figure of passes that did something else than they were measured for must not be shown."""
    found = int(
        fetch_all("SELECT count(*) FROM tier_moves WHERE namespace_id = %(ns)s", {"ns": place.namespace_id})[0][0]
    )
    if found != count:
        raise RuntimeError(f"{found} records moved, not {count}")


def _moved(ground: Arena, conn: Bare, place: Place, size: int, rounds: int) -> tuple[float, Line]:
    """So many records from hot to warm, against a bare UPDATE of as many; others each round, as in a life of moves."""
    count = min(_MOVED, size // (2 * rounds + 2))
    updates, left = Updates(conn), [size]

    def floor() -> list[float]:
        left[0] -= count
        sql = "SELECT key FROM tier_records WHERE namespace_id = %s AND tier = 3 ORDER BY value_log, last_access_at LIMIT %s"
        keys = [int(row[0]) for row in conn.execute(sql, (place.namespace_id, count)).fetchall()]
        return [updates.shift(keys, _HOT, _WARM, Policy().batch_size) / count] * count

    def ours() -> list[float]:
        left[0] -= count
        policy = Policy(hot_capacity=left[0], warm_capacity=None, hot_ttl=None, warm_ttl=None, demote_idle=None)
        ground.empty_queues("db", "llm")
        return [timed(lambda: one_pass(place.namespace_id, policy)) / count] * count

    compared = alternate(floor, ours, rounds)
    _expect_moves(place, rounds * count)
    note = f"{rounds} passes of {count:,} moves in batches of {Policy().batch_size}, plan and report included"
    line = compared.line(
        "scale", f"{size:,} in one namespace: per moved record / bare UPDATE", "p50", gate=5.0, note=note
    )
    return statistics.median(f.p50 for f in compared.ours), line


def _looped(conn: Bare, place: Place, size: int) -> list[Line]:
    """The specification's own loop over the same records: three counts and one put for each."""
    loop = SpecLoop(conn)
    loop.load(place.namespace_id)
    seconds = loop.run(_LOOPED)
    begun = time.perf_counter()
    with connection() as planning:
        tier_plan.snapshot(planning, place.namespace_id, Policy(hot_capacity=2 * size), datetime.now(UTC))
    snapshot = time.perf_counter() - begun
    return [
        Line("scale", f"{size:,} in one namespace: the specification's loop, a pass with nothing due", seconds * size, "s",
             "lower", note=f"three counts and one put per record, {_LOOPED} records measured, times {size:,}"),
        Line("scale", f"{size:,} in one namespace: one snapshot / that loop", snapshot, "s", "lower", floor=seconds * size),
    ]  # fmt: skip


def _due(count: int) -> float:
    def ask() -> None:
        with connection() as conn:
            tier_passes.due(conn)

    return quantile([timed(ask) for _ in range(count)], 0.5)


def _resident() -> float:
    """Bytes of this process that are in memory now; its peak where the system does not tell."""
    gc.collect()
    status = Path("/proc/self/status")
    if status.exists():
        found = next(line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmRSS:"))
        return float(found.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
