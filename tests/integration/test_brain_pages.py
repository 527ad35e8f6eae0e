"""Expands that are longer than one answer, objects that fail to be read, and what a graph that was lost leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from brain_kit import KNOWLEDGE, OTHER, check_brain, new, settle, uid

from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.errors import ResultSetNotFoundError
from isotherm.pipeline.brain.graph_port import Direction, GraphNode, GraphPort
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.brain.result_sets import SearchContext
from isotherm.pipeline.errors import UnavailableError
from isotherm.storage import brain_mirror
from isotherm.storage.graph.memory import MemoryGraph
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_read, namespaces
from isotherm.tasks.produce_brain import continue_, expand, link, put_many, read, search, soft_delete, unlink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.storage.opened import Storage

NAME = namespace_uuid(KNOWLEDGE)


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


def rebuild(graph: GraphPort) -> None:
    place = namespaces.find(KNOWLEDGE)
    assert place is not None
    brain_mirror.rebuild(graph, place.namespace_id, NAME)


def star(peers: range) -> None:
    put_many(KNOWLEDGE, [new(1, "root"), *[new(n, f"doc {n}") for n in peers]])
    for n in peers:
        link(KNOWLEDGE, uid(1), uid(n), "references", note=f"hop-{n}")
    settle()


def test_brain_e03_many_parts_come_in_pages_and_no_more_are_kept_than_configured(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.brain, "config", EngineConfig(expand_inline_max=5, max_result_set=10))
    put_many(KNOWLEDGE, [new(1, "P"), *[new(n, "", "x", parent=1, position=n) for n in range(2, 32)]])
    context = SearchContext()
    first = expand(KNOWLEDGE, uid(1), limit=3, context=context)
    assert [item.object.id for item in first.items] == [uid(2), uid(3), uid(4)]
    assert (first.has_more, first.truncated) == (True, True)
    assert first.cursor is not None
    assert first.result_set_id is not None
    assert len(context.get(first.result_set_id, NAME).items) == 10
    following = continue_(KNOWLEDGE, first.cursor, context, limit=3)
    assert [result.object.id for result in following.results] == [uid(5), uid(6), uid(7)]
    assert following.cursor is not None
    last = continue_(KNOWLEDGE, following.cursor, context, limit=10)
    assert [result.object.id for result in last.results] == [uid(n) for n in range(8, 12)]
    assert (last.has_more, last.truncated, last.cursor) == (False, True, None)
    with pytest.raises(ResultSetNotFoundError):
        continue_(OTHER, first.cursor, context)


def test_few_parts_are_answered_at_once_whatever_a_page_is(memory: Storage) -> None:
    assert memory.brain.config.expand_inline_max == 20
    put_many(KNOWLEDGE, [new(1, "P"), *[new(n, "", "x", parent=1, position=n) for n in range(2, 22)]])
    context = SearchContext()
    found = expand(KNOWLEDGE, uid(1), limit=3, context=context)
    assert (len(found.items), found.has_more, found.result_set_id) == (20, False, None)
    assert context.export() == b""


def test_brain_e05_edges_are_told_on_every_page_as_long_as_they_are_there(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory.brain, "config", EngineConfig(expand_inline_max=2))
    star(range(2, 10))
    context = SearchContext()
    first = expand(KNOWLEDGE, uid(1), ["references"], limit=2, context=context)
    assert [item.relations[0].edge.meta.note for item in first.items] == ["hop-2", "hop-3"]
    assert first.cursor is not None
    unlink(KNOWLEDGE, uid(1), uid(4), "references")
    soft_delete(KNOWLEDGE, uid(5))
    restored = SearchContext()
    restored.restore(context.export())
    following = continue_(KNOWLEDGE, first.cursor, restored, limit=2)
    told = [(r.object.id, r.relations[0].edge.key.label, r.relations[0].edge.meta.note) for r in following.results]
    assert told == [(uid(6), "references", "hop-6"), (uid(7), "references", "hop-7")]
    assert {(r.relations[0].direction, r.depth) for r in following.results} == {(Direction.OUT, 1)}
    assert following.has_more


def test_brain_e11_an_object_that_cannot_be_read_is_an_error_not_a_shorter_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    star(range(2, 4))

    def boom(*_: object, **__: object) -> None:
        raise UnavailableError("boom")

    monkeypatch.setattr(brain_read, "by_id", boom)
    with pytest.raises(UnavailableError, match="boom"):
        expand(KNOWLEDGE, uid(1), ["references"])


def test_brain_weak_03_a_graph_that_is_lost_takes_no_edge_with_it(graph: GraphPort) -> None:
    star(range(2, 6))
    unlink(KNOWLEDGE, uid(1), uid(3), "references")
    soft_delete(KNOWLEDGE, uid(4))
    put_many(KNOWLEDGE, [new(4, "doc 4")])
    settle()
    before = expand(KNOWLEDGE, uid(1), ["references"])
    assert [item.object.id for item in before.items] == [uid(2), uid(4), uid(5)]
    graph.clear(NAME)
    assert expand(KNOWLEDGE, uid(1), ["references"]).items == ()
    rebuild(graph)
    assert expand(KNOWLEDGE, uid(1), ["references"]) == before


def test_brain_weak_04_a_row_is_marked_first_and_a_late_message_cannot_bring_its_node_back(
    graph: GraphPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    star(range(2, 4))
    upsert, remove = graph.upsert, graph.remove

    def away(*_: Any) -> Any:
        raise UnavailableError("the graph is away")

    monkeypatch.setattr(graph, "remove", away)
    soft_delete(KNOWLEDGE, uid(2))
    assert uid(2) in graph.revisions(NAME), "the graph lags"
    assert [item.object.id for item in expand(KNOWLEDGE, uid(1), ["references"]).items] == [uid(3)]
    assert search(KNOWLEDGE, "doc 2").results[0].object.id == uid(3)
    monkeypatch.setattr(graph, "remove", remove)
    settle()
    upsert(NAME, [GraphNode(uid(2), 1, "note", "doc 2")], [])  # a copy of the first message, late
    assert uid(2) not in graph.revisions(NAME)
    put_many(KNOWLEDGE, [new(2, "doc 2")])
    settle()
    assert [item.object.id for item in expand(KNOWLEDGE, uid(1), ["references"]).items] == [uid(2), uid(3)]
    assert read(KNOWLEDGE, uid(2)).revision == 3
