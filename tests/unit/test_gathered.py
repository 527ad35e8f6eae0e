from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from isotherm.pipeline.errors import TransientError
from isotherm.storage.gathered import Gathered


class Server:
    """Doubles numbers; its first call waits until the test lets it go. Negative numbers are refused, zero finds it away."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.begun, self.go = threading.Event(), threading.Event()

    def double(self, values: Sequence[int]) -> list[int]:
        self.calls.append(list(values))
        if len(self.calls) == 1:
            self.begun.set()
            assert self.go.wait(10)
        if min(values) < 0:
            raise LookupError(min(values))
        if 0 in values:
            raise TransientError("away")
        return [2 * value for value in values]


def outcomes(server: Server, *values: int) -> list[object]:
    """What each call came to, where all but the first are made while that is under way."""
    gathered = Gathered(server.double)
    with ThreadPoolExecutor(len(values)) as pool:
        futures = [pool.submit(gathered, values[0])]
        assert server.begun.wait(10)
        futures += [pool.submit(gathered, value) for value in values[1:]]
        while len(gathered._waiting) < len(values) - 1:
            pass
        server.go.set()
        return [future.exception() or future.result() for future in futures]


def test_what_gathers_while_one_call_is_under_way_goes_together_and_each_gets_its_own_result() -> None:
    server = Server()
    assert outcomes(server, 1, 2, 3, 4) == [2, 4, 6, 8]
    assert [sorted(call) for call in server.calls] == [[1], [2, 3, 4]]


def test_none_fails_for_another_one() -> None:
    server = Server()
    first, refused, other = outcomes(server, 1, -2, 3)
    assert (first, other) == (2, 6)
    assert isinstance(refused, LookupError)
    assert sorted(server.calls[2:]) == [[-2], [3]]


def test_while_the_server_is_away_it_is_not_asked_for_each() -> None:
    server = Server()
    first, *others = outcomes(server, 1, 0, 3)
    assert first == 2
    assert [type(error) for error in others] == [TransientError, TransientError]
    assert len(server.calls) == 2


def test_one_thread_alone_never_waits_and_a_failure_leaves_the_way_free() -> None:
    server = Server()
    server.go.set()
    gathered = Gathered(server.double)
    with pytest.raises(LookupError):
        gathered(-1)
    assert [gathered(n) for n in (1, 2)] == [2, 4]
