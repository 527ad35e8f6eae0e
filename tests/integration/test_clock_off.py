"""A worker whose clock is wrong: ages and leases are those of the database, so nothing moves, ages or is taken over early."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from inprocess import drive, run_pass
from tiering import NS, policy

from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import interest_tend, producers, ticks

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage

STEP = "SELECT state, attempts, lease_until > now() FROM operation_steps WHERE stage = 'tier.index'"


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture(params=[timedelta(days=400), timedelta(days=-400)], ids=["ahead", "behind"])
def shift(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> timedelta:
    """Every module of the workers and the storage reads a clock that is off."""
    off: timedelta = request.param

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return datetime.now(tz) + off

    for name, module in sorted(sys.modules.items()):
        if name.startswith(("isotherm.tasks", "isotherm.storage")) and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", Shifted)
    return off


def tiers() -> list[Any]:
    return fetch_all("SELECT id, tier FROM tier_records ORDER BY id")


def test_passes_move_by_the_age_that_the_database_sees(memory: Storage, shift: timedelta) -> None:
    assert memory
    assert shift
    now = datetime.now(UTC)
    producers.remember_records(
        NS,
        [
            NewRecord("old", "kelp", now - timedelta(days=30), tier=Tier.WARM),
            NewRecord("young", "kelp", now - timedelta(hours=1), tier=Tier.WARM),
        ],
    )
    drive()
    run_pass(NS, policy(warm_ttl=timedelta(days=7)))
    moved = dict(tiers())
    assert moved["old"] < moved["young"]


def test_leases_and_waits_are_those_of_the_database(memory: Storage, shift: timedelta) -> None:
    assert memory
    assert shift
    producers.remember(NS, "kelp")
    fetch_all("""UPDATE operation_steps SET state = 'running', owner = 'h#1:1', token = token + 1, attempts = 1,
                 lease_until = now() + interval '1 minute' RETURNING 1""")
    ticks.sweep_operations()
    interest_tend.age()
    assert fetch_all(STEP) == [("running", 1, True)]
    fetch_all("UPDATE operation_steps SET lease_until = now() - interval '1 second' RETURNING 1")
    ticks.sweep_operations()
    assert fetch_all(STEP)[0][0] == "pending"
    drive()
