"""One suite for every graph behind the port."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isotherm.pipeline.brain.drift import Digest
from isotherm.pipeline.brain.graph_port import (
    Budget,
    Counts,
    Direction,
    EdgeTombstone,
    GraphEdge,
    GraphNode,
    GraphPort,
    Tombstone,
)
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.storage.graph import helix_client
from isotherm.storage.graph.memory import MemoryGraph
from isotherm.storage.graph.pair import PairGraph
from isotherm.storage.graph.postgres import PostgresGraph
from isotherm.storage.postgres import pool

if TYPE_CHECKING:
    from isotherm.storage.embedded import Endpoints

NS, OTHER = UUID(int=100), UUID(int=200)
A, B, C, D = (UUID(int=n) for n in range(1, 5))


@pytest.fixture(scope="module")
def server(endpoints: Endpoints, template: str) -> Iterator[None]:
    pool.open_pool(endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{template}")
    yield
    pool.close_pool()


@pytest.fixture(scope="module")
def helix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraphPort]:
    """The real engine, embedded, on disk."""
    pytest.importorskip("helixdb_uniffi", reason="needs the extra helix")
    helix_client.own_embedded()
    module = importlib.import_module("isotherm.storage.graph.helix")
    found = module.HelixGraph(helix_client.EmbeddedClient(tmp_path_factory.mktemp("helix")))
    yield found
    found.close()


@pytest.fixture(params=["memory", "postgres", "helix", "pair"])
def graph(request: pytest.FixtureRequest) -> Iterator[GraphPort]:
    """An empty graph."""
    if request.param == "memory":
        yield MemoryGraph()
        return
    found: GraphPort
    if request.param == "helix":
        found = request.getfixturevalue("helix")
    elif request.param == "pair":
        request.getfixturevalue("server")
        found = PairGraph(MemoryGraph(), PostgresGraph())
    else:
        request.getfixturevalue("server")
        found = PostgresGraph()
    yield found
    for namespace in (NS, OTHER):
        found.clear(namespace)


def node(object_id: UUID, revision: int = 1) -> GraphNode:
    return GraphNode(object_id, revision, "note", f"title {object_id.int}")


def edge(source: UUID, target: UUID, label: str = "about", revision: int = 1, **said: str) -> GraphEdge:
    return GraphEdge(EdgeKey(source, target, label), revision, said)


def steps(graph: GraphPort, seed: UUID, labels: list[str] | None = None, direction: Direction = Direction.BOTH,
          limit: int = 50, namespace: UUID = NS) -> list[tuple[UUID, str, str]]:  # fmt: skip
    found = graph.neighbors(namespace, [seed], labels, direction, limit)
    assert all(n.seed == seed for n in found)
    for n in found:
        ends = (n.key.source, n.key.target)
        assert ends == ((seed, n.peer) if n.direction is Direction.OUT else (n.peer, seed))
        assert n.label == n.key.label
    return [(n.peer, n.label, n.direction.value) for n in found]


def test_brain_g1_an_edge_written_twice_is_one_edge(graph: GraphPort) -> None:
    assert graph.upsert(NS, [node(A), node(B)], [edge(A, B, note="first")]) == Counts(2, 1)
    assert graph.upsert(NS, [node(A), node(B)], [edge(A, B, note="first")]) == Counts(0, 0)
    assert graph.upsert(NS, [], [edge(A, B, revision=2, note="second")]) == Counts(0, 1)
    assert steps(graph, A, ["about"]) == [(B, "about", "out")]
    assert steps(graph, A, []) == []
    assert steps(graph, A, ["about"], limit=0) == []


def test_brain_h3_both_directions_are_walked_and_one_can_be_chosen(graph: GraphPort) -> None:
    edges = [edge(A, B, "references"), edge(C, A, "references"), edge(A, D, "depends_on")]
    graph.upsert(NS, [node(n) for n in (A, B, C, D)], edges)
    assert steps(graph, A, ["references"]) == [(B, "references", "out"), (C, "references", "in")]
    assert steps(graph, A, ["references"], Direction.IN) == [(C, "references", "in")]
    assert steps(graph, A, direction=Direction.OUT) == [(D, "depends_on", "out"), (B, "references", "out")]
    assert steps(graph, A, ["references", "depends_on"], limit=1) == [(B, "references", "out")]
    assert steps(graph, UUID(int=99)) == []


def test_labels_come_in_the_order_asked_for_and_are_compared_without_case(graph: GraphPort) -> None:
    graph.upsert(NS, [], [edge(A, B, "Likes"), edge(A, C, "about"), edge(A, D, "owns")])
    assert steps(graph, A, ["owns", "LIKES"]) == [(D, "owns", "out"), (B, "Likes", "out")]
    assert [label for _, label, _ in steps(graph, A)] == ["about", "Likes", "owns"]


def test_many_edges_one_way_do_not_hide_those_of_the_other(graph: GraphPort) -> None:
    graph.upsert(NS, [], [edge(A, UUID(int=n)) for n in range(50, 110)] + [edge(B, A)])
    assert steps(graph, A, ["about"], Direction.IN, limit=5) == [(B, "about", "in")]
    assert len(steps(graph, A, ["about"], limit=60)) == 60


def test_a_late_message_cannot_undo_a_newer_one(graph: GraphPort) -> None:
    graph.upsert(NS, [node(A, 5), node(B)], [edge(A, B, revision=5)])
    assert graph.upsert(NS, [node(A, 4)], [edge(A, B, revision=4)]) == Counts(0, 0)
    assert graph.remove(NS, [Tombstone(A, 4)], [EdgeTombstone(EdgeKey(A, B, "about"), 4)]) == Counts(0, 0)
    assert graph.revisions(NS) == {A: 5, B: 1}
    assert steps(graph, B) == [(A, "about", "in")]
    assert graph.remove(NS, [Tombstone(A, 6)]) == Counts(1, 0)
    assert graph.upsert(NS, [node(A, 5)], []) == Counts(0, 0)
    assert graph.revisions(NS) == {B: 1}


def test_a_node_that_comes_back_has_its_edges_again(graph: GraphPort) -> None:
    graph.upsert(NS, [node(A), node(B)], [edge(A, B)])
    graph.remove(NS, [Tombstone(A, 2)])
    assert steps(graph, A) == []
    assert steps(graph, B) == []
    graph.upsert(NS, [node(A, 3)], [])
    assert steps(graph, B) == [(A, "about", "in")]


def test_an_edge_that_is_taken_out_is_not_walked(graph: GraphPort) -> None:
    graph.upsert(NS, [node(A), node(B)], [edge(A, B), edge(B, A)])
    assert graph.remove(NS, [], [EdgeTombstone(EdgeKey(A, B, "about"), 2)]) == Counts(0, 1)
    assert steps(graph, A) == [(B, "about", "in")]
    graph.upsert(NS, [], [edge(A, B, revision=3)])
    assert steps(graph, A) == [(B, "about", "out"), (B, "about", "in")]


def test_an_edge_may_come_before_its_ends(graph: GraphPort) -> None:
    graph.upsert(NS, [], [edge(A, B)])
    assert steps(graph, A) == [(B, "about", "out")]
    assert graph.revisions(NS) == {}


def test_a_namespace_sees_and_changes_only_its_own(graph: GraphPort) -> None:
    graph.upsert(NS, [node(A), node(B)], [edge(A, B)])
    graph.upsert(OTHER, [node(A, 9)], [edge(A, C, revision=9)])
    graph.remove(OTHER, [Tombstone(B, 9)], [EdgeTombstone(EdgeKey(A, B, "about"), 9)])
    assert steps(graph, A) == [(B, "about", "out")]
    assert steps(graph, A, namespace=OTHER) == [(C, "about", "out")]
    assert graph.revisions(OTHER) == {A: 9}
    graph.clear(OTHER)
    assert steps(graph, A, namespace=OTHER) == []
    assert graph.upsert(OTHER, [node(A)], []) == Counts(1, 0)
    assert graph.revisions(NS) == {A: 1, B: 1}


def test_of_two_with_one_identity_in_a_call_the_newest_counts(graph: GraphPort) -> None:
    assert graph.upsert(NS, [node(A, 2), node(A, 3), node(A, 1)], [edge(A, B), edge(A, B, revision=2)]) == Counts(1, 1)
    assert graph.revisions(NS) == {A: 3}


def test_several_seeds_each_get_their_limit(graph: GraphPort) -> None:
    graph.upsert(NS, [], [edge(A, C), edge(A, D), edge(B, C), edge(B, D)])
    found = graph.neighbors(NS, [B, A, B], None, Direction.OUT, 1)
    assert [(n.seed, n.peer) for n in found] == [(B, C), (A, C)]


IDS = st.sampled_from([A, B, C])
REVISIONS = st.integers(1, 6)
KEYS = st.builds(EdgeKey, IDS, IDS, st.sampled_from(["about", "About", "owns"])).filter(lambda k: k.source != k.target)
MESSAGES = st.lists(
    st.one_of(
        st.builds(node, IDS, REVISIONS.map(lambda n: 2 * n)),
        st.builds(Tombstone, IDS, REVISIONS.map(lambda n: 2 * n + 1)),
        st.builds(GraphEdge, KEYS, REVISIONS.map(lambda n: 2 * n)),
        st.builds(EdgeTombstone, KEYS, REVISIONS.map(lambda n: 2 * n + 1)),
    ),
    max_size=12,
)


def send(graph: GraphPort, namespace: UUID, message: object) -> None:
    if isinstance(message, GraphNode):
        graph.upsert(namespace, [message], [])
    elif isinstance(message, GraphEdge):
        graph.upsert(namespace, [], [message])
    elif isinstance(message, Tombstone):
        graph.remove(namespace, [message])
    elif isinstance(message, EdgeTombstone):
        graph.remove(namespace, [], [message])


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(messages=MESSAGES, order=st.randoms(use_true_random=False), doubled=st.booleans())
def test_messages_in_any_order_and_number_leave_one_graph(
    graph: GraphPort, messages: list[object], order: st.DataObject, *, doubled: bool
) -> None:
    """And every graph is the same as the one in memory."""
    model, here = MemoryGraph(), uuid4()
    for message in messages:
        send(model, here, message)
    shuffled = messages * (2 if doubled else 1)
    order.shuffle(shuffled)
    for message in shuffled:
        send(graph, here, message)
    assert graph.revisions(here) == model.revisions(here)
    for direction, labels in itertools.product(Direction, (None, ["ABOUT"], ["owns", "about"])):
        wanted = model.neighbors(here, [A, B, C], labels, direction, 10)
        assert graph.neighbors(here, [A, B, C], labels, direction, 10) == wanted
    graph.clear(here)


def test_brain_weak_19_a_walk_of_several_hops_is_the_same_everywhere(graph: GraphPort) -> None:
    names = [UUID(int=n) for n in range(1, 30)]
    edges = [edge(a, b, label) for a, b, label in zip(names, names[1:], itertools.cycle(["about", "Likes", "owns"]))]
    edges += [edge(names[0], each, "about") for each in names[5:15]] + [edge(names[20], names[2], "owns")]
    graph.upsert(NS, [node(each) for each in names], edges)
    graph.upsert(OTHER, [], [edge(names[0], UUID(int=99))])
    graph.remove(NS, [Tombstone(names[6], 2)])
    model = MemoryGraph()
    model.upsert(NS, [node(each) for each in names], edges)
    model.remove(NS, [Tombstone(names[6], 2)])
    every = list(itertools.product((1, 2, 3, 4), (0, 1, 4, 64), (1, 3, 50)))
    # A request to the embedded engine takes milliseconds: some of the budgets will do.
    for hops, calls, most in every if isinstance(graph, PostgresGraph) else every[-10:]:
        for labels, direction in itertools.product((None, ["ABOUT", "likes"], []), Direction):
            budget = Budget(hops, calls, most)
            wanted = model.walk(NS, [names[0], names[20]], labels, direction, budget)
            found = graph.walk(NS, [names[0], names[20]], labels, direction, budget)
            assert {k: list(v) for k, v in found.steps.items()} == {k: list(v) for k, v in wanted.steps.items()}
            assert found.truncated == wanted.truncated, (budget, labels, direction)


def test_brain_h2_objects_are_found_by_words_in_their_own_namespace_only(graph: GraphPort) -> None:
    assert graph.object_search
    texts = {A: "Acme deal\nnegotiation", B: "Noise deal", C: "unrelated words here"}
    graph.upsert(
        NS, [GraphNode(key, 1, "Deal" if key != C else "Note", "", text=said) for key, said in texts.items()], []
    )
    graph.upsert(OTHER, [GraphNode(D, 1, "Deal", "", text="Acme deal negotiation")], [])
    found = graph.search_text(NS, "Negotiations about the ACME deal", 10)
    assert [hit.id for hit in found] == [A, B]
    assert found[0].score > found[1].score > 0
    assert [hit.id for hit in graph.search_text(NS, "deal", 1)] == [B]
    assert graph.search_text(NS, "words deal", 10, kinds=["Note"])[0].id == C
    for query, limit, kinds in (("", 10, None), ("the", 10, None), ("deal", 0, None), ("deal", 10, [])):
        assert graph.search_text(NS, query, limit, kinds) == []
    graph.remove(NS, [Tombstone(A, 2)])
    assert [hit.id for hit in graph.search_text(NS, "acme deal", 10)] == [B]
    graph.upsert(NS, [GraphNode(B, 2, "Deal", "", text="other")], [])
    assert graph.search_text(NS, "acme deal", 10) == []


def test_objects_are_found_by_a_vector_of_the_same_model(graph: GraphPort) -> None:
    def seen(key: UUID, vector: tuple[float, ...], model: str = "m", kind: str = "Deal") -> GraphNode:
        return GraphNode(key, 1, kind, "", vector=vector, vector_model=model)

    graph.upsert(
        NS, [seen(A, (1, 0, 0)), seen(B, (0.6, 0.8, 0), kind="Note"), seen(C, (1, 0, 0), "other"), node(D)], []
    )
    graph.upsert(OTHER, [seen(D, (1, 0, 0))], [])
    found = graph.search_vector(NS, (1, 0, 0), "m", 10)
    assert [hit.id for hit in found] == [A, B]
    assert [hit.score for hit in found] == pytest.approx([1, 0.6], abs=1e-3)
    assert [hit.id for hit in graph.search_vector(NS, (1, 0, 0), "m", 10, kinds=["Note"])] == [B]
    assert graph.search_vector(NS, (-1, 0, 0), "m", 10) == []
    assert graph.search_vector(NS, (0, 0, 0), "m", 10) == []
    assert graph.search_vector(NS, (1, 0), "m", 10) == []
    graph.upsert(NS, [GraphNode(A, 2, "Deal", "")], [])
    assert [hit.id for hit in graph.search_vector(NS, (1, 0, 0), "m", 10)] == [B]


def test_brain_l1_edges_are_found_by_the_words_of_their_notes(graph: GraphPort) -> None:
    assert graph.edge_search
    edges = [edge(A, B, "references", note="risk budget concern"), edge(A, C, "references", note="something else"),
             edge(A, D, "about", note="budget")]  # fmt: skip
    graph.upsert(NS, [node(A), node(B)], edges)
    graph.upsert(OTHER, [], [edge(A, B, "references", note="budget")])
    assert [hit.key for hit in graph.search_edges(NS, "references", "budgets", 10)] == [EdgeKey(A, B, "references")]
    assert [hit.key for hit in graph.search_edges(NS, "References", "budget", 10)] == [EdgeKey(A, B, "references")]
    assert graph.search_edges(NS, "references", "nothing", 10) == []
    graph.upsert(NS, [], [edge(A, B, "references", 2, note="changed")])
    assert graph.search_edges(NS, "references", "budget", 10) == []
    graph.remove(NS, [Tombstone(B, 2)])
    assert graph.search_edges(NS, "references", "changed", 10) == []


def test_what_is_held_can_be_compared_and_discarded(graph: GraphPort) -> None:
    model = MemoryGraph()
    for each in (graph, model):
        each.upsert(NS, [node(A, 3), node(B)], [edge(A, B, "Straße"), edge(B, A, revision=4)])
        each.remove(NS, [Tombstone(C, 2)], [EdgeTombstone(EdgeKey(B, C, "about"), 7)])
    assert graph.digest(NS) == model.digest(NS)
    assert graph.held(NS, range(256)) == model.held(NS, range(256))
    assert graph.digest(OTHER) == Digest()
    assert graph.namespaces() == [NS]
    graph.discard(NS, [A], [EdgeKey(B, A, "about")])
    assert graph.digest(NS) != model.digest(NS)
    assert graph.upsert(NS, [node(A, 3)], [edge(B, A, revision=4)]) == Counts(1, 1)
    assert graph.digest(NS) == model.digest(NS)
    graph.clear(NS)
    assert graph.namespaces() == []
