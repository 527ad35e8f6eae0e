"""Rows of the specification of the knowledge base about finding: exact names, whole objects, edges by note, and pages."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from brain_kit import KNOWLEDGE, OTHER, new, settle, titles, uid
from hash_embedder import HashEmbedder

from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.errors import (
    CatalogFrozenError,
    EdgeSearchUnavailableError,
    GraphRequiredError,
    GraphWriterRequiredError,
    LinkQueryRequiredError,
    ObjectIdRequiredError,
    ObjectNotFoundError,
    ObjectSearchUnavailableError,
    QueryRequiredError,
    RerankError,
    ResultSetIdRequiredError,
    ResultSetNotFoundError,
    ResultSetRequiredError,
)
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.kinds import FieldSpec, FieldType, KindSpec
from isotherm.pipeline.brain.links import EdgeKey, EdgeMeta, NewLink
from isotherm.pipeline.brain.observing import Op, Outcome
from isotherm.pipeline.brain.result_sets import SearchContext, cursor
from isotherm.pipeline.errors import TransientError
from isotherm.storage.brain import Engine
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.pool import connection
from isotherm.tasks import produce_brain
from isotherm.tasks.produce_brain import (
    continue_,
    find_exact,
    find_links,
    find_objects,
    knowledge,
    link,
    list_children,
    put_many,
    read,
    search,
    soft_delete,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isotherm.pipeline.brain.objects import Object
    from isotherm.storage.opened import Storage

DOCUMENT = KindSpec("Document", is_parent=True, fields=(FieldSpec("stage", FieldType.STRING),))
CHUNK = KindSpec("Chunk", is_part=True)

pytestmark = pytest.mark.usefixtures("words_only")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


def engine(memory: Storage, **made: Any) -> Engine:
    """Another engine over the same rows."""
    return Engine(made.pop("graph", memory.brain.graph), lambda: None, memory.patience, **made)


def five() -> None:
    put_many(KNOWLEDGE, [new(n, f"Kelp {n}", "kelp forest") for n in range(1, 6)])


def test_brain_s08_pages_survive_export_and_an_old_search_lives_beside_a_new_one() -> None:
    """In the original a new search ended the pages of the one before; here each lives until its time is over."""
    five()
    context = SearchContext()
    first = search(KNOWLEDGE, "kelp", limit=2, context=context)
    assert (len(first.results), first.has_more) == (2, True)
    assert first.cursor is not None
    second = continue_(KNOWLEDGE, first.cursor, context, limit=2)
    assert second.cursor is not None
    again = SearchContext()
    again.restore(context.export())
    third = continue_(KNOWLEDGE, second.cursor, again, limit=2)
    pages = [titles(page) for page in (first, second, third)]
    assert [len(page) for page in pages] == [2, 2, 1]
    assert len({title for page in pages for title in page}) == 5
    assert (third.has_more, third.cursor) == (False, None)
    search(KNOWLEDGE, "forest", context=context)
    assert titles(continue_(KNOWLEDGE, first.cursor, context, limit=2)) == pages[1]
    late = SearchContext(now=lambda: datetime.now(UTC) + timedelta(hours=1))
    late.restore(context.export())
    with pytest.raises(ResultSetNotFoundError):
        continue_(KNOWLEDGE, first.cursor, late)


def test_brain_weak_21_later_pages_have_scores_and_evidence_and_never_come_short() -> None:
    put_many(KNOWLEDGE, [o for n in range(1, 7) for o in (new(n, f"D{n}"), new(n + 10, "", "kelp " * n, parent=n))])
    context = SearchContext()
    whole = search(KNOWLEDGE, "kelp", limit=6)
    first = search(KNOWLEDGE, "kelp", limit=2, context=context)
    assert first.cursor is not None
    later = continue_(KNOWLEDGE, first.cursor, context, limit=2)
    assert [(r.score, r.evidence) for r in later.results] == [
        (
            pytest.approx(r.score, rel=1e-4),
            tuple(replace(e, score=pytest.approx(e.score, rel=1e-4)) for e in r.evidence),
        )
        for r in whole.results[2:4]
    ]
    assert continue_(KNOWLEDGE, first.cursor, context, limit=2) == later
    soft_delete(KNOWLEDGE, whole.results[2].object.id)
    assert titles(continue_(KNOWLEDGE, first.cursor, context, limit=2)) == [r.object.title for r in whole.results[3:5]]


def test_pages_belong_to_their_namespace_and_need_a_cursor_and_a_context(memory: Storage) -> None:
    five()
    context = SearchContext()
    first = search(KNOWLEDGE, "kelp", limit=2, context=context)
    assert first.cursor is not None
    for ns in (OTHER, knowledge("nobody")):
        with pytest.raises(ResultSetNotFoundError):
            continue_(ns, first.cursor, context)
    with pytest.raises(ResultSetIdRequiredError):
        continue_(KNOWLEDGE, " ", context)
    with pytest.raises(ResultSetIdRequiredError):
        continue_(KNOWLEDGE, cursor(UUID(int=0), 0), context)
    with pytest.raises(ResultSetNotFoundError):
        continue_(KNOWLEDGE, "no cursor", context)
    with pytest.raises(ResultSetRequiredError):
        memory.brain.continue_(KNOWLEDGE, first.cursor, None)
    assert first.result_set_id is not None
    assert continue_(KNOWLEDGE, cursor(first.result_set_id, 99), context).results == ()


def test_brain_s09_with_kinds_registered_others_are_not_searched_and_kinds_are_frozen(memory: Storage) -> None:
    put_many(KNOWLEDGE, [new(1, "Doc", kind="Document"), new(2, "", "kelp", parent=1, kind="OrphanKind")])
    memory.brain.register_kinds([DOCUMENT, CHUNK])
    assert titles(search(KNOWLEDGE, "kelp")) == []
    assert memory.brain.catalog.frozen
    with pytest.raises(CatalogFrozenError):
        memory.brain.register_kinds([CHUNK])


def test_brain_x01_x05_an_id_answers_alone() -> None:
    put_many(KNOWLEDGE, [new(1, "Guide"), new(2, "Part", "kelp", parent=1), new(3, str(uid(1)))])
    [whole] = find_exact(KNOWLEDGE, f" {uid(1)} ").results
    assert (whole.object.title, whole.evidence, whole.score) == ("Guide", (), 1.0)
    [part] = find_exact(KNOWLEDGE, str(uid(2)).upper()).results
    assert (part.object.title, [e.part_id for e in part.evidence]) == ("Guide", [uid(2)])
    for ns, wanted in ((OTHER, uid(1)), (KNOWLEDGE, uid(9))):
        with pytest.raises(ObjectNotFoundError):
            find_exact(ns, str(wanted))


def test_brain_x02_a_part_called_just_so_brings_its_object_first(memory: Storage) -> None:
    """Run with fusion by ranks; the original added the bonus before age took its share."""
    put_many(KNOWLEDGE, [new(1, "Code"), new(2, "exact-filename.go", "package main", parent=1)])
    put_many(KNOWLEDGE, [new(n, f"Other {n}", "exact filename go go " * 3) for n in range(3, 9)])
    put_many(KNOWLEDGE, [new(9, "near exact-filename.goo")])
    with connection() as conn:
        conn.execute(
            "UPDATE brain_objects SET updated_at = now() - interval '3 years' WHERE title = 'exact-filename.go'"
        )
    go = engine(memory, config=EngineConfig.go_default())
    assert titles(go.find_exact(KNOWLEDGE, "EXACT-filename.go"))[0] == "Code"
    with connection() as conn:
        conn.execute("UPDATE brain_objects SET updated_at = now()")
    put_many(OTHER, [new(1, "Code"), new(2, "exact-filename.go", "package main", parent=1)])
    [best] = go.find_exact(OTHER, "exact-filename.go").results
    assert best.score == pytest.approx(10 + 2 / 61, abs=1e-6)


def test_brain_x03_names_that_are_nearly_right_are_found() -> None:
    """The original's example, six letters of which two trigrams occur, was found only by its in-process store."""
    put_many(KNOWLEDGE, [new(1, "Guide"), new(2, "chunk-title", "gauge-calibration-manual.pdf", parent=1)])
    assert titles(find_exact(KNOWLEDGE, "guage calibraton manual")) == ["Guide"]
    assert titles(find_exact(KNOWLEDGE, "chunk-titel")) == ["Guide"]
    assert titles(find_exact(KNOWLEDGE, "zebra")) == []


def test_brain_x04_a_page_of_one_is_followed_by_the_other_document() -> None:
    put_many(KNOWLEDGE, [o for n in (1, 3) for o in (new(n, f"D{n}"), new(n + 1, "", "oauth pkce", parent=n))])
    context = SearchContext()
    first = search(KNOWLEDGE, "oauth pkce", limit=1, context=context)
    assert first.has_more
    assert first.cursor is not None
    assert sorted(titles(first) + titles(continue_(KNOWLEDGE, first.cursor, context))) == ["D1", "D3"]


def test_brain_weak_17_declared_properties_and_titles_of_documents_are_equal_first(memory: Storage) -> None:
    ticket = KindSpec("Ticket", fields=(FieldSpec("number", FieldType.NUMBER), FieldSpec("code", FieldType.STRING)))
    memory.brain.register_kinds([ticket])
    put_many(KNOWLEDGE, [new(n, f"SR-052 and more {n}", kind="Ticket") for n in range(2, 12)])
    put_many(KNOWLEDGE, [new(1, "Pump", kind="Ticket", properties={"code": "SR-052", "number": 1_200_000.0})])
    assert titles(find_exact(KNOWLEDGE, "SR-052"))[0] == "Pump"
    assert titles(find_exact(KNOWLEDGE, "1200000")) == ["Pump"]
    assert titles(find_exact(KNOWLEDGE, "pump"))[0] == "Pump"
    assert titles(find_exact(KNOWLEDGE, "SR-052", filters=Filters.of(["Ticket"], {"number": {"lt": 5}}))) == []


def test_brain_w14_f01_whole_objects_are_found_by_their_properties() -> None:
    put_many(
        KNOWLEDGE,
        [new(1, "Acme", kind="Deal", properties={"stage": "negotiation"}), new(2, "", "negotiation", parent=1)],
    )
    [found] = find_objects(KNOWLEDGE, "negotiation", filters=Filters.of(["Deal"])).results
    assert (found.object.title, found.evidence) == ("Acme", ())
    for stage, count in (("negotiation", 1), ("closed", 0)):
        within = Filters.of(["Deal"], {"stage": stage})
        assert len(find_objects(KNOWLEDGE, "acme", filters=within).results) == count


def test_brain_f02_whole_objects_come_in_pages() -> None:
    put_many(KNOWLEDGE, [new(n, f"Fact {n}", kind="Fact") for n in range(1, 7)])
    context = SearchContext()
    first = find_objects(KNOWLEDGE, "fact", limit=2, context=context)
    assert (len(first.results), first.has_more) == (2, True)
    assert first.cursor is not None
    second = continue_(KNOWLEDGE, first.cursor, context, limit=2)
    assert second.result_set_id == first.result_set_id
    assert not set(titles(first)) & set(titles(second))


def test_brain_f03_s07_what_cannot_be_searched_is_refused_or_empty(memory: Storage) -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp", kind="Fact")])
    soft_delete(KNOWLEDGE, uid(1))
    assert find_objects(KNOWLEDGE, "kelp").results == ()
    put_many(KNOWLEDGE, [new(1, "Kelp", kind="Fact")])
    assert find_objects(OTHER, "kelp").results == ()
    for verb in (search, find_exact, find_objects):
        with pytest.raises(QueryRequiredError):
            verb(KNOWLEDGE, " \n")
    alone = engine(memory, graph=None)
    with pytest.raises(ObjectSearchUnavailableError):
        alone.find_objects(KNOWLEDGE, "kelp")
    assert (alone.has_object_search, alone.has_edge_search, alone.has_graph_writer) == (False, False, False)
    assert (memory.brain.has_object_search, memory.brain.has_edge_search) == (True, True)


def test_brain_l01_edges_are_found_by_their_notes() -> None:
    put_many(KNOWLEDGE, [new(n, title) for n, title in ((1, "A"), (2, "B"), (3, "C"))])
    link(KNOWLEDGE, uid(1), uid(2), "references", note="risk budget concern")
    link(KNOWLEDGE, uid(1), uid(3), "references", note="预算风险 and the weather")
    link(KNOWLEDGE, uid(2), uid(3), "other", note="budget")
    [hit] = find_links(KNOWLEDGE, "References", "budgets").links
    assert (hit.source.title, hit.target.title, hit.edge.meta.note) == ("A", "B", "risk budget concern")
    assert [h.target.title for h in find_links(KNOWLEDGE, "references", "预算").links] == ["C"]
    assert [h.target.title for h in find_links(KNOWLEDGE, "references", "eathe").links] == ["C"]
    assert find_links(OTHER, "references", "budget").links == ()
    for label, query in ((" ", "budget"), ("references", " ")):
        with pytest.raises(LinkQueryRequiredError):
            find_links(KNOWLEDGE, label, query)
    soft_delete(KNOWLEDGE, uid(2))
    assert find_links(KNOWLEDGE, "references", "budget").links == ()
    settle()


def test_brain_weak_20_edges_with_more_of_the_words_come_first_and_a_cut_is_said() -> None:
    put_many(KNOWLEDGE, [new(n, f"T{n}") for n in range(1, 5)])
    for n, note in ((2, "budget"), (3, "budget and risk"), (4, "weather")):
        link(KNOWLEDGE, uid(1), uid(n), "about", note=note)
    found = find_links(KNOWLEDGE, "about", "risk budget")
    assert [(h.target.title, h.score) for h in found.links] == [("T3", 1.0), ("T2", 0.5)]
    cut = find_links(KNOWLEDGE, "about", "risk budget", limit=1)
    assert ([h.target.title for h in cut.links], cut.truncated) == (["T3"], True)
    settle()


def test_brain_w12_e09_an_engine_without_a_graph_says_so(memory: Storage) -> None:
    put_many(KNOWLEDGE, [new(1, "A"), new(2, "B")])
    alone, place = engine(memory, graph=None), namespaces.resolve(KNOWLEDGE)
    new_link = NewLink(EdgeKey(uid(1), uid(2), "about"), EdgeMeta())
    operation = produce_brain._operation("brain.link", KNOWLEDGE, place, None, [])
    with pytest.raises(GraphWriterRequiredError):
        alone.link(operation, place, new_link)
    with pytest.raises(GraphWriterRequiredError):
        alone.unlink(operation, place, new_link.key)
    with pytest.raises(EdgeSearchUnavailableError):
        alone.find_links(KNOWLEDGE, "about", "x")
    with pytest.raises(GraphRequiredError):
        alone.expand(KNOWLEDGE, uid(1), ["about"])


def test_brain_weak_26_children_are_listed_in_order_and_only_of_what_is_there() -> None:
    parts = [new(n, f"P{n}", "text", parent=1, position=at) for n, at in ((2, 5), (3, None), (4, 1))]
    put_many(KNOWLEDGE, [new(1, "Doc"), *parts])
    found = list_children(KNOWLEDGE, uid(1))
    assert [(o.title, o.content) for o in found] == [("P4", None), ("P2", None), ("P3", None)]
    for ns, wanted, error in (
        (KNOWLEDGE, uid(9), ObjectNotFoundError),
        (OTHER, uid(1), ObjectNotFoundError),
        (KNOWLEDGE, UUID(int=0), ObjectIdRequiredError),
    ):
        for verb in (list_children, read):
            with pytest.raises(error):
                verb(ns, wanted)


class Backwards:
    """A reranker that turns the order around, or does worse."""

    def __init__(self, answer: Any = "backwards") -> None:
        self.answer = answer
        self.seen: list[str] = []

    def rerank(self, query: str, objects: Sequence[Object]) -> Sequence[UUID] | None:
        self.seen = [query, *(each.title for each in objects)]
        if isinstance(self.answer, Exception):
            raise self.answer
        return [each.id for each in reversed(objects)] if self.answer == "backwards" else self.answer


def test_brain_weak_22_a_reranker_orders_all_pages_and_may_only_leave_out(memory: Storage) -> None:
    five()
    plain = titles(search(KNOWLEDGE, "kelp", limit=5))
    turned = engine(memory, reranker=Backwards())
    context = SearchContext()
    first = turned.search(KNOWLEDGE, "kelp", limit=2, context=context)
    assert first.cursor is not None
    rest = turned.continue_(KNOWLEDGE, first.cursor, context)
    assert titles(first) + titles(rest) == plain[::-1]
    assert titles(engine(memory, reranker=Backwards(None)).search(KNOWLEDGE, "kelp", limit=5)) == plain
    one = engine(memory, reranker=Backwards([uid(3)])).search(KNOWLEDGE, "kelp", limit=5)
    assert (titles(one), one.has_more) == (["Kelp 3"], False)
    for wrong in ([uid(3), uid(3)], [uid(77)]):
        with pytest.raises(RerankError):
            engine(memory, reranker=Backwards(wrong)).search(KNOWLEDGE, "kelp")
    away = engine(memory, reranker=Backwards(TransientError("away"))).search(KNOWLEDGE, "kelp", limit=5)
    assert (titles(away), away.degraded) == (plain, ("rerank",))
    few = engine(memory, reranker=Backwards(), config=EngineConfig(rerank_n=2)).search(KNOWLEDGE, "kelp", limit=5)
    assert titles(few) == [plain[1], plain[0], *plain[2:]]


class Recording:
    """An observer that keeps what it is told, and then fails."""

    def __init__(self) -> None:
        self.told: list[Outcome] = []

    def ended(self, outcome: Outcome) -> None:
        self.told.append(outcome)
        raise RuntimeError


def test_brain_weak_29_every_verb_is_observed_with_candidates_of_each_leg(memory: Storage) -> None:
    watching = memory.brain.observer = Recording()
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "Moss")])
    link(KNOWLEDGE, uid(1), uid(2), "near", note="bay")
    context = SearchContext()
    found = search(KNOWLEDGE, "kelp moss", limit=1, context=context)
    assert found.cursor is not None
    continue_(KNOWLEDGE, found.cursor, context)
    find_exact(KNOWLEDGE, "kelp")
    find_objects(KNOWLEDGE, "kelp")
    find_links(KNOWLEDGE, "near", "bay")
    read(KNOWLEDGE, uid(1))
    list_children(KNOWLEDGE, uid(1))
    memory.brain.schema()
    produce_brain.unlink(KNOWLEDGE, uid(1), uid(2), "near")
    soft_delete(KNOWLEDGE, uid(1))
    with pytest.raises(ObjectNotFoundError):
        read(KNOWLEDGE, uid(1))
    assert [(o.op, o.hits) for o in watching.told] == [
        (Op.PUT, 2), (Op.LINK, 1), (Op.SEARCH, 1), (Op.CONTINUE, 1), (Op.FIND_EXACT, 1), (Op.FIND_OBJECTS, 1),
        (Op.FIND_LINKS, 1), (Op.READ, 1), (Op.LIST_CHILDREN, 0), (Op.SCHEMA, 0), (Op.UNLINK, 1), (Op.SOFT_DELETE, 1),
        (Op.READ, 0),
    ]  # fmt: skip
    assert watching.told[2].legs == {"lexical": 2}
    assert (watching.told[-1].error, watching.told[0].error) == ("ObjectNotFoundError", "observer")
    assert all(o.elapsed_ms > 0 for o in watching.told)
    settle()


def test_an_embedder_that_is_away_can_fail_a_search(memory: Storage) -> None:
    class Away(HashEmbedder):
        def embed(self, _: Sequence[str]) -> Any:
            raise TransientError("away")

    five()
    failing = Engine(None, Away, memory.patience, config=EngineConfig(fail_on_embedder_error=True))
    with pytest.raises(TransientError):
        failing.search(KNOWLEDGE, "kelp")
    degraded = Engine(None, Away, memory.patience).search(KNOWLEDGE, "kelp")
    assert (len(degraded.results), degraded.degraded) == (5, ("vector",))


def test_evidence_shows_the_words_that_were_looked_for_and_the_part_s_properties() -> None:
    long = (
        "The weather was fine and nothing happened. " * 30 + "Then the calibration drifted by two volts. " + "x " * 400
    )
    put_many(KNOWLEDGE, [new(1, "Log"), new(2, "", long, parent=1, properties={"page": 4})])
    [found] = search(KNOWLEDGE, "calibration drift").results
    [evidence] = found.evidence
    assert "calibration drifted by two volts" in evidence.snippet
    assert len(evidence.snippet) <= 243
    assert evidence.properties == {"page": 4}
