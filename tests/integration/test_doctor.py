"""The doctor names what is wrong and what mends it, each kind by a fault that was made."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from commanding import isotherm
from hash_embedder import HashEmbedder
from inprocess import drive, run_pass
from tiering import NS, policy

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.storage import health
from isotherm.storage.models import factory
from isotherm.storage.postgres import tier_held
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.redis import client as redis_client
from isotherm.tasks import broker, producers

if TYPE_CHECKING:
    import redis

    from isotherm.storage.opened import Storage


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def findings(*arguments: str) -> dict[str, dict[str, Any]]:
    done = isotherm("doctor", "--json", *arguments)
    told = json.loads(done.stdout)
    assert done.returncode == (0 if told["well"] else 4)
    assert all(f["remedy"] for f in told["findings"] if not f["well"] and f["subject"] != "servers")
    return {f["subject"]: f for f in told["findings"]}


def test_versions_clocks_and_extensions_are_named(memory: Storage) -> None:
    assert memory
    found = findings()
    assert found["database"]["well"]
    assert all(name in found["database"]["text"] for name in ("migration", "role", "vector 0.8", "pg_trgm"))
    assert found["clocks"]["well"]
    assert "objects" not in found


def test_broker_that_dropped_what_this_process_kept_is_asked_anew(memory: Storage, client: redis.Redis) -> None:
    assert memory
    assert broker.consumers(timeout=0.2) == {}
    client.client_kill_filter(_type="normal", skipme=True)
    assert broker.consumers(timeout=0.2) == {}
    client.client_kill_filter(_type="normal", skipme=True)
    client.client_kill_filter(_type="pubsub", skipme=True)
    assert broker.depth("db") >= 0
    assert findings()["clocks"]["well"]


def test_clock_that_is_far_off_is_a_fault(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory
    real = health.time.time
    monkeypatch.setattr(health.time, "time", lambda: real() + 90)
    with connection() as conn:
        skews = health.skews(conn, redis_client.open_client(memory.settings.redis_url.get_secret_value()))
    assert set(skews) == {"PostgreSQL", "Redis"}
    assert all(-95 < skew < -85 for skew in skews.values())
    found = findings()["clocks"]
    assert (found["well"], "NTP" in found["remedy"], "PostgreSQL -90" in found["text"]) == (False, True, True)


def test_records_that_are_set_aside_are_told_by_tenant_with_what_mends_it(memory: Storage) -> None:
    assert memory
    assert findings()["set aside"]["well"]
    for tenant in (None, "acme"):
        producers.remember(Namespace.of("atlas", "s1", tenant=tenant), "kelp")
    mine, theirs = (key for (key,) in fetch_all("SELECT key FROM tier_records ORDER BY key"))
    with connection() as conn:
        tier_held.hold(conn, {mine: "summary empty"}, tier_held.Patience())
    found = findings()["set aside"]
    assert (found["well"], found["text"]) == (False, "1 record of no tenant")
    assert "isotherm tiers aside --again" in found["remedy"]
    assert "restore" not in found["remedy"]
    with connection() as conn:
        tier_held.free(conn, [mine])
        tier_held.hold(conn, {theirs: tier_held.DAMAGED_BODY}, tier_held.Patience())
    found = findings()["set aside"]
    assert "1 record of tenant acme, the body of 1" in found["text"]
    assert "isotherm tiers aside --tenant acme" in found["remedy"]
    assert "isotherm restore ID" in found["remedy"]
    assert "--again" not in found["remedy"]


def test_drift_that_was_found_is_told_with_its_command(memory: Storage) -> None:
    assert memory
    producers.put(NS, "note", title="kelp", content="a forest")
    drive()
    with connection() as conn:
        conn.execute("INSERT INTO brain_drift SELECT id, now(), 3, 2 FROM namespaces")
    found = findings()["graphs"]
    assert not found["well"]
    assert "1 compared, 1 differed by 3 nodes and 2 edges" in found["text"]
    with connection() as conn:
        conn.execute("UPDATE brain_drift SET nodes = 0, edges = 0, checked_at = now() - interval '3 hours'")
    assert not findings()["graphs"]["well"]
    with connection() as conn:
        conn.execute("UPDATE brain_drift SET checked_at = now()")
    assert findings()["graphs"]["well"]


def test_dead_steps_are_named_with_an_example_and_their_reason(memory: Storage) -> None:
    assert memory
    operation = producers.remember(NS, "kelp").operation_id
    with connection() as conn:
        conn.execute(
            "UPDATE operation_steps SET state = 'dead', finished_at = now(), last_error = 'the worker was killed'"
        )
    found = findings()["operations"]
    assert not found["well"]
    assert "1 operation dead at tier.index: the worker was killed" in found["text"]
    assert str(operation) in found["remedy"]


def test_objects_are_compared_both_ways_when_asked(memory: Storage) -> None:
    old = datetime.now(UTC) - timedelta(days=9)
    big = {i: random.Random(i).randbytes(40_000).hex() for i in ("a", "b")}
    producers.remember_records(NS, [NewRecord(i, text, old, tier=Tier.WARM) for i, text in big.items()])
    drive()
    run_pass(NS, policy(warm_capacity=0))
    assert findings("--deep")["objects"]["well"]
    [first, _] = sorted(memory.blobs.keys(""))
    body = memory.blobs.get(first)
    memory.blobs.delete(first)
    found = findings("--deep")["objects"]
    assert (found["well"], "1 that records need are missing" in found["text"]) == (False, True)
    memory.blobs.put(first, body or b"")
    memory.blobs.put("0" * 32 + "/stranger", b"x")
    found = findings("--deep")["objects"]
    assert (found["well"], "1 belong to nothing here" in found["text"]) == (False, True)


def test_vectors_of_another_model_are_counted(memory: Storage) -> None:
    factory.use_embedder(memory.settings, HashEmbedder(8, "first"))
    producers.put(NS, "note", title="kelp", content="a forest")
    drive()
    assert findings("--deep")["vectors"]["well"]
    factory.use_embedder(memory.settings, HashEmbedder(8, "second"))
    found = findings("--deep")["vectors"]
    assert not found["well"]
    assert "1 objects by" in found["text"]
