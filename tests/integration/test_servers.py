from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from isotherm.pipeline.errors import RejectedError
from isotherm.storage import servers
from isotherm.storage.postgres import migrate
from isotherm.storage.redis import client as client_module
from isotherm.storage.redis.client import check_server
from isotherm.storage.settings import settings

if TYPE_CHECKING:
    import redis


def faults() -> list[tuple[str, bool]]:
    return [(fault.text, fault.lasting) for fault in servers.check(settings())]


def test_servers_in_good_order_have_no_faults(environment: dict[str, str]) -> None:
    assert environment
    assert faults() == []


def test_database_of_another_version_is_a_lasting_fault(environment: dict[str, str], dsn: str) -> None:
    assert environment
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("DELETE FROM schema_migrations WHERE number = 2")
        assert faults() == [("the database is not at this version: run `isotherm migrate`", True)]
        conn.execute("DROP TABLE schema_migrations")
        assert faults() == [("the database is not at this version: run `isotherm migrate`", True)]


def test_old_servers_are_lasting_faults(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert environment
    monkeypatch.setattr(migrate, "_MIN_SERVER", 990_000)
    monkeypatch.setattr(client_module, "MIN_SERVER", (99, 0))
    found = faults()
    assert [lasting for _, lasting in found] == [True, True]
    assert "16 or newer" in found[0][0]
    assert "6.2 or newer" in found[1][0]


def test_redis_that_may_drop_messages_is_refused(client: redis.Redis) -> None:
    assert check_server(client)
    client.config_set("maxmemory-policy", "allkeys-lru")
    try:
        with pytest.raises(RejectedError, match="allkeys-lru; set it to noeviction"):
            check_server(client)
    finally:
        client.config_set("maxmemory-policy", "noeviction")
