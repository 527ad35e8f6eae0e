"""Ticks go on at their pace, whatever the clock of a machine says."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.beat import PersistentScheduler
from celery.schedules import BaseSchedule

from isotherm.pipeline import stages
from isotherm.tasks import app, ticks
from isotherm.tasks.beat import SteadyScheduler

PACES = {"often": 2.0, "seldom": 300.0}


class Clocks:
    """The wall clock and the monotonic one of a machine."""

    def __init__(self) -> None:
        self.wall, self.steady = datetime(2026, 3, 1, tzinfo=UTC), 0.0

    def go(self, seconds: float) -> None:
        self.wall += timedelta(seconds=seconds)
        self.steady += seconds

    def jump(self, shift: timedelta) -> None:
        self.wall += shift


class Beat:
    """A scheduler that sends nothing and counts what it would have sent."""

    def __init__(self, clocks: Clocks, file: Path) -> None:
        made = Celery("steady", broker="memory://", set_as_current=False)
        made.conf.beat_schedule = {name: {"task": name, "schedule": pace} for name, pace in PACES.items()}
        self.clocks, self.sent = clocks, Counter[str]()
        self.scheduler = SteadyScheduler(app=made, schedule_filename=str(file), max_interval=5, Producer=dict)
        self.scheduler.apply_entry = lambda entry, producer=None: self.sent.update([entry.task])  # noqa: ARG005

    def run(self, seconds: float) -> Counter[str]:
        """What is sent in so many seconds."""
        self.sent.clear()
        end = self.clocks.steady + seconds
        while self.clocks.steady < end:
            self.clocks.go(max(0.01, self.scheduler.tick()))
        return self.sent


@pytest.fixture
def beats(tmp_path: Path, clocks: Clocks) -> Iterator[Callable[[], Beat]]:
    """Schedulers of one file, one after the other."""
    made: list[Beat] = []

    def begin() -> Beat:
        if made:
            made[-1].scheduler.close()
        made.append(Beat(clocks, tmp_path / "schedule"))
        return made[-1]

    yield begin
    made[-1].scheduler.close()


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    made = Clocks()
    monkeypatch.setattr(time, "time", lambda: made.wall.timestamp())  # noqa: PLW0108 - another time at each call
    monkeypatch.setattr(BaseSchedule, "now", lambda _: made.wall)
    monkeypatch.setattr(time, "monotonic", lambda: made.steady)
    monkeypatch.setattr(SteadyScheduler, "producer", None)
    return made


@pytest.mark.parametrize("hours", [-960, -2, -0.01, 0.01, 2, 960])
def test_a_clock_that_jumps_stops_no_tick(clocks: Clocks, beats: Callable[[], Beat], hours: float) -> None:
    beat = beats()
    assert 25 <= beat.run(60)["often"] <= 31
    clocks.jump(timedelta(hours=hours))
    assert 25 <= beat.run(60)["often"] <= 32
    clocks.jump(timedelta(hours=-hours))
    sent = beat.run(660)
    assert 300 <= sent["often"] <= 331
    assert 2 <= sent["seldom"] <= 3


def test_times_that_a_file_has_from_a_clock_that_was_ahead_stop_no_tick(
    clocks: Clocks, beats: Callable[[], Beat]
) -> None:
    clocks.jump(timedelta(days=2))
    beats().run(10)
    clocks.jump(timedelta(days=-2))
    assert 25 <= beats().run(60)["often"] <= 31


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """As if a worker ran the ticks; the list's only number is its clock."""
    now = [100.0]
    monkeypatch.setattr(type(app), "current_worker_task", object())
    monkeypatch.setattr(ticks.time, "monotonic", lambda: now[0])
    ticks._ran.clear()
    yield now
    ticks._ran.clear()


def test_ticks_that_piled_up_run_at_half_their_pace_and_others_at_once(
    worker: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Any] = []
    monkeypatch.setattr(ticks.storage, "open", lambda: ran.append(worker[0]) or pytest.fail("far enough"))
    pace = app.conf.beat_schedule[stages.DUE]["schedule"]
    for moment in (100.0, 100.0 + pace / 4, 100.0 + pace / 2, 100.0 + pace):
        worker[0] = moment
        try:
            assert ticks.due() == {"state": "too soon"}
        except pytest.fail.Exception:
            assert ran[-1] == moment
    assert ran == [100.0, 100.0 + pace / 2, 100.0 + pace]
    assert ticks.refresh({"wrong": 1}) == ticks.refresh({"wrong": 1}) == {"state": "refused"}


def test_a_signal_in_the_middle_of_a_tick_closes_the_scheduler_after_it(
    clocks: Clocks, beats: Callable[[], Beat], monkeypatch: pytest.MonkeyPatch
) -> None:
    beat, closed = beats(), []
    monkeypatch.setattr(PersistentScheduler, "close", lambda _: closed.append("closed"))

    def told_to_stop(*_: object, **__: object) -> None:
        beat.scheduler.close()  # as Celery's handler of the signal does
        assert closed == []
        raise SystemExit

    beat.scheduler.apply_entry = told_to_stop
    clocks.go(10)
    with pytest.raises(SystemExit):
        beat.scheduler.tick()
    beat.scheduler.close()
    assert closed == ["closed"]
