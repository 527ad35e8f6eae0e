from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from brain_kit import KNOWLEDGE, OTHER, check_brain, new, settle, uid

from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.drift import Held
from isotherm.pipeline.brain.errors import RecipeNameRequiredError, RecipeNotFoundError
from isotherm.pipeline.brain.expand import Mode
from isotherm.pipeline.brain.graph_port import Direction, GraphEdge, GraphNode, GraphPort
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.brain.recipes import ExpandRecipe
from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage.graph.memory import MemoryGraph
from isotherm.storage.models import factory
from isotherm.tasks.produce_brain import expand, link, put_many, soft_delete, unlink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.storage.brain_expand import Expanded
    from isotherm.storage.opened import Storage


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture(params=["memory", "postgres"], autouse=True)
def graph(request: pytest.FixtureRequest, memory: Storage, monkeypatch: pytest.MonkeyPatch) -> Iterator[GraphPort]:
    factory.use_embedder(memory.settings, None)
    if request.param == "memory":
        monkeypatch.setattr(memory.brain, "_graph", MemoryGraph())
    yield memory.brain.graph
    factory._made.forget()
    check_brain()


def ids(found: Expanded) -> list[int]:
    return [item.object.id.int - (1 << 100) for item in found.items]


def relations(found: Expanded) -> list[tuple[int, str, str]]:
    return [
        (item.object.id.int - (1 << 100), r.edge.key.label, r.direction.value)
        for item in found.items
        for r in item.relations
    ]


def test_brain_e01_children_come_in_order_without_content() -> None:
    put_many(KNOWLEDGE, [new(1, "P"), new(2, "", "b", parent=1, position=2), new(3, "", "a", parent=1, position=1),
                         new(4, "", "c", parent=1)])  # fmt: skip
    found = expand(KNOWLEDGE, uid(1))
    assert (found.mode, ids(found), found.truncated) == (Mode.CHILDREN, [3, 2, 4], False)
    assert [item.object.content for item in found.items] == [None] * 3
    assert ids(expand(KNOWLEDGE, uid(1), limit=2)) == [3, 2]
    assert expand(KNOWLEDGE, uid(1), limit=2).truncated


def test_brain_e02_a_part_comes_with_its_parent_and_its_siblings(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.brain, "config", EngineConfig(sibling_radius=1))
    put_many(KNOWLEDGE, [new(1, "P"), *[new(n, "", "x", parent=1, position=n) for n in range(2, 9)]])
    found = expand(KNOWLEDGE, uid(5))
    assert (found.mode, ids(found)) == (Mode.NEIGHBORHOOD, [1, 4, 5, 6])


def test_brain_e04_e06_edges_are_followed_in_the_direction_asked_for_and_never_into_another_namespace(
    graph: GraphPort,
) -> None:
    put_many(KNOWLEDGE, [new(1, "a"), new(2, "b"), new(3, "c")])
    put_many(OTHER, [new(4, "hidden")])
    link(KNOWLEDGE, uid(1), uid(2), "references", note="why")
    link(KNOWLEDGE, uid(3), uid(1), "references")
    settle()
    # A graph that says more than is true changes nothing.
    graph.upsert(
        namespace_uuid(KNOWLEDGE), [GraphNode(uid(4), 1)], [GraphEdge(EdgeKey(uid(1), uid(4), "references"), 1)]
    )
    assert len(graph.neighbors(namespace_uuid(KNOWLEDGE), [uid(1)])) == 3
    found = expand(KNOWLEDGE, uid(1), ["references"])
    assert (found.mode, relations(found)) == (Mode.GRAPH, [(2, "references", "out"), (3, "references", "in")])
    assert found.items[0].relations[0].edge.meta.note == "why"
    assert ids(expand(KNOWLEDGE, uid(1), ["references"], direction=Direction.OUT)) == [2]
    assert ids(expand(KNOWLEDGE, uid(1), ["REFERENCES"], direction=Direction.IN)) == [3]
    assert ids(expand(KNOWLEDGE, uid(1), None)) == [2, 3]
    with pytest.raises(RejectedError, match="no object"):
        expand(OTHER, uid(1), None)


def test_brain_e07_e15_parts_and_edges_come_together_when_both_are_asked_for() -> None:
    put_many(KNOWLEDGE, [new(1, "a"), new(2, "", "x", parent=1), new(3, "b")])
    link(KNOWLEDGE, uid(1), uid(3), "references")
    settle()
    for labels, containment in ((["contains", "references"], False), (["references"], True), (None, True)):
        found = expand(KNOWLEDGE, uid(1), labels, containment=containment)
        assert (found.mode, ids(found)) == (Mode.MIXED, [2, 3])
    assert ids(expand(KNOWLEDGE, uid(2), ["contains", "references"])) == [1, 2]


def test_brain_w13_an_edge_written_again_says_only_what_was_said_last() -> None:
    put_many(KNOWLEDGE, [new(1, "a"), new(2, "b")])
    link(KNOWLEDGE, uid(1), uid(2), "about", note="n", status="s", role="r", confidence=0.85, evidence_id=uid(9))
    settle()
    meta = expand(KNOWLEDGE, uid(1), ["about"]).items[0].relations[0].edge.meta
    assert (meta.note, meta.status, meta.role, meta.confidence, meta.evidence_id) == ("n", "s", "r", 0.85, uid(9))
    link(KNOWLEDGE, uid(1), uid(2), "about", note="new")
    settle()
    meta = expand(KNOWLEDGE, uid(1), ["about"]).items[0].relations[0].edge.meta
    assert (meta.note, meta.status, meta.role, meta.confidence, meta.evidence_id) == ("new", "", "", None, None)


def test_what_was_deleted_or_unlinked_is_gone_at_once_and_comes_back_with_its_edges(graph: GraphPort) -> None:
    """Neither waits for the graph: its answers are read again."""
    put_many(KNOWLEDGE, [new(1, "a"), new(2, "b"), new(3, "c")])
    link(KNOWLEDGE, uid(1), uid(2), "about")
    link(KNOWLEDGE, uid(1), uid(3), "about")
    settle()
    soft_delete(KNOWLEDGE, uid(2))
    unlink(KNOWLEDGE, uid(1), uid(3), "about")
    assert ids(expand(KNOWLEDGE, uid(1), ["about"])) == []
    settle()
    held = graph.held(namespace_uuid(KNOWLEDGE), range(256))
    assert [held.nodes[uid(n)] for n in (1, 2, 3)] == [Held(1, gone=False), Held(2, gone=True), Held(1, gone=False)]
    put_many(KNOWLEDGE, [new(2, "b")])
    link(KNOWLEDGE, uid(1), uid(3), "about")
    settle()
    assert ids(expand(KNOWLEDGE, uid(1), ["about"])) == [2, 3]


def test_a_peer_reached_over_several_edges_is_one_object_with_all_of_them() -> None:
    put_many(KNOWLEDGE, [new(1, "a"), new(2, "b")])
    for source, target, label in ((1, 2, "about"), (2, 1, "about"), (1, 2, "likes")):
        link(KNOWLEDGE, uid(source), uid(target), label)
    settle()
    found = expand(KNOWLEDGE, uid(1), None)
    assert ids(found) == [2]
    assert relations(found) == [(2, "about", "out"), (2, "about", "in"), (2, "likes", "out")]


def test_a_budget_is_kept_and_said() -> None:
    put_many(KNOWLEDGE, [new(n, f"o{n}") for n in range(1, 10)])
    for n in range(2, 10):
        link(KNOWLEDGE, uid(1), uid(n), "about")
    settle()
    assert (
        ids(expand(KNOWLEDGE, uid(1), ["about"], limit=3)),
        expand(KNOWLEDGE, uid(1), ["about"], limit=3).truncated,
    ) == ([2, 3, 4], True)
    assert not expand(KNOWLEDGE, uid(1), ["about"], limit=8).truncated


def test_brain_e10_a_graph_out_of_reach_degrades_to_parts_when_they_were_asked_for(
    graph: GraphPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise UnavailableError("the graph is away")

    put_many(KNOWLEDGE, [new(1, "a"), new(2, "", "x", parent=1)])
    settle()
    monkeypatch.setattr(type(graph), "walk", away)
    found = expand(KNOWLEDGE, uid(1), ["contains", "references"])
    assert (found.mode, ids(found), found.degraded) == (Mode.CHILDREN, [2], ("graph",))
    with pytest.raises(UnavailableError):
        expand(KNOWLEDGE, uid(1), ["references"])


def test_brain_e09_an_object_that_is_not_there_cannot_be_expanded() -> None:
    with pytest.raises(RejectedError, match="no object"):
        expand(KNOWLEDGE, uid(1))


def chain(*numbers: int, label: str = "references") -> None:
    for source, target in itertools.pairwise(numbers):
        link(KNOWLEDGE, uid(source), uid(target), label)


def depths(found: Expanded) -> dict[int, int]:
    return {item.object.id.int - (1 << 100): item.depth for item in found.items}


def test_brain_e08_no_walk_leads_through_what_cannot_be_seen(graph: GraphPort) -> None:
    put_many(KNOWLEDGE, [new(n, f"o{n}") for n in (1, 2, 3, 5)])
    put_many(OTHER, [new(4, "bridge")])
    chain(1, 2, 3)
    settle()
    name = namespace_uuid(KNOWLEDGE)
    bridge = [GraphEdge(EdgeKey(uid(1), uid(4), "references"), 1), GraphEdge(EdgeKey(uid(4), uid(5), "references"), 1)]
    graph.upsert(name, [], bridge)
    found = expand(KNOWLEDGE, uid(1), ["references"], hops=2)
    assert depths(found) == {2: 1, 3: 2}
    assert [r.edge.key.source for item in found.items for r in item.relations] == [uid(1), uid(2)]
    soft_delete(KNOWLEDGE, uid(2))
    assert depths(expand(KNOWLEDGE, uid(1), ["references"], hops=2)) == {}


def test_brain_weak_20_every_budget_that_is_spent_is_told(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    put_many(KNOWLEDGE, [new(n, f"o{n}") for n in range(1, 10)])
    chain(*range(1, 10))
    settle()
    whole = expand(KNOWLEDGE, uid(1), None, hops=4, direction=Direction.OUT)
    assert (depths(whole), whole.truncated) == ({2: 1, 3: 2, 4: 3, 5: 4}, False)
    cut = expand(KNOWLEDGE, uid(1), None, hops=5, direction=Direction.OUT)
    assert (depths(cut), cut.truncated) == (depths(whole), True)
    monkeypatch.setattr(memory.brain, "config", EngineConfig(max_graph_calls=2, max_expand_hops=8))
    spent = expand(KNOWLEDGE, uid(1), None, hops=8, direction=Direction.OUT)
    assert (depths(spent), spent.truncated) == ({2: 1, 3: 2}, True)
    few = expand(KNOWLEDGE, uid(1), None, hops=2, limit=1, direction=Direction.OUT)
    assert (depths(few), few.truncated) == ({2: 1}, True)


def test_brain_e12_who_is_around_two_objects_is_told_with_the_first(memory: Storage) -> None:
    put_many(KNOWLEDGE, [new(n, f"o{n}") for n in range(1, 5)])
    put_many(KNOWLEDGE, [new(5, "", "part", parent=1)])
    for source, target in ((1, 3), (2, 3), (2, 4)):
        link(KNOWLEDGE, uid(source), uid(target), "references")
    settle()
    seeds = [uid(1), uid(99), uid(2), uid(1)]
    found = memory.brain.expand_many(KNOWLEDGE, seeds, ["references"], direction=Direction.OUT)
    assert {item.object.id: item.seed_id for item in found.items} == {uid(3): uid(1), uid(4): uid(2)}
    found = memory.brain.expand_many(KNOWLEDGE, seeds, ["references"], containment=True)
    assert [item.object.id for item in found.items] == [uid(5), uid(3), uid(4)]
    found = memory.brain.expand_many(KNOWLEDGE, seeds, ["references"], most=1, direction=Direction.OUT)
    assert (len(found.items), found.truncated) == (1, True)
    assert memory.brain.expand_many(KNOWLEDGE, [], None).items == ()
    assert memory.brain.expand_many(OTHER, seeds, None).items == ()


def test_brain_e13_e14_a_recipe_is_an_expand_with_a_name(memory: Storage) -> None:
    engine = memory.brain
    put_many(KNOWLEDGE, [new(1, "a"), new(2, "b"), new(3, "c"), new(4, "", "part", parent=1)])
    chain(1, 2, 3)
    settle()
    engine.register_expand_recipe(ExpandRecipe(" two_hop ", ("references",), hops=2))
    engine.register_expand_recipe(ExpandRecipe("parts", containment=True))
    assert ids(engine.expand_by_recipe(KNOWLEDGE, uid(1), "two_hop")) == [2, 3]
    assert ids(engine.expand_by_recipe(KNOWLEDGE, uid(1), "two_hop", limit=1)) == [2]
    assert ids(engine.expand_by_recipe(KNOWLEDGE, uid(1), "parts")) == [4]
    assert engine.recipes.names() == ["parts", "two_hop"]
    with pytest.raises(RecipeNotFoundError):
        engine.expand_by_recipe(KNOWLEDGE, uid(1), "unknown")
    with pytest.raises(RecipeNameRequiredError):
        engine.register_expand_recipe(ExpandRecipe("  "))


@pytest.mark.parametrize("graph", ["postgres"], indirect=True)
def test_an_expand_of_three_hops_takes_three_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    put_many(KNOWLEDGE, [new(n, f"o{n}") for n in range(1, 41)])
    for n in range(1, 14):
        for peer in (3 * n - 1, 3 * n, 3 * n + 1):
            link(KNOWLEDGE, uid(n), uid(peer), "references")
    settle()
    expand(KNOWLEDGE, uid(1), ["references"], hops=3)
    asked: list[str] = []
    execute = psycopg.Connection.execute

    def counted(self: psycopg.Connection, query: Any, *args: Any, **more: Any) -> Any:
        asked.append(str(query))
        return execute(self, query, *args, **more)

    monkeypatch.setattr(psycopg.Connection, "execute", counted)
    found = expand(KNOWLEDGE, uid(1), ["references"], hops=3, direction=Direction.OUT, limit=100)
    assert len(found.items) == 39
    assert sum(query.lstrip().upper().startswith(("SELECT", "WITH")) for query in asked) == 3, asked
