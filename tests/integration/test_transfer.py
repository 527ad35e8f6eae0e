"""Memory listed, explained, and taken from one database to another: equal bytes for equal memories."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import psycopg
import pytest
from inprocess import drive, run_pass
from tiering import LONG, NS, accessed, archive, policy, store

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.portable import read_line
from isotherm.pipeline.tier.records import Reason, Tier
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage

pytestmark = pytest.mark.usefixtures("memory")

EMPTY = """DO $$ DECLARE t text; BEGIN
    SET LOCAL session_replication_role = replica;
    FOR t IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'schema_migrations' LOOP
        EXECUTE format('DELETE FROM %I', t);
    END LOOP; END $$"""


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def a_memory_of_many_kinds() -> None:
    store(("hot", timedelta(hours=1)), role="user", metadata={"z": 1.0, "a": {"ü": [None, 2**70, "\u2028"]}})
    store(("pinned", timedelta(hours=2)), pinned=True, categories=("b", "a"))
    store(("warm", timedelta(days=3)), tier=Tier.WARM)
    store(("cold", timedelta(days=9)), ("whole", timedelta(days=9)), tier=Tier.WARM, content="kelp")
    producers.update(NS, "cold", content=LONG + "é")
    store(("big", timedelta(days=9)), tier=Tier.WARM, content=random.Random(7).randbytes(40_000).hex())
    for namespace in (Namespace.of("atlas"), Namespace.of("atlas", "s1", "audit", run="r9"), Namespace.of("zoe", "s1")):
        producers.remember(namespace, "elsewhere", record_id="hot", time=datetime.now(UTC) - timedelta(hours=3))
    accessed("warm", 2)
    drive()
    for _ in range(2):
        run_pass(NS, policy(demote_idle=timedelta(days=5), cooldown=None))
    with connection() as conn:
        conn.execute(
            "UPDATE tier_records SET last_access_at = now() - interval '9 days' WHERE id IN ('cold', 'whole', 'big')"
        )
    run_pass(NS, policy(demote_idle=timedelta(days=5)))


def test_what_is_exported_and_imported_is_exported_with_the_same_bytes(memory: Storage) -> None:
    a_memory_of_many_kinds()
    lines = list(producers.export(None))
    tiers = {(json.loads(line)["id"], json.loads(line)["tier"]) for line in lines}
    assert {("cold", "cold"), ("whole", "cold"), ("big", "cold"), ("warm", "warm"), ("hot", "hot")} <= tiers
    assert fetch_all("SELECT count(*) FROM cold_bodies WHERE blob_id IS NOT NULL") == [(1,)]
    with connection() as conn:
        conn.execute(EMPTY)
    namespaces.forget_places()
    records = [read_line(line.encode()) for line in lines]
    for agent in ("atlas", "zoe"):
        mine = [r for r in records if r.agent == agent]
        assert producers.import_records(mine).written == len(mine)
    assert list(producers.export(None)) == lines
    drive()
    assert list(producers.export(None)) == lines
    for agent in ("atlas", "zoe"):
        assert producers.import_records([r for r in records if r.agent == agent]).written == 0
    assert list(producers.export(None)) == lines
    # What came in is found and restored like what was there before.
    assert memory.tier.original(NS, "big") == next(r.content for r in records if r.id == "big")
    producers.restore(NS, ["cold"])
    drive()
    assert producers.get(NS, "cold").content == LONG + "é"


def test_an_import_leaves_what_is_there_alone(memory: Storage) -> None:
    store(("a", timedelta(hours=1)), content="old")
    [line] = producers.export(NS)
    producers.update(NS, "a", content="newer")
    assert producers.import_records([read_line(line.encode())]).written == 0
    assert memory.tier.get(NS, "a").content == "newer"
    drive()


def test_an_export_names_what_it_covers_and_nothing_else() -> None:
    for namespace in (NS, Namespace.of("atlas", "s2"), Namespace.of("zoe"), Namespace.of("atlas", "s1", tenant="acme")):
        producers.remember(namespace, f"of {namespace.label}", record_id="a")
    drive()

    def covered(lines: object) -> list[tuple[str | None, str, str | None]]:
        return [(r["tenant"], r["agent"], r["session"]) for r in map(json.loads, lines)]  # type: ignore[arg-type]

    assert covered(producers.export(NS)) == [(None, "atlas", "s1")]
    assert covered(producers.export(NS.bank)) == [(None, "atlas", "s1"), (None, "atlas", "s2")]
    assert covered(producers.export(None)) == [(None, "atlas", "s1"), (None, "atlas", "s2"), (None, "zoe", None)]
    assert covered(producers.export(None, tenant="acme")) == [("acme", "atlas", "s1")]
    assert covered(producers.export(None, tenant="nobody")) == []
    assert covered(producers.export(NS.bank, session="s2")) == [(None, "atlas", "s2")]


def test_a_damaged_body_is_a_line_without_content_that_no_import_takes() -> None:
    store(("a", timedelta(days=9)), tier=Tier.WARM, content=LONG)
    archive("a")
    with connection() as conn:
        conn.execute("UPDATE cold_bodies SET body = 'x'")
    [line] = producers.export(NS)
    assert json.loads(line)["content"] is None
    with pytest.raises(RejectedError, match="content"):
        read_line(line.encode())


@pytest.mark.parametrize(
    ("change", "named"),
    [({"content": "other"}, "hash"), ({"tier": "cold"}, "summary"), ({"importance": 2}, "importance"),
     ({"agent": " "}, "agent"), ({"created_at": "2026-01-01T00:00:00"}, "created_at"), ({"extra": 1}, "extra"),
     ({"access_count": 3}, "heat"), ({"value_log": None}, "value_log"), ({"format": "isotherm.record/2"}, "format")],
)  # fmt: skip
def test_a_wrong_line_is_refused_by_the_name_of_the_field(change: dict[str, object], named: str) -> None:
    store(("a", timedelta(hours=1)), content="xyzzy-secret")
    [line] = producers.export(NS)
    with pytest.raises(RejectedError, match=named) as refused:
        read_line(json.dumps({**json.loads(line), **change}).encode())
    assert "xyzzy" not in str(refused.value)


def test_pages_hold_every_record_once_in_order(memory: Storage) -> None:
    same = datetime.now(UTC) - timedelta(hours=1)
    for n in range(25):
        producers.remember(NS, f"note {n}", record_id=f"r{n:02}", time=same + timedelta(seconds=n // 5))
    producers.remember(Namespace.of("atlas", "s2"), "elsewhere", record_id="x")
    drive()
    seen: list[str] = []
    after = None
    while True:
        page = producers.list_all(NS, after=after, limit=4)
        seen += [r.id for r in page.records]
        after = page.next
        if after is None:
            break
    assert seen == [f"r{n:02}" for n in range(25)]
    assert len(producers.list_all(NS.bank).records) == 26
    assert len(producers.list_all(NS.bank, sessions=["s2"]).records) == 1
    assert producers.list_all(NS, tier=Tier.COLD).records == ()
    assert producers.list_all(Namespace.of("nobody")).records == ()
    for wrong in ({"limit": 0}, {"after": "nonsense"}):
        with pytest.raises(RejectedError):
            producers.list_all(NS, **wrong)  # type: ignore[arg-type]
    assert memory.tier.tail(NS)


def test_namespaces_come_in_pages_and_those_that_were_forgotten_do_not() -> None:
    wanted = [
        Namespace.of("atlas"),
        Namespace.of("atlas", "s1", "audit"),
        NS,
        Namespace.of("atlas", "s1", run="r"),
        Namespace.of("zoe"),
    ]
    for namespace in (*reversed(wanted), Namespace.of("atlas", tenant="acme")):
        producers.remember(namespace, "note")
    drive()
    listed: list[Namespace] = []
    while page := producers.list_namespaces(None, after=listed[-1] if listed else None, limit=2):
        listed += page
    assert listed == wanted
    assert producers.list_namespaces("acme") == [Namespace.of("atlas", tenant="acme")]
    assert producers.list_namespaces(None, "zoe") == [Namespace.of("zoe")]
    producers.forget(Namespace.of("zoe"))
    assert producers.list_namespaces(None, "zoe") == []
    drive()


def test_a_record_is_explained_by_its_moves_its_place_and_what_a_pass_would_do() -> None:
    store(*[(i, timedelta(hours=n)) for n, i in enumerate("abc", 1)])
    told = producers.explain(NS, "c", policy=policy(hot_capacity=2), query="kelp")
    assert told.next_move is not None
    assert (told.next_move.target, told.next_move.reason) == (Tier.WARM, Reason.CAPACITY)
    assert (told.weaker, told.capacity, told.moves) == (0, 2, ())
    assert told.rating is not None
    assert told.rating.of == 3
    assert told.rating.score is not None
    assert told.rating.score.overlap > 0
    run_pass(NS, policy(hot_capacity=2))
    after = producers.explain(
        NS, "c", policy=policy(hot_capacity=2, warm_ttl=timedelta(days=1), cooldown=timedelta(hours=1))
    )
    assert [(m.source, m.target, m.reason) for m in after.moves] == [(Tier.HOT, Tier.WARM, "capacity")]
    assert (after.next_move, after.rating) == (None, None)
    assert after.leaves_at == after.record.last_access_at + timedelta(days=1)
    assert after.held_until is not None
    assert producers.get(NS, "c").access_count == 0
    with pytest.raises(RejectedError):
        producers.explain(Namespace.of("atlas", "s2"), "c")


def test_the_whole_text_of_a_cold_record_is_read_where_it_is() -> None:
    store(("a", timedelta(days=9)), tier=Tier.WARM, content=LONG)
    archive("a")
    assert producers.get(NS, "a").content is None
    record = producers.get(NS, "a", whole=True)
    assert (record.content, record.tier) == (f"{LONG} a", Tier.COLD)


def test_pages_stay_on_their_index_at_any_size(dsn: str) -> None:
    producers.remember(NS, "note")
    drive()
    [[ns, bank]] = fetch_all("SELECT id, bank_id FROM namespaces")
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            """INSERT INTO tier_records (namespace_id, bank_id, id, content, content_sha256, importance, tier, value_log,
                   created_at, last_access_at, size_bytes, indexed)
               SELECT %s, %s, 'r' || n, 'x', sha256('x'), 0.5, 2, 0, now() - n * interval '1 s', now(), 1, true
               FROM generate_series(1, 20000) AS n""",
            (ns, bank),
        )
        conn.execute("ANALYZE tier_records")
        plan = conn.execute(
            """EXPLAIN SELECT r.id FROM tier_records AS r WHERE r.namespace_id = %s
               AND (r.created_at, r.id) > (now() - interval '1 h', 'r'::text COLLATE "C") ORDER BY r.created_at, r.id LIMIT 100""",
            (ns,),
        ).fetchall()
    assert "tier_records_newest" in str(plan)
    assert "Seq Scan" not in str(plan)
    assert fetch_all("SELECT count(*) FROM tier_records WHERE bank_id = %(b)s", {"b": bank}) == [(20_001,)]
    with connection() as conn:
        conn.execute("DELETE FROM tier_records")
        conn.execute("DELETE FROM tier_postings")
