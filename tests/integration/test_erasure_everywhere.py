"""An erasure reaches the graph of interests, the blob store and the servers' files, and a receipt finds what came back."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest
from commanding import isotherm
from erasing import everything, forgotten
from inprocess import drive, run_pass
from tiering import NS, policy, store

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.blobs import owner_prefix
from isotherm.pipeline.tier.records import NewRecord, Tier
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import graph, producers

if TYPE_CHECKING:
    import redis

    from isotherm.storage.opened import Storage

pytestmark = pytest.mark.usefixtures("memory")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def canary() -> str:
    return f"canary{uuid4().hex}"


def doctor(*arguments: str) -> dict[str, Any]:
    done = isotherm("doctor", "--json", *arguments)
    told: dict[str, Any] = json.loads(done.stdout)
    assert done.returncode == (0 if told["well"] else 4)
    [finding] = told["findings"]
    return {**finding, "well": told["well"]}


@pytest.mark.parametrize("level", ["records", "session"])
def test_interest_that_is_forgotten_leaves_the_graph_too(level: str, canary: str) -> None:
    said = TranscriptLine(1, "atlas", "s1", None, "user", f"I prefer {canary} tea over coffee.", NOON)
    accepted = producers.ingest_session(NS, [said])
    drive()
    graph.mirror_interests()
    assert canary in str(fetch_all("SELECT title FROM graph_nodes"))
    forget = producers.forget(NS, accepted.ids) if level == "records" else producers.forget_session(NS.bank, "s1")
    forgotten(forget)
    assert canary not in str(fetch_all("SELECT * FROM graph_nodes"))
    assert canary not in str(fetch_all("SELECT t::text FROM interest_points AS t"))


def test_receipt_names_the_blobs_and_one_that_comes_back_is_found(memory: Storage) -> None:
    """An object put back by hand, as a restored blob store would have it."""
    old = datetime.now(UTC) - timedelta(days=9)
    texts = {i: os.urandom(40_000).hex() for i in ("a", "b")}
    producers.remember_records(NS, [NewRecord(i, text, old, tier=Tier.WARM) for i, text in texts.items()])
    drive()
    run_pass(NS, policy(warm_capacity=0))
    [[key]] = fetch_all(
        "SELECT object_key FROM cold_blobs WHERE record_key = (SELECT key FROM tier_records WHERE id = 'a')"
    )
    one = producers.forget(NS, ["a"])
    assert forgotten(one).ids["blobs"] == [key]
    memory.blobs.put(key, b"x")
    found = doctor("--erased", str(one.operation_id))
    assert (found["well"], found["text"]) == (False, "left: 1 in blobs")
    memory.blobs.delete(key)
    assert doctor("--erased", str(one.operation_id))["well"]
    whole = producers.forget(NS)
    assert forgotten(whole).ids["blobs"] == [owner_prefix(NS)]
    assert list(memory.blobs.keys("")) == []
    memory.blobs.put(f"{owner_prefix(NS)}{uuid4()}", b"x")
    assert producers.forget_receipt(whole.operation_id).left == {"blobs": 1}


def test_hot_copy_and_count_of_a_record_that_is_gone_are_found(memory: Storage) -> None:
    store(("a", timedelta(hours=1)), ("b", timedelta(hours=1)), content="kelp")
    memory.tier.tail(NS)
    [[key, namespace]] = fetch_all("SELECT key, namespace_id FROM tier_records WHERE id = 'a'")
    copies = memory.tail.read(namespace, 10)[0]
    accepted = producers.forget(NS, ["a"])
    forgotten(accepted)
    _, generation = memory.tail.read(namespace, 10)
    assert memory.tail.offer(namespace, generation, copies or [])
    memory.touches.count([key])
    assert producers.forget_receipt(accepted.operation_id).left == {"hot copies": 1, "touches": 1}
    memory.tail.invalidate(namespace)
    memory.touches.forget([key])
    assert producers.forget_receipt(accepted.operation_id).left == {}


def test_receipt_in_a_file_finds_what_a_database_that_was_restored_has_again(tmp_path: Path) -> None:
    producers.remember(NS, "kelp", record_id="a")
    drive()
    producers.forget(NS, ["never there"])
    receipt = tmp_path / "receipt.json"
    with connection() as conn:
        ids = conn.execute("SELECT bank_id, namespace_id, key FROM tier_records").fetchone() or ()
    told = {"operation": str(uuid4()), "level": "records", "scope_sha256": "00" * 32, "requested_at": "2026-01-01T00:00:00Z",
            "ids": {"banks": [ids[0]], "namespaces": [ids[1]], "records": [ids[2]]}}  # fmt: skip
    receipt.write_text(json.dumps(told), encoding="utf-8")
    found = doctor("--erased", str(receipt))
    assert not found["well"]
    assert "1 in tier_records" in found["text"]
    assert found["remedy"]
    for wrong, code in (("{", 1), ("[]", 1), ('{"ids": {}}', 1)):
        receipt.write_text(wrong, encoding="utf-8")
        done = isotherm("doctor", "--erased", str(receipt))
        assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert isotherm("doctor", "--erased", str(uuid4())).returncode == 1
    drive()


def folders(dsn: str, client: redis.Redis) -> list[Path]:
    with psycopg.connect(dsn, autocommit=True) as conn:
        [[postgres]] = conn.execute("SELECT current_setting('data_directory')").fetchall()
    return [Path(postgres), Path(client.config_get("dir")["dir"])]


def where(folder: Path, text: str) -> list[str]:
    found = []
    for path in folder.rglob("*"):
        try:
            if path.is_file() and text.encode() in path.read_bytes():
                found.append(path.relative_to(folder).as_posix())
        except FileNotFoundError:  # the server took it away meanwhile
            continue
    return found


def test_no_file_of_the_servers_has_what_was_forgotten_once_they_were_written_anew(
    memory: Storage, dsn: str, client: redis.Redis, canary: str
) -> None:
    """Tables, indexes, write-ahead log and append-only file: the whole data folders of both servers."""
    producers.remember(NS, f"{canary} in a record", record_id="a", metadata={"note": canary})
    producers.put(NS, "note", title=f"{canary} title", content=canary)
    memory.tier.tail(NS)
    drive()
    postgres, append_only = folders(dsn, client)
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("CHECKPOINT")
    assert any(name.startswith("pg_wal/") for name in where(postgres, canary))
    assert where(append_only, canary)
    forgotten(producers.forget(NS))
    producers.rewrite_files()
    assert where(postgres, canary) == []
    assert where(append_only, canary) == []


# One tenant of twenty

TENANTS = 20
ROWS = int(os.environ.get("ISOTHERM_TEST_ERASE_ROWS", "1500"))
_OTHERS = """
SELECT md5(string_agg(t::text, '' ORDER BY t::text)) FROM {table} AS t
WHERE t.{column} IN (SELECT id FROM {owners} WHERE tenant <> 'tenant 0' AND tenant <> 'busy' AND tenant NOT LIKE chr(1) || '%%')"""
_OF = [("tier_records", "bank_id", "banks"), ("tier_postings", "bank_id", "banks"), ("brain_objects", "bank_id", "banks"),
       ("interest_points", "bank_id", "banks"), ("interest_evidence", "bank_id", "banks"), ("interest_log", "bank_id", "banks"),
       ("brain_edges", "namespace_id", "namespaces"), ("brain_postings", "namespace_id", "namespaces"),
       ("cold_words", "bank_id", "banks"), ("tier_moves", "namespace_id", "namespaces")]  # fmt: skip


def others() -> list[Any]:
    return [fetch_all(_OTHERS.format(table=t, column=c, owners=o), {}) for t, c, o in _OF]


def test_one_tenant_of_twenty_goes_while_others_write_and_those_stay_as_they_are(client: redis.Redis) -> None:
    """Rows of the one that goes by ISOTHERM_TEST_ERASE_ROWS, each other has a tenth; a writer goes on for yet another one."""
    for n in range(TENANTS):
        fill(f"tenant {n}", ROWS if n == 0 else ROWS // 10)
    drive()
    for n in range(2):
        run_pass(Namespace.of("atlas", "s1", tenant=f"tenant {n}"), policy(warm_capacity=ROWS // 20))
    before = others()
    assert None not in {row[0][0] for row in before}
    stop, wrote = threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            producers.remember(Namespace.of("atlas", "s1", tenant="busy"), "written meanwhile")
            wrote[0] += 1
            stop.wait(0.01)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        accepted = producers.forget_tenant("tenant 0")
        drive(accepted.operation_id)
    finally:
        stop.set()
        writer.join()
    assert producers.operation(accepted.operation_id).state == "done"
    assert producers.forget_receipt(accepted.operation_id).left == {}
    assert wrote[0] > 0
    assert others() == before
    found = everything(client)
    assert "tenant 0" not in found
    assert "words of 0 " not in found
    assert f"words of {TENANTS - 1} " in found
    drive()


def fill(tenant: str, rows: int) -> None:
    number = tenant.rsplit(maxsplit=1)[-1]
    namespace = Namespace.of("atlas", "s1", tenant=tenant)
    for start in range(0, rows, 1_000):
        some = range(start, min(start + 1_000, rows))
        records = [NewRecord(f"r{n}", f"words of {number} kelp {n}", NOON, tier=Tier.WARM) for n in some]
        producers.remember_records(namespace, records)
    one = producers.put(namespace, "note", title=f"words of {number} one")
    two = producers.put(namespace, "note", title=f"words of {number} two")
    producers.link(namespace, one.ids[0], two.ids[0], "near")
    text = f"I prefer words of {number} tea over coffee."
    producers.ingest_session(namespace, [TranscriptLine(1, "atlas", "s1", tenant, "user", text, NOON)])
