from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import fakeredis
import pytest
from tier_stores import Opened

if TYPE_CHECKING:
    from pathlib import Path

    import redis


@pytest.fixture(params=["fake", "server"])
def store(request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """An empty Redis: the double that unit tests use, and the real server."""
    if request.param == "server":
        yield request.getfixturevalue("client")
        return
    fake = fakeredis.FakeRedis()
    yield fake
    fake.close()


@pytest.fixture
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opened]:
    """Opens stores of records by their kind, and closes them at the end."""
    with ExitStack() as held:
        yield Opened(request, tmp_path, held)
