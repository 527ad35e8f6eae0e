"""A graph with indexes of its own is asked too by find_objects and find_links; it is believed no more than any hint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from brain_kit import KNOWLEDGE, OTHER, check_brain, new, settle, titles, uid

from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.graph_port import EdgeHit, NodeHit
from isotherm.pipeline.brain.links import EdgeKey
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.brain.result_sets import SearchContext
from isotherm.pipeline.errors import UnavailableError
from isotherm.storage.graph.memory import MemoryGraph
from isotherm.storage.models import factory
from isotherm.tasks.produce_brain import find_links, find_objects, link, put_many

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from isotherm.storage.opened import Storage

NAME = namespace_uuid(KNOWLEDGE)


class Proposing(MemoryGraph):
    """Knows that kelp is algae, and tells of others' objects and edges what it should not."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.asked: list[tuple[Any, ...]] = []

    def search_text(self, *asked: Any) -> list[NodeHit]:
        if self.away:
            raise UnavailableError("the graph is away")
        namespace, query, _, kinds = asked
        self.asked.append((namespace, query, kinds))
        return [NodeHit(uid(n), 1.0) for n in (30, 90, 91)]

    def search_edges(self, *_: object) -> list[EdgeHit]:
        if self.away:
            raise UnavailableError("the graph is away")
        pairs = ((1, 2), (1, 3), (90, 91))
        return [EdgeHit(EdgeKey(uid(source), uid(target), "near"), 1.0) for source, target in pairs]


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def graph(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proposing]:
    factory.use_embedder(memory.settings, None)
    found = Proposing()
    monkeypatch.setattr(memory.brain, "_graph", found)
    monkeypatch.setattr(memory.brain._finder, "_config", EngineConfig(candidate_k=1))
    put_many(KNOWLEDGE, [new(n, f"kelp kelp {n}") for n in range(1, 30)])
    put_many(KNOWLEDGE, [new(30, "a long title where kelp is one word of many others"), new(31, "kelp", kind="rare")])
    put_many(OTHER, [new(90, "kelp"), new(91, "kelp")])
    link(KNOWLEDGE, uid(1), uid(2), "near", note="red tide")
    link(KNOWLEDGE, uid(1), uid(3), "near", note="algae bloom")
    link(OTHER, uid(90), uid(91), "near", note="algae")
    settle()
    yield found
    factory._made.forget()
    check_brain()


def kept(limit: int = 1) -> list[UUID]:
    context = SearchContext()
    answer = find_objects(KNOWLEDGE, "kelp", limit=limit, context=context)
    assert answer.result_set_id is not None
    return [item.id for item in context.get(answer.result_set_id, NAME).items]


def test_what_a_graph_proposes_is_scored_like_the_rest_and_never_of_another_namespace(graph: Proposing) -> None:
    ids = kept()
    assert uid(30) in ids, "beyond what the words alone would propose"
    assert ids[0] != uid(30)
    assert not {uid(90), uid(91)} & set(ids)
    assert graph.asked == [(NAME, "kelp", None)]
    assert titles(find_objects(KNOWLEDGE, "kelp", filters=Filters.of(["rare"]))) == ["kelp"]
    assert graph.asked[-1] == (NAME, "kelp", ["rare"])


def test_a_graph_in_the_same_database_is_not_asked(graph: Proposing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proposing, "own_search", False)
    assert uid(30) not in kept()
    assert graph.asked == []


def test_edges_that_a_graph_proposes_come_after_those_that_have_the_words(graph: Proposing) -> None:
    assert graph
    found = find_links(KNOWLEDGE, "near", "algae")
    assert [(hit.target.id, hit.score) for hit in found.links] == [(uid(3), 1.0), (uid(2), 0.0)]
    assert (found.degraded, found.truncated) == ((), False)
    assert find_links(OTHER, "near", "algae").links[0].source.id == uid(90)


def test_a_graph_out_of_reach_is_left_out_and_said_unless_that_is_an_error(
    graph: Proposing, memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph.away = True
    objects, edges = find_objects(KNOWLEDGE, "kelp"), find_links(KNOWLEDGE, "near", "algae")
    assert (len(objects.results), objects.degraded) == (10, ("graph",))
    assert ([hit.target.id for hit in edges.links], edges.degraded) == ([uid(3)], ("graph",))
    monkeypatch.setattr(memory.brain, "config", EngineConfig(fail_on_graph_error=True))
    for call in (lambda: find_objects(KNOWLEDGE, "kelp"), lambda: find_links(KNOWLEDGE, "near", "algae")):
        with pytest.raises(UnavailableError):
            call()
    graph.away = False
    monkeypatch.setattr(Proposing, "object_search", False)
    monkeypatch.setattr(Proposing, "edge_search", False)
    assert find_objects(KNOWLEDGE, "kelp").degraded == find_links(KNOWLEDGE, "near", "algae").degraded == ("graph",)
