"""Benches of migration passes: one with nothing to do at several sizes, and what a moved record costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from arena import Arena, reopened, run_steps
from corpus import chat_text
from filling import fill, made
from floors import Bare, select_one
from measure import Compared, Line, alternate, figures, quantile, repeated, timed
from tier_floors import Copies, in_batches

from isotherm.pipeline import stages, text
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord
from isotherm.storage.postgres import namespaces, tier_index
from isotherm.storage.postgres.namespaces import Place
from isotherm.storage.postgres.pool import connection
from isotherm.tasks import passes, producers, ticks

MOVED = 2_000
_PASSES = 5
_HOT, _WARM = 3, 2
_AGELESS: dict[str, Any] = {
    "hot_ttl": None, "warm_ttl": None, "demote_idle": None, "promote_access": None, "cooldown": None
}  # fmt: skip
_WEAKEST = """
UPDATE tier_records SET indexed = false WHERE key IN (
    SELECT key FROM tier_records WHERE namespace_id = %(namespace)s AND tier = 3 ORDER BY value_log, last_access_at LIMIT %(count)s)
RETURNING key"""

# What a namespace looks like after its passes under the default policy: texts this short go cold whole.
_SETTLE = """
UPDATE tier_records SET tier = 1, summary = content, content = NULL
WHERE namespace_id = %(namespace)s AND tier > 1 AND key NOT IN (
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


def lowered(namespace_id: int, hot: int) -> float:
    """Seconds of a pass that leaves so many hot."""
    policy = Policy(hot_capacity=hot, warm_capacity=None, **_AGELESS)
    return timed(lambda: one_pass(namespace_id, policy))


@contextmanager
def sweeping(hot: int) -> Iterator[Callable[[], None]]:
    """A sweep that finds the namespaces that are due, asks for their passes and makes them; so many stay hot in each."""
    policy = Policy(hot_capacity=hot, warm_capacity=None, **_AGELESS)
    with reopened(ISOTHERM_TIER=policy.model_dump_json()):

        def sweep() -> None:
            ticks.due()
            run_steps(only=[stages.PLAN])

        yield sweep


def sunk(namespace_id: int, warm: int) -> float:
    """Seconds of a pass that leaves so many warm, the others cold."""
    policy = Policy(hot_capacity=None, warm_capacity=warm, **_AGELESS)
    return timed(lambda: one_pass(namespace_id, policy))


def with_words(conn: Bare, place: Place, count: int, *, batch: int = 500) -> None:
    """The words of the records of a filled namespace that would move first, by the product's own statement."""
    rows = conn.execute(_WEAKEST, {"namespace": place.namespace_id, "count": count}).fetchall()
    for at in range(0, len(rows), batch):
        with connection() as writing:
            found = tier_index.unindexed(writing, [int(row[0]) for row in rows[at : at + batch]])
            tier_index.write_terms(writing, [(record, text.terms(record.text)) for record in found])


def _moved(ground: Arena, conn: Bare, namespace_id: int, size: int, rounds: int) -> list[Line]:
    """As many records each round from hot to warm, then these from warm to cold; against a bare UPDATE of as many rows."""
    count = min(MOVED, size // (rounds + 2))
    place_of, copies, used = Policy().batch_size, Copies(conn), [0]
    taken: dict[str, list[float]] = {name: [] for name in ("bare", "ours", "bare cold", "bare words", "ours cold")}

    def floor() -> None:
        taken["bare"].append(copies.lower(in_batches(copies.weakest(namespace_id, _HOT, count), place_of)))
        row, words = copies.archive(in_batches(copies.weakest(namespace_id, _WARM, count), place_of))
        taken["bare cold"].append(row)
        taken["bare words"].append(row + words)

    def ours() -> None:
        ground.empty_queues("db", "llm")
        used[0] += count
        taken["ours"].append(lowered(namespace_id, size - used[0]))
        taken["ours cold"].append(sunk(namespace_id, 0))

    for number in range(rounds + 1):
        for step in (floor, ours) if number % 2 else (ours, floor):
            step()
    per = {name: tuple(figures([s / count]) for s in seconds[1:]) for name, seconds in taken.items()}  # the first warms
    note = f"{rounds} passes of {count:,} moves {{}} in batches of {place_of}, plan and report included; floor: {{}}"
    return [
        Compared(per[base], per[mine]).line("reconcile", f"{size:,} records: {name}", "p50", note=note.format(way, what))
        for name, base, mine, way, what in (
            ("per moved record / bare UPDATE", "bare", "ours", "hot to warm", "the same rows of a copy"),
            ("per archived record / bare UPDATE", "bare cold", "ours cold", "warm to cold", "the record's row alone"),
            ("per archived record / the same and its words", "bare words", "ours cold", "warm to cold",
             "the record's row, its postings deleted, its row of words inserted"),
        )
    ]  # fmt: skip
