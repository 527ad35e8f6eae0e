from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import fakeredis
import pytest

if TYPE_CHECKING:
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
