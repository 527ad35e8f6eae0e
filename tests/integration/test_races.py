"""Recalls that count accesses, passes that move, and writes that change the text, all at once on the same records."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from inprocess import check_database, drive
from tiering import NS, OPERATION, policy

from isotherm.pipeline.errors import TransientError
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.plan import Move
from isotherm.pipeline.tier.ranking import Touch
from isotherm.pipeline.tier.records import NewRecord, Reason, Tier
from isotherm.storage.postgres import tier_move, tier_plan, tier_touch
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import passes, producers, ticks

if TYPE_CHECKING:
    from collections.abc import Callable

    from isotherm.storage.opened import Storage

ROUNDS = 1_000
IDS = [f"r{n}" for n in range(12)]
LONG = "kelp grows in cold water " * 60


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_POOL_SIZE": "5"}


def record(record_id: str, text: str, tier: Tier = Tier.HOT) -> NewRecord:
    return NewRecord(record_id, text, datetime.now(UTC) - timedelta(hours=1), tier=tier)


class Crowd:
    """Three threads over the same records, and what each of them did."""

    def __init__(self) -> None:
        self.keys: dict[str, int] = dict(fetch_all("SELECT id, key FROM tier_records"))
        self.namespace_id: int = fetch_all("SELECT id FROM namespaces")[0][0]
        self.texts = {i: f"{LONG} first {i}" for i in IDS}
        self.touched = dict.fromkeys(IDS, 0)
        self.recalled = 0
        self.evicted: set[str] = set()
        self.faults: list[BaseException] = []
        self._turns = threading.Barrier(3)

    def run(self) -> None:
        works = (self.touch, self.move, self.change)
        threads = [threading.Thread(target=self._rounds, args=(work, n)) for n, work in enumerate(works)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _rounds(self, work: Callable[[int, random.Random], None], seed: int) -> None:
        chooser = random.Random(seed)
        for n in range(ROUNDS):
            if n % 50 == 0:
                self._turns.wait(60)
            try:
                work(n, chooser)
            except Exception as error:  # noqa: BLE001 - the test tells of it
                self.faults.append(error)

    def touch(self, n: int, chooser: random.Random) -> None:
        """Accesses: one round in ten by a recall and the tick that follows it, else as that tick would count them."""
        if n % 10 == 0:
            found = producers.recall(NS, "kelp water", budget=RecallBudget(total=4), touch=Touch.SELECTED).items
            chosen = [item.record.id for item in found]
            ticks.touch()
        else:
            chosen = chooser.sample(IDS, 4)
            counts = {self.keys[i]: 1 for i in chosen}
            with connection() as conn:
                tier_touch.apply(conn, f"batch{n}", counts, datetime.now(UTC), promote_access=3)
        for i in chosen:
            self.touched[i] += 1
        self.recalled += len(chosen) if n % 10 == 0 else 0

    def move(self, n: int, _: random.Random) -> None:
        """A pass that sends everything down a tier, or up; two of each in turn."""
        limits = policy(hot_capacity=0, warm_capacity=0) if n % 4 > 1 else policy(promote_access=1)
        with connection() as conn:
            tier_plan.begin_pass(conn, self.namespace_id)
            moves = passes.planned(conn, self.namespace_id, limits).moves
        for source, target, apply in ((Tier.WARM, Tier.COLD, _archive), (Tier.COLD, Tier.WARM, tier_move.restore)):
            with connection() as conn:
                apply(conn, OPERATION, [m for m in moves if (m.source, m.target) == (source, target)])
        with connection() as conn:
            tier_move.shift(conn, OPERATION, [m for m in moves if Tier.COLD not in (m.source, m.target)])

    def change(self, n: int, chooser: random.Random) -> None:
        """A new text for one record; now and then one leaves for good."""
        chosen = chooser.choice([i for i in IDS if i not in self.evicted])
        if n % 200 == 199:
            self.evicted.add(chosen)
            _evict(self.keys[chosen])
            return
        text = f"{LONG} round {n} {chosen}"
        if n % 2:
            producers.update(NS, chosen, content=text)
        else:
            producers.remember_records(NS, [record(chosen, text)])
        self.texts[chosen] = text


def test_no_update_is_lost_no_delete_undone_and_no_deadlock_surfaces(memory: Storage) -> None:
    producers.remember_records(NS, [record(i, f"{LONG} first {i}") for i in IDS])
    drive()
    crowd = Crowd()
    crowd.run()
    assert crowd.faults == []
    assert crowd.recalled > ROUNDS / 5, "recalls found nothing to count"
    drive()
    left = set(IDS) - crowd.evicted
    assert len(crowd.evicted) == ROUNDS // 200
    assert {i for (i,) in fetch_all("SELECT id FROM tier_records")} == left
    assert {i: memory.tier.original(NS, i) for i in left} == {i: crowd.texts[i] for i in left}
    counts = dict(fetch_all("SELECT id, access_count FROM tier_records"))
    assert counts == {i: crowd.touched[i] for i in left}
    assert {moved for (moved,) in fetch_all("SELECT DISTINCT target FROM tier_moves")} == {1, 2, 3}
    check_database()


def _archive(conn: tier_move.Connection, operation_id: object, moves: list[Move]) -> None:
    summaries = {move.key: f"summary {move.id}" for move in moves}
    tier_move.archive(conn, operation_id, moves, summaries, min_bytes=1_024)  # type: ignore[arg-type]


def _evict(key: int) -> None:
    """Until the record is found as it is: others move it meanwhile."""
    for _ in range(1_000):
        version, rank = fetch_all("SELECT version, tier FROM tier_records WHERE key = %(key)s", {"key": key})[0]
        gone = Move(key, version, Tier.from_rank(rank), None, Reason.QUOTA)
        with connection() as conn:
            if tier_move.shift(conn, OPERATION, [gone]).moves:
                return
    raise TransientError("never found at rest")
