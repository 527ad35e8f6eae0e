"""Benches of writing: `remember` against a bare `send_task`, and what a worker makes of it against no-op tasks."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import cycle
from typing import Any

from arena import Arena, open_steps, wait_until
from corpus import chat_text
from floors import Inserts, Noop
from measure import Line, alternate, repeated, timed

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import NewRecord
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import app, producers

_BATCH = 100
_BATCHES = (100, 500, 1_000)


class _Texts:
    """Texts that never repeat."""

    def __init__(self) -> None:
        self._next = 0

    def one(self) -> str:
        self._next += 1
        return chat_text(self._next)

    def records(self, count: int, prefix: str = "r") -> list[NewRecord]:
        now = datetime.now(UTC)
        return [
            NewRecord(f"{prefix}{self._next + 1}", self.one(), now + timedelta(microseconds=n), "user")
            for n in range(count)
        ]


def remember(ground: Arena, *, quick: bool) -> list[Line]:
    """One durable call against one bare message; a hundred records in a call against one; no worker listens."""
    calls, batches, rounds = (60, 3, 3) if quick else (300, 20, 5)
    texts, namespace = _Texts(), Namespace.of("bench-writer", "s1")
    with ground.fresh(), ground.bare() as conn:
        noop = Noop(ground)

        def bare() -> list[float]:
            ground.empty_queues(noop.queue)
            return repeated(noop.send, calls)

        def single() -> list[float]:
            """Calls with a pause behind each, in which what follows the commit is done."""
            ground.empty_queues("db")
            return [_paused(lambda: producers.remember(namespace, texts.one(), role="user")) for _ in range(calls)]

        def sustained() -> list[float]:
            """Calls without a pause, and what follows the last of them."""
            ground.empty_queues("db")
            begun = time.perf_counter()
            for _ in range(calls):
                producers.remember(namespace, texts.one(), role="user")
            producers.flush()
            return [(time.perf_counter() - begun) / calls] * calls

        def batched() -> list[float]:
            ground.empty_queues("db")
            prepared = [texts.records(_BATCH) for _ in range(batches)]
            begun = time.perf_counter()
            while prepared:
                producers.remember_records(namespace, prepared.pop())
            producers.flush()
            return [(time.perf_counter() - begun) / batches] * batches

        bare(), single(), sustained(), batched()  # warm
        sizes = f"{rounds} rounds of {calls} calls, about 120 characters each, no worker"
        one = alternate(bare, single, rounds)
        steady = alternate(bare, sustained, rounds)
        many = alternate(bare, batched, rounds)
        raw = against_inserts(ground, Inserts(conn), [namespace], "remember", "records", 3 * rounds)
    per = [(f.rate, o.rate * _BATCH) for f, o in zip(many.floor, many.ours, strict=True)]
    ratios = [mine / base for base, mine in per]
    return [
        one.line("remember", "durable remember / bare send_task", "rate", gate=0.4, note=sizes),
        one.line("remember", "the same, p95", "p95"),
        steady.line("remember", "the same without a pause, messages out", "rate", gate=0.4, note=sizes),
        Line(
            "remember",
            f"records in calls of {_BATCH} / bare send_task",
            ours=sorted(mine for _, mine in per)[rounds // 2],
            floor=sorted(base for base, _ in per)[rounds // 2],
            unit="1/s",
            better="higher",
            gate=3.0,
            spread=(min(ratios), max(ratios)),
            note=f"{rounds} rounds of {batches} calls; records per second, messages out",
        ),
        *raw,
    ]


def against_inserts(
    ground: Arena, inserts: Inserts, namespaces: Sequence[Namespace], bench: str, name: str, rounds: int
) -> list[Line]:
    """Batches remembered against raw multi-row INSERT of finished rows, in statements of the same size on both sides.

    Args: namespaces: whose turn it is in order, a call each.
    """
    return [_against_inserts(ground, inserts, namespaces, bench, name, rounds, size) for size in _BATCHES]


def _against_inserts(
    ground: Arena, inserts: Inserts, namespaces: Sequence[Namespace], bench: str, name: str, rounds: int, size: int
) -> Line:
    texts, calls, turns = _Texts(), max(3, 2_000 // size), cycle(namespaces)

    def floor() -> list[float]:
        prepared = [[texts.one() for _ in range(size)] for _ in range(calls)]
        begun = time.perf_counter()
        while prepared:
            inserts.insert(prepared.pop())
        return [(time.perf_counter() - begun) / calls] * calls

    def ours() -> list[float]:
        ground.empty_queues("db")
        prepared = [texts.records(size, f"b{size}-") for _ in range(calls)]
        begun = time.perf_counter()
        while prepared:
            producers.remember_records(next(turns), prepared.pop())
        producers.flush()
        return [(time.perf_counter() - begun) / calls] * calls

    floor(), ours()  # warm
    note = f"{rounds} rounds of {calls} calls, messages out; the same table, rows and indexes, without operations and steps"
    compared = alternate(floor, ours, rounds)
    title = f"{name} in calls of {size:,} / multi-row INSERT of {size:,}"
    return compared.line(bench, title, "rate", per=size, gate=0.5, note=note)


def noop(ground: Arena, *, quick: bool) -> list[Line]:
    """Steps through a worker against tasks that do nothing, both on two processes."""
    tasks, trips, rounds = (100, 12, 2) if quick else (600, 60, 5)
    texts, namespace = _Texts(), Namespace.of("bench-worker", "s1")
    with ground.fresh():
        floor = Noop(ground)
        producers.remember(namespace, texts.one())
        with ground.worker("noop_app", floor.queue) as bare, ground.worker("isotherm.tasks", "db") as ours:
            wait_until(lambda: open_steps() == 0, 30, "the first step")
            drained = alternate(
                lambda: _drain(floor.app, floor.queue, bare, tasks, floor.send, floor.idle),
                lambda: _drain(app, "db", ours, tasks, lambda: _remember(namespace, texts), lambda: open_steps() == 0),
                rounds,
            )
            flowing = alternate(
                lambda: _flow(tasks, floor.send, floor.idle),
                lambda: _flow(tasks, lambda: _remember(namespace, texts), lambda: open_steps() == 0),
                rounds,
            )
            trip = alternate(
                lambda: repeated(floor.round_trip, trips),
                lambda: repeated(lambda: _until_done(namespace, texts), trips),
                rounds,
            )
    sizes = f"{rounds} rounds of {tasks}, prefork -c 2"
    return [
        drained.line("noop", "drain of indexing steps / of no-op tasks", "rate", note=f"{sizes}; queued beforehand"),
        flowing.line(
            "noop", "remember to indexed / no-op sent to done", "rate", note=f"{sizes}; sent one by one meanwhile"
        ),
        trip.line("noop", "one remember to done / no-op with result", "p50", note=f"{rounds} rounds of {trips}"),
        trip.line("noop", "the same, p95", "p95"),
    ]


def _paused(call: Callable[[], object]) -> float:
    seconds = timed(call)
    producers.flush()
    return seconds


def _remember(namespace: Namespace, texts: _Texts) -> None:
    producers.remember(namespace, texts.one())


def _drain(
    application: Any,  # noqa: ANN401 - celery ships no types
    queue: str,
    node: str,
    count: int,
    send: Callable[[], None],
    done: Callable[[], bool],
) -> list[float]:
    """Queue everything while the worker does not listen, then let it; seconds per message."""
    application.control.cancel_consumer(queue, destination=[node], reply=True, timeout=5)
    for _ in range(count):
        send()
    begun = time.perf_counter()
    application.control.add_consumer(queue, destination=[node])
    wait_until(done, 120, "the queue to be empty")
    return [(time.perf_counter() - begun) / count] * count


def _flow(count: int, send: Callable[[], None], done: Callable[[], bool]) -> list[float]:
    begun = time.perf_counter()
    for _ in range(count):
        send()
    wait_until(done, 120, "the work to end")
    return [(time.perf_counter() - begun) / count] * count


def _until_done(namespace: Namespace, texts: _Texts) -> None:
    operation = producers.remember(namespace, texts.one()).operation_id
    sql = "SELECT finished_at IS NOT NULL FROM operations WHERE id = %(id)s"
    wait_until(lambda: bool(fetch_all(sql, {"id": operation})[0][0]), 30, "an operation", every=0.001)
