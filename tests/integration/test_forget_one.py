"""A single object of the knowledge base, or a single interest, is forgotten as thoroughly as a record."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from brain_kit import titles
from commanding import answer, isotherm
from erasing import everything, forgotten
from hash_embedder import HashEmbedder
from inprocess import drive
from tiering import NS

from isotherm.pipeline.brain.objects import NewObject
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.models import factory
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import graph, produce_brain, producers

if TYPE_CHECKING:
    import redis

    from isotherm.storage.opened import Storage

pytestmark = pytest.mark.usefixtures("memory")
KB = produce_brain.knowledge("atlas")
ONE, PART, OTHER = (UUID(int=(1 << 100) + n) for n in (1, 2, 3))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def canary() -> str:
    return f"canary{uuid4().hex}"


def put(canary: str) -> None:
    producers.put_many(
        KB,
        [
            NewObject(ONE, "note", f"{canary} title", content=f"{canary} body", properties={"p": canary}),
            NewObject(PART, "note", "", content=f"{canary} part", parent_id=ONE),
            NewObject(OTHER, "note", "Kelp", content="stays"),
        ],
        key=f"{canary} key",
    )
    producers.link(KB, OTHER, ONE, f"{canary} label", note=f"{canary} note")
    producers.link(KB, ONE, OTHER, "near")


def statistics() -> list[object]:
    return [
        sorted(fetch_all("SELECT sum(documents), sum(length) FROM (SELECT documents, length FROM brain_stats UNION ALL "
                         "SELECT documents, length FROM brain_stats_deltas) AS s")),
        titles(producers.search(KB, "kelp")),
    ]  # fmt: skip


@pytest.mark.parametrize("before", ["waiting", "done", "taken out"])
def test_an_object_is_gone_with_all_that_was_made_of_it(
    before: str, canary: str, memory: Storage, client: redis.Redis
) -> None:
    factory.use_embedder(memory.settings, HashEmbedder(8))
    producers.put(KB, "note", title="Kelp", content="stays", object_id=OTHER)
    drive()
    alone = statistics()
    put(canary)
    if before != "waiting":
        drive()
    if before == "taken out":
        producers.soft_delete(KB, ONE)
    assert canary in everything(client)
    accepted = producers.forget_objects(KB, [ONE], key="k")
    gone = "SELECT count(*) FROM brain_objects AS o WHERE o::text LIKE %(canary)s"
    assert fetch_all(gone, {"canary": f"%{canary}%"}) == [(0,)], "gone when the call returns"
    receipt = forgotten(accepted)
    drive()
    assert canary not in everything(client)
    assert (receipt.counts["objects"], receipt.counts["edges"]) == (2, 2)
    assert receipt.ids["objects"] == [str(ONE), str(PART)]
    assert statistics() == alone
    assert canary not in str(producers.search(KB, canary))
    assert not producers.forget_objects(KB, [ONE], key="k").new
    assert answer("doctor", "--erased", str(accepted.operation_id))["well"]


def test_an_object_that_is_put_again_meanwhile_is_a_new_one_and_in_the_graph(canary: str, client: redis.Redis) -> None:
    put(canary)
    drive()
    accepted = producers.forget_objects(KB, [ONE])
    producers.put(KB, "note", title="Kelp again", content="new", object_id=ONE)
    producers.link(KB, OTHER, ONE, "near")
    forgotten(accepted)
    drive()
    assert graph.drift()["nodes"] == 0
    assert canary not in everything(client)
    assert fetch_all("SELECT title, deleted FROM graph_nodes ORDER BY title") == [
        ("Kelp", False),
        ("Kelp again", False),
    ]
    assert fetch_all("SELECT label, deleted FROM graph_edges") == [("near", False)]


def test_only_what_is_named_is_forgotten_and_of_no_other_owner(canary: str, client: redis.Redis) -> None:
    put(canary)
    drive()
    before = everything(client)
    theirs = producers.forget_objects(produce_brain.knowledge("boreas"), [ONE])
    assert (theirs.written, forgotten(theirs).counts) == (0, {})
    assert producers.forget_interests(Bank(None, "boreas"), [ONE]).written == 0
    drive()
    assert before.count(canary) == everything(client).count(canary)
    for wrong in ([], [uuid4() for _ in range(1_001)], ["x"]):
        with pytest.raises(RejectedError):
            producers.forget_objects(KB, wrong)  # type: ignore[arg-type]
    with pytest.raises(RejectedError):
        producers.forget_objects(Namespace.of(" "), [ONE])


def test_an_interest_is_gone_with_its_evidence_and_its_place_in_the_graph(canary: str, client: redis.Redis) -> None:
    said = [TranscriptLine(1, "atlas", "s1", None, "user", f"I prefer {canary} tea over coffee.", NOON)]
    producers.ingest_session(NS, said)
    drive()
    graph.mirror_interests()
    [[point]] = fetch_all("SELECT id FROM interest_points")
    accepted = producers.forget_interests(NS.bank, [point])
    receipt = forgotten(accepted)
    assert (receipt.counts["interests"], receipt.ids["interests"]) == (1, [str(point)])
    assert producers.interests(NS.bank) == []
    tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'public' AND tablename ~ '^(interest|graph)'"
    for (table,) in fetch_all(tables):
        assert canary not in str(fetch_all(f"SELECT t::text FROM {table} AS t")), table  # type: ignore[arg-type]
    assert canary in everything(client), "the record that it was read from stays"
    forgotten(producers.forget(NS))
    assert canary not in everything(client)


def test_an_interest_that_is_found_again_meanwhile_does_not_keep_its_erasure_from_its_end(canary: str) -> None:
    said = TranscriptLine(1, "atlas", "s1", None, "user", f"I prefer {canary} tea over coffee.", NOON)
    producers.ingest_session(NS, [said])
    drive()
    [[point]] = fetch_all("SELECT id FROM interest_points")
    accepted = producers.forget_interests(NS.bank, [point])
    producers.ingest_session(NS, [replace(said, number=2, time=NOON + timedelta(days=1))])
    drive()
    assert fetch_all("SELECT id FROM interest_points") == [(point,)]
    assert forgotten(accepted).counts["interests"] == 1


def test_the_command_forgets_one_object_and_one_interest(canary: str) -> None:
    put(canary)
    drive()
    done = isotherm("forget", "--agent", "atlas", "--object", str(ONE), "--yes", "--no-wait", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"]["objects"] == 2
    for wrong in (["--object", "x"], ["--object", str(ONE), "--session", "s1"], ["--object", str(ONE), "record"],
                  ["--object", str(ONE), "--interest", str(ONE)]):  # fmt: skip
        assert isotherm("forget", "--agent", "atlas", "--yes", *wrong).returncode == 1
    done = isotherm("forget", "--agent", "atlas", "--interest", str(ONE), "--yes", "--no-wait", "--json")
    assert json.loads(done.stdout)["counts"] == {}
    drive()
