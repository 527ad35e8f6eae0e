"""What tests of forgetting share: a look at all that is stored, and an erasure driven to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from inprocess import drive

from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    import redis


def everything(client: redis.Redis) -> str:
    """All that is stored anywhere, as one text."""
    tables = fetch_all("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    parts = [str(fetch_all(f'SELECT t::text FROM "{table}" AS t')) for (table,) in tables]
    for key in client.scan_iter():
        kind = client.type(key).decode()
        parts.append(key.decode())
        parts.append(str({"string": client.get, "hash": client.hgetall, "set": client.smembers,
                          "list": lambda k: client.lrange(k, 0, -1), "zset": lambda k: client.zrange(k, 0, -1)}[kind](key)))  # fmt: skip
    return "\n".join(parts)


def forgotten(accepted: producers.Accepted) -> Any:
    drive(accepted.operation_id)
    done = producers.operation(accepted.operation_id)
    assert done.state == "done", (done.state, done.error)
    receipt = producers.forget_receipt(accepted.operation_id)
    assert receipt.left == {}
    assert receipt.finished_at is not None
    return receipt
