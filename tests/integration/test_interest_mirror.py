"""Interests in the graph: what changes is brought there, what differs is found and repaired, what is forgotten is gone."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hash_embedder import HashEmbedder
from inprocess import drive
from sessions import ATLAS, ingest, session
from typer.testing import CliRunner

from isotherm.pipeline.brain.graph_port import Direction, GraphNode, GraphPort, Tombstone
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.errors import UnavailableError
from isotherm.storage import brain_mirror, interest_mirror
from isotherm.storage.brain_mirror import Drift
from isotherm.storage.graph import helix_client
from isotherm.storage.graph.memory import MemoryGraph
from isotherm.storage.models import factory
from isotherm.storage.postgres import interest_mirror as rows
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import graph, produce_forget, produce_interest
from isotherm.tasks.cli import app

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.pipeline.brain.drift import Holding
    from isotherm.storage.opened import Storage

WAITING = "SELECT count(*) FROM interest_mirror WHERE mirrored < revision"


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture(params=["memory", "postgres", "helix"])
def port(
    request: pytest.FixtureRequest, memory: Storage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[GraphPort]:
    """The graph in use."""
    factory.use_embedder(memory.settings, HashEmbedder())
    if request.param == "memory":
        monkeypatch.setattr(memory.brain, "_graph", MemoryGraph())
    if request.param == "helix":
        pytest.importorskip("helixdb_uniffi", reason="needs the extra helix")
        helix_client.own_embedded()
        module = importlib.import_module("isotherm.storage.graph.helix")
        monkeypatch.setattr(memory.brain, "_graph", module.HelixGraph(helix_client.EmbeddedClient(tmp_path)))
    yield memory.brain.graph
    if request.param == "helix":
        memory.brain.graph.close()  # type: ignore[attr-defined]
    factory._made.forget()


def run(name: str, *said: str, day: int = 0) -> UUID:
    operation_id = ingest(session(name, *said, day=day))
    drive(operation_id)
    return operation_id


def bank_id() -> int:
    [(found,)] = fetch_all("SELECT id FROM banks WHERE agent = 'atlas'")
    return int(found)


def truth() -> Holding:
    with connection() as conn:
        return rows.held(conn, bank_id(), range(256))


def agrees(port: GraphPort) -> bool:
    same = port.held(rows.graph_of(bank_id()), range(256)) == truth()
    return same and interest_mirror.compare(port, bank_id()) == Drift()


def test_points_and_edges_follow_every_change_and_a_repeated_tick_writes_nothing(port: GraphPort) -> None:
    run("s1", "I love dark mode.", "I love sea kayaking.")
    assert not agrees(port)
    counts = graph.mirror_interests()
    assert counts["nodes"] == 2
    assert (agrees(port), fetch_all(WAITING)) == (True, [(0,)])
    assert graph.mirror_interests() == {"nodes": 0, "edges": 0}
    run("s2", "I prefer light mode now.", day=1)
    graph.mirror_interests()
    assert agrees(port)
    [tension] = produce_interest.contradictions(ATLAS)
    left, right = tension.left.interest.id, tension.right.interest.id
    [step] = port.neighbors(rows.graph_of(bank_id()), [left], ["contradicts"], Direction.BOTH)
    assert step.peer == right
    found = port.search_text(rows.graph_of(bank_id()), "kayaking", 5) if port.object_search else []
    assert len(found) == (1 if port.object_search else 0)


def test_what_differs_is_found_repaired_and_rebuilt(port: GraphPort) -> None:
    run("s1", "I love dark mode.", "I love sea kayaking.", "I prefer light mode.")
    graph.mirror_interests()
    name = rows.graph_of(bank_id())
    point, *_ = truth().nodes
    stranger = UUID(int=7)
    port.discard(name, [point], list(truth().edges))
    port.upsert(name, [GraphNode(stranger, 1, "interest", "stranger")], [])
    found = interest_mirror.compare(port, bank_id())
    assert (found.nodes, found.edges, found.discarded) == (2, len(truth().edges), 1)
    assert interest_mirror.repair(port, bank_id()) == found
    assert agrees(port)
    port.remove(name, [Tombstone(point, 99)])
    with connection() as conn:
        conn.execute("UPDATE interest_banks SET compared_at = NULL")
    assert graph.drift()["discarded"] == 1
    assert agrees(port)
    interest_mirror.rebuild(port, bank_id())
    assert agrees(port)


def test_while_the_graph_is_away_changes_wait(port: GraphPort, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise UnavailableError("the graph is away")

    run("s1", "I love sea kayaking.")
    with monkeypatch.context() as patch:
        patch.setattr(brain_mirror, "apply", away)
        graph.mirror_interests()  # the tick is over, the next one tries again
    assert fetch_all(WAITING) != [(0,)]
    graph.mirror_interests()
    assert agrees(port)


def test_what_is_forgotten_is_gone_from_the_graph(port: GraphPort) -> None:
    run("s1", "I love sea kayaking.")
    run("s2", "I love rye bread.", day=1)
    graph.mirror_interests()
    name = rows.graph_of(bank_id())
    assert len(port.revisions(name)) == 2
    drive(produce_forget.forget_session(ATLAS, "s1").operation_id)
    graph.mirror_interests()
    assert len(port.revisions(name)) == 1
    assert agrees(port)
    drive(produce_forget.forget_agent(ATLAS).operation_id)
    assert port.revisions(name) == {}
    assert name not in port.namespaces()


def test_an_edge_that_is_gone_is_gone_from_the_graph(port: GraphPort) -> None:
    run("s1", "I love dark mode.", "I prefer light mode.")
    graph.mirror_interests()
    with connection() as conn:
        gone = conn.execute("DELETE FROM interest_edges RETURNING source_id, target_id, kind").fetchall()
    graph.mirror_interests()
    held = port.held(rows.graph_of(bank_id()), range(256)).edges
    assert gone
    assert all(held[EdgeKey(source, target, kind)].gone for source, target, kind in gone)
    assert agrees(port)


def test_commands_show_compare_and_rebuild_the_graph_of_interests(memory: Storage) -> None:
    factory.use_embedder(memory.settings, HashEmbedder())
    run("s1", "I love sea kayaking.")
    found = CliRunner().invoke(app, ["graph", "drift", "--no-repair", "--json"])
    assert found.exit_code == 4
    [line] = json.loads(found.stdout)
    assert (line["of"], line["objects"], line["different_objects"]) == ("interests", 1, 1)
    [line] = json.loads(CliRunner().invoke(app, ["graph", "drift", "-a", "atlas", "--json"]).stdout)
    assert line["different_objects"] == 1
    [bank] = json.loads(CliRunner().invoke(app, ["graph", "status", "--json"]).stdout)["interests"]
    assert bank["repaired_points"] == 1
    [line] = json.loads(CliRunner().invoke(app, ["graph", "rebuild", "-a", "atlas", "--json"]).stdout)
    assert line["different_objects"] == 1
    [bank] = json.loads(CliRunner().invoke(app, ["graph", "status", "--json"]).stdout)["interests"]
    assert (bank["agent"], bank["points"], bank["repaired_points"]) == ("atlas", 1, 0), "a rebuild is no fault"
    factory._made.forget()
