"""Recalls that count accesses, passes that move, and writes that change the text, all at once on the same records."""

from __future__ import annotations

import random
import threading
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from inprocess import check_database, drive
from tiering import NS, policy

from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.ranking import Touch
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers, ticks

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from isotherm.storage.opened import Storage

ROUNDS = 1_000
AT_ONCE = 12
LONG = "kelp grows in cold water " * 60


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_POOL_SIZE": "5", "ISOTHERM_RETRY_BASE": "0.01"}


def record(record_id: str, text: str, tier: Tier = Tier.HOT) -> NewRecord:
    return NewRecord(record_id, text, datetime.now(UTC) - timedelta(hours=1), tier=tier)


class Crowd:
    """Three threads over the same records, and what each of them did."""

    def __init__(self) -> None:
        self.texts = {f"r{n}": f"{LONG} first r{n}" for n in range(AT_ONCE)}
        first = producers.remember_records(NS, [record(i, text) for i, text in self.texts.items()]).operation_id
        drive()
        self.behind = dict.fromkeys(self.texts, first)
        self.touched: dict[str, int] = {}
        self.forgotten: dict[str, UUID] = {}
        self.passes: list[UUID] = []
        self.faults: list[BaseException] = []
        self._turns = threading.Barrier(2)
        self._over = threading.Event()

    def run(self) -> None:
        mover = threading.Thread(target=self._passes)
        others = [
            threading.Thread(target=self._rounds, args=(work, n)) for n, work in enumerate((self.touch, self.change))
        ]
        for thread in (mover, *others):
            thread.start()
        for thread in others:
            thread.join()
        self._over.set()
        mover.join()

    def _rounds(self, work: Callable[[int, random.Random], None], seed: int) -> None:
        chooser = random.Random(seed)
        for n in range(ROUNDS):
            if n % 20 == 0:
                self._turns.wait(60)
            self._tried(work, n, chooser)

    def _passes(self) -> None:
        while not self._over.is_set():
            self._tried(self.move, len(self.passes))

    def _tried(self, work: Callable[..., None], *given: object) -> None:
        try:
            work(*given)
        except Exception as error:  # noqa: BLE001 - the test tells of it
            self.faults.append(error)

    def touch(self, n: int, chooser: random.Random) -> None:
        """A recall, and now and then the tick that adds the accesses of those before it."""
        query = chooser.choice(["kelp water", "cold round"])
        for item in producers.recall(NS, query, budget=RecallBudget(total=4), touch=Touch.SELECTED).items:
            self.touched[item.record.id] = self.touched.get(item.record.id, 0) + 1
        if n % 10 == 9:
            ticks.touch()

    def move(self, n: int) -> None:
        """A pass that sends everything down a tier, or up; two of each in turn."""
        limits = policy(hot_capacity=0, warm_capacity=0) if n % 4 > 1 else policy(promote_access=1)
        asked = producers.reconcile(NS, limits).operation_id
        self.passes.append(asked)
        drive(asked)

    def change(self, n: int, chooser: random.Random) -> None:
        """A new text for one record; every tenth time one is forgotten for good, and another one comes.

        The steps behind these are run at once; those behind the others come late.
        """
        chosen = chooser.choice(sorted(self.texts))
        text = f"{LONG} round {n} {chosen}"
        if n % 10 == 9:
            self.forgotten[chosen] = producers.forget(NS, [chosen]).operation_id
            drive(self.forgotten[chosen])
            del self.texts[chosen], self.behind[chosen]
            chosen = f"r{AT_ONCE + len(self.forgotten)}"
        if n % 2:
            done = producers.remember_records(NS, [record(chosen, text)]).operation_id
        else:
            done = producers.update(NS, chosen, content=text).operation_id
        if n % 10 == 9:
            drive(done)
        self.texts[chosen], self.behind[chosen] = text, done


def test_no_update_is_lost_no_delete_undone_and_no_deadlock_surfaces(memory: Storage) -> None:
    crowd = Crowd()
    crowd.run()
    assert crowd.faults == []
    assert sum(crowd.touched.values()) > 3 * ROUNDS, "recalls found too little to count"
    for behind in crowd.behind.values():
        drive(behind)
    while ticks.touch()["records"]:
        pass
    assert len(crowd.forgotten) == ROUNDS // 10
    assert {i for (i,) in fetch_all("SELECT id FROM tier_records")} == crowd.texts.keys()
    assert {i: memory.tier.original(NS, i) for i in crowd.texts} == crowd.texts
    counts = dict(fetch_all("SELECT id, access_count FROM tier_records"))
    assert counts == {i: crowd.touched.get(i, 0) for i in crowd.texts}
    assert fetch_all("SELECT bool_and(indexed) FROM tier_records") == [(True,)]
    for erasure in crowd.forgotten.values():
        assert not any(producers.forget_receipt(erasure).left.values())
    assert len(crowd.passes) > ROUNDS / 50
    assert {producers.operation(done).state for done in crowd.passes} == {"done"}
    # An erasure may meet an access that was counted meanwhile, and look again.
    failed = "SELECT stage, last_error FROM operation_steps WHERE last_error IS NOT NULL AND stage <> 'tier.forget'"
    assert fetch_all(failed) == []
    assert {moved for (moved,) in fetch_all("SELECT DISTINCT target FROM tier_moves")} == {1, 2, 3}
    check_database()
