from __future__ import annotations

import pytest
from psycopg import errors as pg

from isotherm.pipeline.errors import DeadlockError, ErasedError, TransientError
from isotherm.storage.postgres import namespaces, pool


def _losing(times: int, error: type[Exception] = DeadlockError) -> tuple[list[int], object]:
    calls: list[int] = []

    def write() -> int:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return len(calls)

    return calls, write


@pytest.mark.parametrize("times", [0, 1, 3])
def test_a_write_that_loses_deadlocks_is_made_again(times: int) -> None:
    calls, write = _losing(times)
    assert namespaces.again_if_erased(write) == times + 1  # type: ignore[arg-type]
    assert len(calls) == times + 1


def test_a_write_that_loses_every_deadlock_says_so_in_the_end() -> None:
    calls, write = _losing(100)
    with pytest.raises(DeadlockError):
        namespaces.again_if_erased(write)  # type: ignore[arg-type]
    assert len(calls) == 4


def test_a_write_to_what_was_erased_is_made_once_more() -> None:
    calls, write = _losing(100, ErasedError)
    with pytest.raises(ErasedError):
        namespaces.again_if_erased(write)  # type: ignore[arg-type]
    assert len(calls) == 2


def _lost() -> None:
    with pool._translated():
        raise pg.DeadlockDetected


def test_a_deadlock_is_told_as_what_another_try_cures() -> None:
    with pytest.raises(DeadlockError, match="DeadlockDetected"):
        _lost()
    assert issubclass(DeadlockError, TransientError)
