from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency import asynpool

from isotherm.tasks.app import app
from isotherm.tasks.prefork import Pool, TaskPool


def pool_of(pipes: dict[str, object]) -> Any:
    pool = Pool.__new__(Pool)
    pool._queues = pipes
    pool.create_process_queues = lambda: "made"
    return pool


def test_new_process_gets_free_pipes_and_more_where_an_ended_one_still_has_its_own() -> None:
    ended = object()
    assert pool_of({"a": ended, "b": None}).get_process_queues() == "b"
    pipes: dict[str, object] = {"a": ended, "b": ended}
    assert pool_of(pipes).get_process_queues() == "made"
    assert pipes == {"a": ended, "b": ended, "made": None}


def test_process_that_was_seen_to_have_ended_is_not_watched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[object] = []
    monkeypatch.setattr(asynpool.AsynPool, "_track_child_process", lambda _, process, __: watched.append(process))
    new, known, ended = SimpleNamespace(), SimpleNamespace(_sentinel_poll=7), SimpleNamespace(_sentinel_poll=None)
    for process in (new, known, ended):
        pool_of({})._track_child_process(process, object())
    assert watched == [new, known]


def test_workers_have_such_a_pool() -> None:
    assert app.conf.worker_pool == f"{TaskPool.__module__}:{TaskPool.__name__}"
    assert TaskPool.Pool is Pool
