"""What only a graph engine that one process owns can do wrong."""

from __future__ import annotations

import importlib
import multiprocessing
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from isotherm.pipeline.brain.graph_port import EdgeTombstone, GraphEdge, GraphNode, Tombstone
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage.graph import helix_client
from isotherm.storage.graph.factory import graph_of
from isotherm.storage.graph.memory import MemoryGraph
from isotherm.storage.graph.pair import PairGraph
from isotherm.storage.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NS = UUID(int=100)
A, B = UUID(int=1), UUID(int=2)
KEY = EdgeKey(A, B, "about")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Any]:
    pytest.importorskip("helixdb_uniffi", reason="needs the extra helix")
    helix_client.own_embedded()
    module = importlib.import_module("isotherm.storage.graph.helix")
    found = module.HelixGraph(helix_client.EmbeddedClient(tmp_path / "helix"))
    yield found
    found.close()


def rows(engine: Any, step: Any) -> list[dict[str, Any]]:
    dsl = importlib.import_module("helixdb.dsl")
    found: list[dict[str, Any]] = engine.client.send(dsl.read_batch().var_as("r", step).returning(["r"]))["r"]
    return found


def every_node(engine: Any) -> list[dict[str, Any]]:
    return rows(engine, importlib.import_module("helixdb.dsl").g().n_with_label("Object").value_map(None))


def test_brain_h1_weak_08_a_node_is_written_once_and_what_it_has_no_more_is_gone(engine: Any) -> None:
    node = GraphNode(
        A, 1, "Deal", "t", "s", "words", {"stage": "won", "n": 3, "list": [1]}, vector=(1.0, 0), vector_model="m"
    )
    engine.upsert(NS, [node], [GraphEdge(EdgeKey(B, A, "about"), 1, {"note": "n", "role": "r"})])
    engine.upsert(NS, [GraphNode(A, 2, "Deal", "t", properties={"n": 4})], [])
    [found] = [row for row in every_node(engine) if row["object_id"] == str(A)]
    assert (found["kind"], found["title"], found["user_n"], found["revision"]) == ("Deal", "t", 4, 2)
    assert not {"parent_id", "summary", "search_text", "user_stage", "user_list"} & found.keys()
    assert not [name for name in found if name.startswith("embedding_")]
    assert len(engine.neighbors(NS, [A])) == 1, "its edges stay"


def test_brain_weak_23_names_of_a_callers_properties_cannot_overwrite_identity_or_tenant(engine: Any) -> None:
    hostile = {"object_id": "x", "namespace_id": "y", "key": "z", "revision": 99, "gone": True, "terms": "t"}
    engine.upsert(NS, [GraphNode(A, 1, "Deal", "t", text="kelp", properties=hostile)], [])
    [found] = every_node(engine)
    assert (found["object_id"], found["namespace_id"], found["revision"]) == (str(A), str(NS), 1)
    assert [hit.id for hit in engine.search_text(NS, "kelp", 1)] == [A]


def test_brain_h3_a_relation_written_again_keeps_one_edge_and_its_times(engine: Any) -> None:
    said = {"note": "first", "created_at": "2024-01-01T00:00:00+00:00", "status": "open"}
    engine.upsert(NS, [], [GraphEdge(KEY, 1, said)])
    engine.upsert(NS, [], [GraphEdge(KEY, 2, {"note": "second", "created_at": said["created_at"]})])
    dsl = importlib.import_module("helixdb.dsl")
    [found] = rows(engine, dsl.g().e_with_label("Relation").value_map(None))
    assert (found["note"], found["created_at"]) == ("second", said["created_at"])
    assert "status" not in found


def test_brain_h4_weak_24_it_is_ready_when_its_indexes_are_and_only_then(engine: Any) -> None:
    assert engine.object_search
    assert engine.edge_search
    module = importlib.import_module("isotherm.storage.graph.helix")

    class Away:
        def send(self, _: Any) -> dict[str, Any]:
            raise UnavailableError("away")

        def close(self) -> None: ...

    away = module.HelixGraph(Away())
    assert (away.object_search, away.edge_search) == (False, False)
    with pytest.raises(UnavailableError):
        away.upsert(NS, [GraphNode(A, 1)], [])


def test_what_was_written_is_there_when_it_is_opened_again(engine: Any) -> None:
    engine.upsert(NS, [GraphNode(A, 1, text="kelp"), GraphNode(B, 1)], [GraphEdge(KEY, 1)])
    engine.close()
    assert [hit.id for hit in engine.search_text(NS, "kelp", 1)] == [A]
    assert [n.peer for n in engine.neighbors(NS, [A])] == [B]


def _look(folder: Path, own: bool, queue: Any) -> None:  # noqa: FBT001 - a process takes plain arguments
    if own:
        helix_client.own_embedded()
    module = importlib.import_module("isotherm.storage.graph.helix")
    try:
        module.HelixGraph(helix_client.EmbeddedClient(folder)).revisions(NS)
    except UnavailableError as error:
        queue.put(str(error))
    else:
        queue.put("opened")


@pytest.mark.parametrize("own", [False, True])
def test_no_second_process_opens_it(engine: Any, tmp_path: Path, *, own: bool) -> None:
    engine.upsert(NS, [GraphNode(A, 1)], [])
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    other = context.Process(target=_look, args=(tmp_path / "helix", own, queue))
    other.start()
    said = queue.get(timeout=60)
    other.join()
    queue.close()
    assert said == (
        "another process has the embedded HelixDB open"
        if own
        else "the embedded HelixDB is open in the graph worker only"
    )


class _Away(MemoryGraph):
    def neighbors(self, *_: Any, **__: Any) -> Any:
        raise UnavailableError("not here")


def test_who_does_not_own_the_engine_reads_the_other_graph() -> None:
    first = _Away()
    pair = PairGraph(first, MemoryGraph())
    pair.upsert(NS, [GraphNode(A, 1), GraphNode(B, 1)], [GraphEdge(KEY, 1)])
    assert [n.peer for n in pair.neighbors(NS, [A])] == [B]


def test_where_two_graphs_differ_neither_is_taken_for_true() -> None:
    first, second = MemoryGraph(), MemoryGraph()
    pair = PairGraph(first, second)
    pair.upsert(NS, [GraphNode(A, 3), GraphNode(B, 1)], [GraphEdge(KEY, 1)])
    alike = pair.digest(NS)
    second.remove(NS, [Tombstone(B, 2)], [EdgeTombstone(KEY, 2)])
    assert pair.digest(NS) != alike
    held = pair.held(NS, range(256))
    assert held.nodes[A].revision == 3
    assert held.nodes[B].revision > 1_000
    assert held.edges[KEY].revision > 1_000
    pair.discard(NS, [B], [KEY])
    pair.upsert(NS, [GraphNode(B, 1)], [GraphEdge(KEY, 1)])
    assert pair.digest(NS) == alike


def test_the_settings_choose_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(graph_of(Settings(data_dir=tmp_path))).__name__ == "PostgresGraph"
    pytest.importorskip("helixdb", reason="needs the extra helix")
    assert isinstance(graph_of(Settings(data_dir=tmp_path, graph="helix")), PairGraph)
    assert not (tmp_path / "helix").exists(), "nothing is opened before it is used"
    remote = graph_of(Settings(data_dir=tmp_path, graph="helix", helix_url="http://127.0.0.1:9"))
    assert type(remote).__name__ == "HelixGraph"
    with pytest.raises(UnavailableError):
        remote.neighbors(NS, [A])
    monkeypatch.setitem(__import__("sys").modules, "helixdb", None)
    with pytest.raises(RejectedError, match="not installed"):
        helix_client.ServerClient("http://127.0.0.1:9")
