from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import redis

from isotherm.storage.redis.client import Script

if TYPE_CHECKING:
    from pathlib import Path

_ADD = "return redis.call('INCRBY', KEYS[1], ARGV[1])"


@pytest.fixture
def add(store: redis.Redis) -> Script:
    return Script(store, _ADD)


def test_script_runs_although_the_server_has_forgotten_it(store: redis.Redis, add: Script) -> None:
    store.script_flush()
    assert [add(["n"], [2]), add(["n"], [3])] == [2, 5]


def test_script_runs_although_its_connection_was_closed(store: redis.Redis, add: Script) -> None:
    assert add(["n"], [1]) == 1
    store.client_kill_filter(_type="normal", skipme=False)
    assert add(["n"], [1]) == 2


def test_fault_of_a_script_is_told_and_leaves_the_connection_in_order(store: redis.Redis, add: Script) -> None:
    store.set("n", "no number")
    for _ in range(3):
        with pytest.raises(redis.ResponseError, match="not an integer"):
            add(["n"], [1])
    store.delete("n")
    assert add(["n"], [1]) == 1


def test_scripts_of_many_threads_each_get_their_own_answer(add: Script) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: add(["n"], [1]), range(200)))
    assert sorted(answers) == list(range(1, 201))


def test_server_that_is_away_is_told(tmp_path: Path) -> None:
    client = redis.Redis(unix_socket_path=str(tmp_path / "none.sock"))
    with pytest.raises(redis.ConnectionError):
        Script(client, _ADD)(["n"], [1])
