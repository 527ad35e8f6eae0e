"""Benches of migration passes: one with nothing to do at several sizes, and what a moved record costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

from arena import Arena, run_steps
from corpus import chat_text
from filling import fill, made
from floors import Bare, Updates, select_one
from measure import Line, alternate, figures, quantile, repeated, timed

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord
from isotherm.storage.postgres import namespaces
from isotherm.tasks import passes, producers

_MOVED = 2_000
_PASSES = 5
_HOT, _WARM = 3, 2

# What a namespace looks like after its passes under the default policy: texts this short go cold whole.
_SETTLE = """
UPDATE tier_records SET tier = 1, summary = content, content = NULL
WHERE namespace_id = %(namespace)s AND key NOT IN (
    SELECT key FROM tier_records WHERE namespace_id = %(namespace)s ORDER BY created_at DESC LIMIT %(above)s)"""
_SETTLE_WARM = """
UPDATE tier_records SET tier = 2 WHERE namespace_id = %(namespace)s AND tier = 3 AND key NOT IN (
    SELECT key FROM tier_records WHERE namespace_id = %(namespace)s ORDER BY created_at DESC LIMIT %(hot)s)"""


def reconcile(ground: Arena, *, quick: bool) -> list[Line]:
    """All stages run in this process, by the tasks a worker would run."""
    sizes = (500, 2_000) if quick else (1_000, 10_000, 100_000)
    rounds = 2 if quick else 5
    default, roomy = Policy(), None
    lines: list[Line] = []
    for size in sizes:
        with ground.fresh(), ground.bare() as conn:
            namespace_id = _filled(ground, size)
            roomy = Policy(hot_capacity=2 * size, warm_capacity=2 * size)
            all_hot = _passes(namespace_id, roomy, rounds * 5)
            moved = _moved(ground, conn, namespace_id, size, rounds)
            _settle(ground, conn, namespace_id, default)
            settled = _passes(namespace_id, default, rounds * 5)
            bare = figures(select_one(conn, 200)).p50
        lines += [
            Line("reconcile", f"{size:,} records: nothing due, default policy", settled * 1000, "ms", "lower",
                 note=f"median of {rounds * 5} passes; 50 hot, 500 warm, the rest cold; SELECT 1 takes {bare * 1000:.2f} ms"),
            Line("reconcile", f"{size:,} records: nothing due, all hot under a larger capacity", all_hot * 1000, "ms",
                 "lower", note="hot_capacity is twice the records"),
            *moved,
        ]  # fmt: skip
    return [*lines, *_flat(ground, sizes[0], sizes[-1], rounds)]


def _flat(ground: Arena, small: int, large: int, rounds: int) -> list[Line]:
    """Passes with nothing due over a small and a large namespace of one database.

    In turns, since minutes between them would tell more about the machine than about the sizes.
    """
    lines = []
    with ground.fresh(), ground.bare() as conn:
        for name, roomy in (("default policy", False), ("all hot", True)):
            policy = Policy(hot_capacity=2 * large, warm_capacity=2 * large) if roomy else Policy()
            places = {size: made(f"flat-{name}-{size}", 1) for size in (small, large)}
            for size, place in places.items():
                fill(conn, place, size, hot=size if roomy else 50, warm=size if roomy else 550)
            ground.tidy("tier_records", "tier_depth", "namespaces")
            compared = alternate(
                partial(_passed, places[small][0].namespace_id, policy),
                partial(_passed, places[large][0].namespace_id, policy),
                2 * rounds,
            )
            lines.append(
                compared.line("reconcile", f"nothing due, {large:,} / {small:,} records, {name}", "p50", gate=1.5,
                              note=f"{2 * rounds} rounds of {_PASSES} passes each, in turns in one database")
            )  # fmt: skip
    return lines


def _passed(namespace_id: int, policy: Policy) -> list[float]:
    return repeated(lambda: one_pass(namespace_id, policy), _PASSES)


def _filled(ground: Arena, size: int) -> int:
    """A namespace with so many hot records of the last hour; returns its id."""
    namespace, now = Namespace.of("bench-mover", "s1"), datetime.now(UTC)
    for at in range(0, size, 1_000):
        records = [
            NewRecord(id=f"r{n}", content=chat_text(n), created_at=now - timedelta(milliseconds=10 * (size - n)), role="user")
            for n in range(at, min(size, at + 1_000))
        ]  # fmt: skip
        producers.remember_records(namespace, records)
    run_steps()
    ground.tidy("tier_records", "tier_postings")
    return namespaces.resolve(namespace).namespace_id


def _settle(ground: Arena, conn: Bare, namespace_id: int, policy: Policy) -> None:
    hot, warm = policy.hot_capacity or 0, policy.warm_capacity or 0
    values = {"namespace": namespace_id, "hot": hot, "above": hot + warm}
    conn.execute("UPDATE tier_records SET tier = 3, moved_at = NULL, moved_from = NULL WHERE tier = 2")
    conn.execute(_SETTLE, values)
    conn.execute(_SETTLE_WARM, values)
    ground.tidy("tier_records")


def _passes(namespace_id: int, policy: Policy, count: int) -> float:
    """Median seconds of a pass that moves nothing: asked for, planned, settled."""
    one_pass(namespace_id, policy)
    taken = [timed(lambda: one_pass(namespace_id, policy)) for _ in range(count)]
    return quantile(taken, 0.5)


def one_pass(namespace_id: int, policy: Policy) -> None:
    """A whole pass, with the work of its batches and its report."""
    passes.request(namespace_id, policy)
    run_steps()


def _moved(ground: Arena, conn: Bare, namespace_id: int, size: int, rounds: int) -> list[Line]:
    """2,000 records (half of them at the smallest size) from hot to warm, against a bare UPDATE of as many rows."""
    count = min(_MOVED, size // 2)
    policy = Policy(hot_capacity=size - count, warm_capacity=None)
    keys = [
        int(row[0])
        for row in conn.execute(
            "SELECT key FROM tier_records WHERE namespace_id = %s ORDER BY value_log, last_access_at LIMIT %s",
            (namespace_id, count),
        ).fetchall()
    ]
    updates = Updates(conn)

    def reset() -> None:
        conn.execute("UPDATE tier_records SET tier = 3, moved_at = NULL, moved_from = NULL WHERE tier <> 3")
        ground.tidy("tier_records", "tier_moves", "operation_steps", "operations", "outbox")
        ground.empty_queues("db", "llm")

    def floor() -> list[float]:
        reset()
        return [updates.shift(keys, _HOT, _WARM, policy.batch_size) / count] * count

    def ours() -> list[float]:
        reset()
        return [timed(lambda: one_pass(namespace_id, policy)) / count] * count

    compared = alternate(floor, ours, rounds)
    cold = _archived(conn, ground, namespace_id, count)
    note = f"{rounds} passes of {count:,} moves hot to warm in batches of {policy.batch_size}, plan and report included"
    reset()
    return [
        compared.line("reconcile", f"{size:,} records: per moved record / bare UPDATE", "p50", note=note),
        Line("reconcile", f"{size:,} records: per record archived", cold * 1000, "ms", "lower",
             note=f"one pass of {count:,} moves warm to cold, short texts, words written again"),
    ]  # fmt: skip


def _archived(conn: Bare, ground: Arena, namespace_id: int, count: int) -> float:
    """Seconds per record of a pass that sends records to cold; they are brought back by hand."""
    conn.execute("UPDATE tier_records SET tier = 2, moved_at = NULL, moved_from = NULL")
    ground.tidy("tier_records")
    total = int(conn.execute("SELECT count(*) FROM tier_records").fetchone()[0])  # type: ignore[index]
    policy = Policy(hot_capacity=None, warm_capacity=total - count, promote_access=None)
    seconds = timed(lambda: one_pass(namespace_id, policy))
    conn.execute("UPDATE tier_records SET tier = 2, content = summary, summary = NULL WHERE tier = 1")
    return seconds / count
