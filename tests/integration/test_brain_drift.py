"""The graph is a copy: it follows every write whatever happens on the way, and can be compared, repaired and rebuilt."""

from __future__ import annotations

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from brain_kit import KNOWLEDGE, OTHER, check_brain, new, settle, uid
from hash_embedder import HashEmbedder
from inprocess import STAGES, drive
from typer.testing import CliRunner

from isotherm.pipeline import stages
from isotherm.pipeline.brain.graph_port import EdgeTombstone, GraphEdge, GraphNode, GraphPort, Tombstone
from isotherm.pipeline.brain.index_text import entity_index_text
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage import brain_mirror, health
from isotherm.storage.brain_mirror import Drift
from isotherm.storage.graph.memory import MemoryGraph
from isotherm.storage.graph.postgres import PostgresGraph
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_drift, namespaces
from isotherm.storage.postgres.brain_mirror import projection
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import brain, graph, producers
from isotherm.tasks.cli import app
from isotherm.tasks.produce_brain import expand, link, put_many, soft_delete, unlink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from isotherm.pipeline.brain.drift import Holding
    from isotherm.storage.opened import Storage

NAME = namespace_uuid(KNOWLEDGE)
OPEN = "SELECT count(*) FROM operation_steps WHERE state IN ('pending', 'running')"


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture(params=["memory", "postgres"])
def port(request: pytest.FixtureRequest, memory: Storage, monkeypatch: pytest.MonkeyPatch) -> Iterator[GraphPort]:
    """The graph in use."""
    factory.use_embedder(memory.settings, HashEmbedder())
    if request.param == "memory":
        monkeypatch.setattr(memory.brain, "_graph", MemoryGraph())
    yield memory.brain.graph
    factory._made.forget()
    check_brain()


class Faulty:
    """A graph that a test takes away, or breaks once in the middle of a write."""

    def __init__(self, graph: GraphPort) -> None:
        self._graph = graph
        self.away = False
        self.killed = 0

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._graph, name)
        if not callable(found):
            return found

        def call(*args: Any, **more: Any) -> Any:
            if self.away:
                raise UnavailableError("the graph is away")
            done = found(*args, **more)
            if name in {"upsert", "take"} and self.killed:
                self.killed -= 1
                raise SystemExit(1)  # the runner ends between the write and its receipt
            return done

        return call


def namespace_id() -> int:
    place = namespaces.find(KNOWLEDGE)
    assert place is not None
    return place.namespace_id


def truth() -> Holding:
    with connection() as conn:
        return brain_drift.held(conn, namespace_id(), range(256))


def in_step(port: GraphPort) -> bool:
    return brain_mirror.compare(port, namespace_id(), NAME) == Drift() and port.held(NAME, range(256)) == truth()


def writes(seed: int, mine: range) -> None:
    """Puts, deletes and links of one caller among objects of its own, and links to those of others."""
    dice = random.Random(seed)
    put_many(KNOWLEDGE, [new(n, f"o{n}") for n in mine])
    for turn in range(30):
        one, other = dice.choice(mine), dice.choice(mine)
        try:
            match dice.randrange(5):
                case 0 | 1:
                    put_many(KNOWLEDGE, [new(n, f"o{n} {turn}", properties={"turn": turn}) for n in (one, other)])
                case 2:
                    link(KNOWLEDGE, uid(one), uid(other), dice.choice(["about", "owns"]), note=f"note {turn}")
                case 3:
                    unlink(KNOWLEDGE, uid(one), uid(other), "about")
                case _:
                    soft_delete(KNOWLEDGE, uid(one))
        except RejectedError:
            continue  # it is not there now


def run_all(dice: random.Random) -> None:
    """Deliver every message twice and in any order, as a broker may, until nothing waits."""
    ready = """SELECT s.id, s.operation_id, o.trace_id, s.stage FROM operation_steps AS s
               JOIN operations AS o ON o.id = s.operation_id"""
    for _ in range(200):
        if fetch_all(OPEN) == [(0,)]:
            return
        rows = fetch_all(f"{ready} WHERE s.state = 'pending' AND s.not_before <= now()") * 2
        dice.shuffle(rows)
        for step_id, operation, trace, stage in rows:
            payload = {"step_id": step_id, "operation_id": str(operation), "trace_id": str(trace)}
            try:
                STAGES[stage](payload)
            except SystemExit:
                continue
    raise AssertionError("steps do not end")


def test_brain_weak_07_the_graph_is_in_step_after_it_was_away_and_runners_were_lost(
    port: GraphPort, memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty = Faulty(port)
    monkeypatch.setattr(memory.brain, "_graph", faulty)
    monkeypatch.setattr(brain, "TOGETHER", 7)
    put_many(KNOWLEDGE, [new(999, "first")])
    dice, done = random.Random(5), threading.Event()

    def mirror() -> None:
        while not done.is_set():
            faulty.away = not faulty.away
            faulty.killed += 1
            rows = fetch_all("""SELECT s.id, s.operation_id, o.trace_id, s.stage FROM operation_steps AS s
                                JOIN operations AS o ON o.id = s.operation_id WHERE s.state = 'pending' LIMIT 5""")
            for step_id, operation, trace, stage in rows:
                payload = {"step_id": step_id, "operation_id": str(operation), "trace_id": str(trace)}
                try:
                    STAGES[stage](payload)
                except SystemExit:
                    continue

    runner = threading.Thread(target=mirror)
    runner.start()
    with ThreadPoolExecutor(4) as callers:
        list(callers.map(writes, range(4), [range(20 * n + 1, 20 * n + 21) for n in range(4)]))
    done.set()
    runner.join()
    faulty.away, faulty.killed = False, 2
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now() WHERE state = 'pending'")
    run_all(dice)
    assert fetch_all("SELECT DISTINCT state FROM operations") == [("done",)]
    assert in_step(port)
    properties(port)
    before = port.held(NAME, range(256))
    assert brain_mirror.rebuild(port, namespace_id(), NAME).discarded == 0
    assert port.held(NAME, range(256)) == before
    properties(port)


def properties(port: GraphPort) -> None:
    """What can be seen of objects and edges in the graph is what their rows say."""
    rows = fetch_all("""SELECT id, title, summary, content, properties, vector IS NOT NULL FROM brain_objects
                        WHERE parent_id IS NULL AND deleted_at IS NULL""")
    embedder = HashEmbedder()
    for key, title, summary, content, said, has_vector in rows:
        words = entity_index_text(title, summary, content, said)
        assert key in {hit.id for hit in port.search_text(NAME, words, 1_000)}
        assert has_vector
        near = port.search_vector(NAME, [float(x) for x in embedder.embed([words])[0]], embedder.model, 1)
        assert near[0].score == pytest.approx(1, abs=0.01)
    edges = fetch_all("""SELECT e.source, e.target, e.label, e.note FROM brain_edges AS e WHERE e.deleted_at IS NULL
        AND NOT EXISTS (SELECT 1 FROM brain_objects AS o WHERE o.id IN (e.source, e.target) AND o.deleted_at IS NOT NULL)""")
    seen = {n.key for n in port.neighbors(NAME, [row[0] for row in rows], limit=1_000)}
    assert seen == {EdgeKey(source, target, label) for source, target, label, _ in edges}
    for source, target, label, note in edges:
        hits = {hit.key for hit in port.search_edges(NAME, label, note, 1_000)}
        assert EdgeKey(source, target, label) in hits


def test_a_node_taken_from_the_row_beside_it_is_the_one_that_is_carried(memory: Storage) -> None:
    factory.use_embedder(memory.settings, HashEmbedder())
    text = "kelp and kelp and otters, 海藻とラッコ"
    put_many(KNOWLEDGE, [new(n, f"o{n}", text, properties={"depth": n}) for n in range(1, 5)])
    put_many(KNOWLEDGE, [new(5, "long", "sea urchins and kelp. " * 200), new(6, "6"), new(7, "part", text, parent=1)])
    soft_delete(KNOWLEDGE, uid(2))
    soft_delete(KNOWLEDGE, uid(3))
    put_many(KNOWLEDGE, [new(3, "back", text)])
    settle()
    with connection() as conn:  # as a row that was there before
        conn.execute("UPDATE brain_objects SET counts = NULL WHERE id = %s", (uid(4),))
    rows = "SELECT * FROM graph_nodes ORDER BY id"
    graph = PostgresGraph()
    brain_mirror.rebuild(graph, namespace_id(), NAME)
    taken = fetch_all(rows)
    graph.clear(NAME)
    with connection() as conn:
        wanted = projection(conn, namespace_id(), [uid(n) for n in range(1, 8)])
    assert wanted is not None
    brain_mirror.apply(graph, wanted)
    assert len(taken) == 6
    assert taken == fetch_all(rows)
    factory._made.forget()
    check_brain()


def watched(port: GraphPort, monkeypatch: pytest.MonkeyPatch, told: Callable[[list[UUID]], None]) -> None:
    """Tell which nodes are about to be written, by rows or from the rows beside the graph."""
    upsert, take = port.upsert, getattr(port, "take", None)

    def by_rows(namespace: UUID, nodes: list[GraphNode], edges: list[GraphEdge]) -> Any:
        told([node.id for node in nodes])
        return upsert(namespace, nodes, edges)

    def beside(namespace: UUID, namespace_id: int, ids: list[UUID]) -> Any:
        told(ids)
        return take(namespace, namespace_id, ids)

    monkeypatch.setattr(port, "upsert", by_rows)
    if take is not None:
        monkeypatch.setattr(port, "take", beside)


def test_writes_that_wait_go_together_and_an_object_goes_once(port: GraphPort, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(1, 31):
        put_many(KNOWLEDGE, [new(1, f"title {n}")])
    asked: list[UUID] = []
    watched(port, monkeypatch, asked.extend)
    drive()
    # Once for the words, and once for the vector of the last title.
    assert len(asked) <= 3
    assert in_step(port)
    assert fetch_all("SELECT DISTINCT state FROM operations") == [("done",)]


def test_a_step_that_breaks_its_runner_takes_no_other_with_it(port: GraphPort, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = put_many(KNOWLEDGE, [new(1, "bad")])
    good = [put_many(KNOWLEDGE, [new(n, "good")]) for n in range(2, 6)]

    def breaking(ids: list[UUID]) -> None:
        if uid(1) in ids:
            raise ValueError("a bug")

    watched(port, monkeypatch, breaking)
    for _ in range(20):
        if fetch_all(OPEN) == [(0,)]:
            break
        with connection() as conn:
            conn.execute("UPDATE operation_steps SET not_before = now() WHERE state = 'pending'")
        for step_id, operation, trace, stage in fetch_all(
            """SELECT s.id, s.operation_id, o.trace_id, s.stage FROM operation_steps AS s
               JOIN operations AS o ON o.id = s.operation_id WHERE s.state = 'pending' ORDER BY s.id"""
        ):
            STAGES[stage]({"step_id": step_id, "operation_id": str(operation), "trace_id": str(trace)})
    states = [producers.operation(each.operation_id).state for each in good]
    assert states == ["done"] * 4
    assert producers.operation(bad.operation_id).state in {"dead", "partial"}
    assert set(port.revisions(NAME)) == {uid(n) for n in range(2, 6)}


def test_brain_weak_01_what_differs_is_found_and_repaired_and_no_time_of_an_object_changes(port: GraphPort) -> None:
    put_many(KNOWLEDGE, [new(n, f"o{n}") for n in range(1, 9)])
    link(KNOWLEDGE, uid(1), uid(2), "about")
    link(KNOWLEDGE, uid(2), uid(3), "about")
    settle()
    assert in_step(port)
    times = fetch_all("SELECT id, updated_at, revision FROM brain_objects ORDER BY id")
    port.discard(NAME, [uid(1)], [EdgeKey(uid(1), uid(2), "about")])  # lost
    port.upsert(NAME, [GraphNode(uid(2), 90, "note", "from the future"), GraphNode(uid(77), 1, "note", "alone")],
                [GraphEdge(EdgeKey(uid(4), uid(5), "about"), 1)])  # fmt: skip
    port.remove(NAME, [Tombstone(uid(3), 90)], [EdgeTombstone(EdgeKey(uid(2), uid(3), "about"), 90)])
    wanted = Drift(nodes=4, edges=3, discarded=5)
    assert brain_mirror.compare(port, namespace_id(), NAME) == wanted
    told: list[int] = []
    assert brain_mirror.repair(port, namespace_id(), NAME, told=told.append) == wanted
    assert told[-1] == 256
    assert in_step(port)
    assert fetch_all("SELECT id, updated_at, revision FROM brain_objects ORDER BY id") == times
    assert fetch_all("SELECT nodes, edges FROM brain_drift") == [(4, 3)]
    assert len(expand(KNOWLEDGE, uid(2), ["about"]).items) == 2


def test_a_tick_repairs_what_is_due_and_empties_the_graphs_of_namespaces_that_are_gone(
    port: GraphPort, memory: Storage
) -> None:
    put_many(KNOWLEDGE, [new(1, "one")])
    put_many(OTHER, [new(1, "one")])
    settle()
    assert graph.drift() == {"namespaces": 2, "nodes": 0, "edges": 0, "discarded": 0}
    port.clear(NAME)
    stranger = namespace_uuid(OTHER).__class__(int=5)
    port.upsert(stranger, [GraphNode(uid(1), 1)], [])
    assert graph.drift()["namespaces"] == 0, "they were compared a moment ago"
    assert stranger not in port.namespaces()
    assert NAME not in port.namespaces()
    with connection() as conn:
        conn.execute("UPDATE brain_drift SET checked_at = checked_at - %s", (memory.settings.drift_every,))
    assert graph.drift() == {"namespaces": 2, "nodes": 1, "edges": 0, "discarded": 0}
    assert in_step(port)


def test_a_tick_waits_for_a_graph_that_is_away(
    port: GraphPort, memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_many(KNOWLEDGE, [new(1, "one")])
    faulty = Faulty(port)
    faulty.away = True
    monkeypatch.setattr(memory.brain, "_graph", faulty)
    assert graph.drift() == {"state": "postponed"}


def test_brain_w11_a_caller_may_wait_until_the_graph_has_a_write(port: GraphPort) -> None:
    stored = put_many(KNOWLEDGE, [new(1, "one")])
    with pytest.raises(graph.MirrorLateError, match="not in the graph yet"):
        graph.wait_mirrored(stored.operation_id, timedelta(seconds=0.05))
    runner = threading.Timer(0.05, settle)
    runner.start()
    graph.wait_mirrored(stored.operation_id, timedelta(seconds=20))
    assert uid(1) in port.revisions(NAME)
    runner.join()
    over = threading.Event()

    def keep_settling() -> None:
        while not over.wait(0.05):
            settle()

    runner = threading.Thread(target=keep_settling)
    runner.start()
    put_many(KNOWLEDGE, [new(3, "three")], wait_mirrored=timedelta(seconds=20))
    assert uid(3) in port.revisions(NAME)
    over.set()
    runner.join()
    for late in (
        lambda within: link(KNOWLEDGE, uid(1), uid(3), "about", wait_mirrored=within),
        lambda within: unlink(KNOWLEDGE, uid(1), uid(3), "about", wait_mirrored=within),
        lambda within: soft_delete(KNOWLEDGE, uid(3), wait_mirrored=within),
    ):
        with pytest.raises(graph.MirrorLateError):
            late(timedelta(seconds=0.02))
    assert expand(KNOWLEDGE, uid(1), ["about"]).items == (), "all of it was stored"
    settle()
    cancelled = put_many(KNOWLEDGE, [new(2, "two")])
    producers.cancel(cancelled.operation_id)
    with pytest.raises(graph.MirrorError, match="is cancelled"):
        graph.wait_mirrored(cancelled.operation_id)


def test_a_mirror_that_is_retried_waits_without_end_again(port: GraphPort) -> None:
    stored = put_many(KNOWLEDGE, [new(1, "one")])
    producers.cancel(stored.operation_id)
    assert producers.retry(stored.operation_id) == 3
    rows = fetch_all("SELECT stage, retry_until > now() + interval '10 years' FROM operation_steps ORDER BY stage")
    assert rows == [(stages.BRAIN_EMBED, False), (stages.BRAIN_MENTION, False), (stages.BRAIN_MIRROR, True)]
    settle()
    assert in_step(port)


def test_the_command_shows_repairs_and_rebuilds(port: GraphPort) -> None:
    put_many(KNOWLEDGE, [new(n, f"o{n}") for n in range(1, 4)])
    link(KNOWLEDGE, uid(1), uid(2), "about")
    call = CliRunner().invoke
    status = json.loads(call(app, ["graph", "status", "--json"]).stdout)
    assert (status["graph"], status["waiting"]) == ("postgres", 2)
    assert call(app, ["graph", "drift", "--no-repair"]).exit_code == 4
    [line] = json.loads(call(app, ["graph", "drift", "--agent", "atlas", "--json"]).stdout)
    assert (line["objects"], line["different_objects"], line["different_edges"]) == (3, 3, 1)
    settle()
    assert call(app, ["graph", "drift", "--no-repair"]).exit_code == 0
    [line] = json.loads(call(app, ["graph", "rebuild", "--json"]).stdout)
    assert (line["different_objects"], line["different_edges"], line["discarded"]) == (3, 1, 0)
    assert in_step(port)
    [known] = json.loads(call(app, ["graph", "status", "--json"]).stdout)["namespaces"]
    assert (known["repaired_objects"], known["repaired_edges"]) == (0, 0), "a rebuild is no fault"
    with connection() as conn:
        assert health.drift(conn).differing == 0
    shown = call(app, ["graph", "status"]).stdout
    assert "atlas" in shown
    assert call(app, ["graph", "drift", "--agent", "nobody"]).exit_code == 1
