from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pytest
from brain_kit import KNOWLEDGE, OTHER, new, settle, titles, uid
from hash_embedder import HashEmbedder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isotherm.pipeline import text
from isotherm.pipeline.brain import bm25
from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.index_text import text_of
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.fusion import Fusion
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_search, namespaces
from isotherm.storage.postgres.brain_search import Near
from isotherm.storage.postgres.pool import connection, fetch_all, reading
from isotherm.tasks import brain
from isotherm.tasks.produce_brain import knowledge, put_many, search, soft_delete

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from isotherm.pipeline.brain.objects import NewObject
    from isotherm.pipeline.identity import Namespace
    from isotherm.storage.opened import Storage

NOW = datetime.now(UTC)

pytestmark = pytest.mark.usefixtures("words_only")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


class Told:
    """An embedder that is told what texts mean; it stands for a model whose vectors a test can reason about."""

    model, dimension = "told", 384

    def __init__(self, **axes: int) -> None:
        self.axes = axes

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        found = np.zeros((len(texts), 384), dtype=np.float32)
        for row, one in enumerate(texts):
            found[row, next((axis for word, axis in self.axes.items() if word in one.split()), 300)] = 1
        return found


def test_brain_s01_s02_a_document_is_found_by_its_part_in_its_own_namespace_only() -> None:
    for ns in (KNOWLEDGE, OTHER):
        put_many(ns, [new(1, f"OAuth guide of {ns.tenant}"), new(2, "", "oauth pkce implementation details", parent=1)])
    [result] = search(KNOWLEDGE, "oauth pkce implementation").results
    assert result.object.title == "OAuth guide of None"
    assert result.object.content is None
    assert [(e.part_id, e.snippet) for e in result.evidence] == [(uid(2), "oauth pkce implementation details")]
    assert titles(search(OTHER, "oauth pkce implementation")) == ["OAuth guide of other"]
    assert search(knowledge("nobody"), "oauth").results == ()


def test_brain_s03_an_unrelated_word_finds_nothing() -> None:
    put_many(KNOWLEDGE, [new(1, "OAuth guide"), new(2, "", "oauth", parent=1)])
    answer = search(KNOWLEDGE, "zebra")
    assert (answer.results, answer.degraded, answer.truncated) == ((), (), False)


def test_brain_s04_properties_of_a_part_or_of_its_document_limit_a_search() -> None:
    put_many(
        KNOWLEDGE,
        [
            new(1, "First"),
            new(2, "", "same words", parent=1, properties={"stage": "negotiation", "amount": 10.0}),
            new(3, "Second", properties={"owner": "ann"}),
            new(4, "", "same words", parent=3, properties={"hot": True, "amount": 20}),
        ],
    )
    for wanted, found in (
        ({"stage": "negotiation"}, ["First"]),
        ({"stage": ["closed", "negotiation"]}, ["First"]),
        ({"owner": "ann"}, ["Second"]),
        ({"amount": 10}, ["First"]),
        ({"amount": [10, 20]}, ["First", "Second"]),
        ({"hot": True}, ["Second"]),
        ({"hot": 1}, []),
        ({"amount": "10"}, []),
        ({"hot": True, "owner": "ann"}, ["Second"]),
        ({"absent": "x"}, []),
    ):
        assert sorted(titles(search(KNOWLEDGE, "same words", properties=wanted))) == found, wanted


def test_brain_s05_by_ranks_each_leg_counts_the_same(memory: Storage) -> None:
    """Run with fusion by ranks and without decay."""
    factory.use_embedder(memory.settings, Told(here=1, query=1, there=2))
    put_many(
        KNOWLEDGE,
        [new(1, "Words"), new(2, "", "unique-token there", parent=1), new(3, "Sense"), new(4, "", "here", parent=3)],
    )
    settle()
    found = search(KNOWLEDGE, "unique-token query", fusion=Fusion.RRF, decay=Decay.off()).results
    assert {r.object.title: pytest.approx(r.score) for r in found} == {"Words": 1 / 61, "Sense": 1 / 61}


def test_brain_s06_weak_06_scope_ids_limit_to_documents_and_their_parts_and_none_means_nothing() -> None:
    """The original took an empty list, or one of nil ids, for no limit at all."""
    put_many(KNOWLEDGE, [new(1, "P1"), new(2, "", "same", parent=1), new(3, "P2"), new(4, "", "same", parent=3)])
    assert titles(search(KNOWLEDGE, "same", scope_ids=[uid(1)])) == ["P1"]
    assert titles(search(KNOWLEDGE, "same", scope_ids=[uid(4)])) == ["P2"]
    assert titles(search(KNOWLEDGE, "same", scope_ids=[])) == []
    assert titles(search(KNOWLEDGE, "same", scope_ids=[UUID(int=0)])) == []


@pytest.mark.parametrize(
    "wrong",
    [{"query": " "}, {"limit": 0}, {"limit": 201}, {"properties": {"": 1}}, {"properties": {"a": []}},
     {"properties": {"a": {"b": 1}}}, {"properties": {"a": None}}, {"kinds": [" "]}],
)  # fmt: skip
def test_brain_s07_searches_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp")])
    with pytest.raises(RejectedError):
        search(KNOWLEDGE, **{"query": "kelp", **wrong})


def test_brain_s10_kinds_of_parts_and_of_documents_limit_a_search() -> None:
    """In the original the kind of a document found nothing, since only parts were looked at."""
    put_many(
        KNOWLEDGE,
        [
            new(1, "Doc", kind="document"),
            new(2, "", "same", parent=1, kind="chunk"),
            new(3, "Note", "same", kind="note"),
        ],
    )
    assert titles(search(KNOWLEDGE, "same", kinds=["chunk"])) == ["Doc"]
    assert titles(search(KNOWLEDGE, "same", kinds=["document"])) == ["Doc"]
    assert titles(search(KNOWLEDGE, "same", kinds=["note"])) == ["Note"]
    assert sorted(titles(search(KNOWLEDGE, "same", kinds=["note", "chunk"]))) == ["Doc", "Note"]
    assert titles(search(KNOWLEDGE, "same", kinds=["other"])) == []


@pytest.mark.parametrize("fault", [TransientError("away"), RejectedError("refused")])
def test_brain_s11_a_model_out_of_reach_degrades_a_search_to_words(memory: Storage, fault: Exception) -> None:
    class Faulty(HashEmbedder):
        def embed(self, _: Sequence[str]) -> NDArray[np.float32]:
            raise fault

    factory.use_embedder(memory.settings, Faulty())
    put_many(KNOWLEDGE, [new(1, "Doc"), new(2, "", "kelp", parent=1)])
    answer = search(KNOWLEDGE, "kelp")
    assert (titles(answer), answer.degraded) == (["Doc"], ("vector",))


def test_brain_s12_a_document_without_parts_is_found() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp forest")])
    assert titles(search(KNOWLEDGE, "kelp")) == ["Kelp forest"]
    put_many(KNOWLEDGE, [new(2, "", "kelp", parent=1)])
    [result] = search(KNOWLEDGE, "kelp").results
    assert [e.part_id for e in result.evidence] == [uid(2)]


def test_brain_w07_properties_are_found_as_plain_text() -> None:
    put_many(KNOWLEDGE, [new(1, "Deal", properties={"stage": "negotiation", "amount": 1_200_000.0, "hot": True})])
    for query in ("negotiation", "1200000", "amount"):
        assert titles(search(KNOWLEDGE, query)) == ["Deal"]


def test_brain_weak_12_age_never_buries_a_strong_match_unless_the_floor_is_zero() -> None:
    put_many(KNOWLEDGE, [new(1, "Old", "kelp kelp forest"), new(2, "New", "a long text about this and that and kelp")])
    with connection() as conn:
        conn.execute("UPDATE brain_objects SET updated_at = now() - interval '2 years' WHERE title = 'Old'")
    assert titles(search(KNOWLEDGE, "kelp forest")) == ["Old", "New"]
    assert titles(search(KNOWLEDGE, "kelp forest", decay=Decay(floor=0))) == ["New", "Old"]
    assert titles(search(KNOWLEDGE, "kelp forest", decay=Decay.off())) == ["Old", "New"]


def test_scores_are_the_sum_of_what_the_legs_add(memory: Storage) -> None:
    factory.use_embedder(memory.settings, HashEmbedder())
    put_many(KNOWLEDGE, [new(n, f"kelp {'grows ' * n}", f"text {n}") for n in range(1, 9)])
    settle()
    for result in search(KNOWLEDGE, "kelp grows", decay=Decay.off()).results:
        assert result.score == pytest.approx(sum(share.added for share in result.best.shares.values()))
        assert set(result.best.shares) == {"lexical", "vector"}


def test_what_one_leg_finds_the_other_one_scores_too(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    factory.use_embedder(memory.settings, Told(kelp=1, algae=1, moss=2))
    put_many(KNOWLEDGE, [new(1, "kelp and stone"), new(2, "algae"), new(3, "moss and stone")])
    settle()
    monkeypatch.setattr("isotherm.storage.brain_find.PER_WANTED", 1)
    monkeypatch.setattr(memory.brain._finder, "_config", EngineConfig(candidate_k=1))
    shares = {r.object.title: set(r.best.shares) for r in search(KNOWLEDGE, "algae stone", limit=1).results}
    assert shares == {"algae": {"lexical", "vector"}}


def test_a_document_with_many_parts_leaves_room_for_the_others() -> None:
    put_many(KNOWLEDGE, [new(1, "Big"), *[new(n, "", "kelp", parent=1) for n in range(100, 400)]])
    put_many(KNOWLEDGE, [new(n, f"Small {n}", "kelp and " + "other words " * 20) for n in range(2, 12)])
    settle()
    answer = search(KNOWLEDGE, "kelp", limit=10)
    assert len(answer.results) == 10
    assert answer.results[0].object.title == "Big"
    assert len(answer.results[0].evidence) == 3
    assert not answer.truncated


def twin(objects: Sequence[NewObject], query: str) -> dict[UUID, float]:
    parents = {o.id: o.title for o in objects}
    counts = {o.id: text.term_counts(text_of(o, parents.get(o.parent_id) if o.parent_id else None)) for o in objects}
    return bm25.scores(text.terms(query), counts)


def leg(ns: Namespace, query: str, filters: Filters | None = None, k: int = 1_000, **more: Any) -> brain_search.Leg:
    place = namespaces.find(ns)
    assert place is not None
    with connection() as conn:
        return brain_search.lexical(conn, place.namespace_id, text.terms(query), filters or Filters(), k, **more)


WORDS = [f"w{n}" for n in range(12)]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=15).map(" ".join), min_size=1, max_size=12)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ours=TEXTS, theirs=TEXTS, query=st.lists(st.sampled_from(WORDS), min_size=1, max_size=5), folded=st.booleans())
def test_bm25_in_sql_is_bm25_in_process_whatever_another_namespace_holds(
    memory: Storage, ours: list[str], theirs: list[str], query: list[str], *, folded: bool
) -> None:
    assert memory
    here, there = (knowledge(f"bm25-{uid_of()}") for _ in range(2))
    objects = [new(n + 1, content=content) for n, content in enumerate(ours)]
    put_many(there, [new(n + 1, content=content) for n, content in enumerate(theirs)])
    put_many(here, objects)
    if folded:
        brain.fold()
    found = leg(here, " ".join(query))
    wanted = twin(objects, " ".join(query))
    assert {row.id: pytest.approx(row.score) for row in found.found} == wanted
    assert [row.score for row in found.found] == sorted((row.score for row in found.found), reverse=True)
    everything = Filters.of(kinds=["note"])
    for small in (True, False):
        same = leg(here, " ".join(query), everything, small=small)
        assert {row.id: pytest.approx(row.score) for row in same.found} == wanted
    some = leg(here, " ".join(query), k=1, also=[row.key for row in found.found])
    assert {row.id: pytest.approx(row.score) for row in (*some.found, *some.others)} == wanted


_numbers = iter(range(10**6))


def uid_of() -> int:
    return next(_numbers)


def test_statistics_are_the_same_before_and_after_they_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [new(n, content=" ".join(WORDS[: n % 12 + 1])) for n in range(1, 61)]
    for at in range(0, 60, 20):
        put_many(KNOWLEDGE, objects[at : at + 20])
    wanted = {i: pytest.approx(score) for i, score in twin(objects, "w3 w11").items()}
    assert {row.id: row.score for row in leg(KNOWLEDGE, "w3 w11").found} == wanted
    brain.fold()
    monkeypatch.setattr(brain_search, "COUNTED", 1)
    assert {row.id: row.score for row in leg(KNOWLEDGE, "w3 w11").found} == wanted
    soft_delete(KNOWLEDGE, uid(60))
    brain.fold()
    wanted = {i: pytest.approx(score) for i, score in twin(objects[:-1], "w3 w11").items()}
    assert {row.id: row.score for row in leg(KNOWLEDGE, "w3 w11").found} == wanted


def test_candidates_of_the_rarest_words_are_scored_by_all_words(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = [new(n, content="often" + (" seldom" if n % 10 == 0 else "")) for n in range(1, 101)]
    put_many(KNOWLEDGE, objects)
    monkeypatch.setattr(brain_search, "CANDIDATE_POSTINGS", 20)
    found = leg(KNOWLEDGE, "often seldom", k=5)
    wanted = twin(objects, "often seldom")
    assert {row.id: row.score for row in found.found} == {row.id: pytest.approx(wanted[row.id]) for row in found.found}
    assert {row.id for row in found.found} <= {uid(n) for n in range(10, 101, 10)}
    assert not found.truncated
    assert leg(KNOWLEDGE, "often seldom", k=50).truncated
    # A limited search looks at every row that is left, however frequent its words are.
    few = Filters.of(scope_ids=[uid(n) for n in range(1, 31)])
    assert len(leg(KNOWLEDGE, "often seldom", few, k=50, small=True).found) == 30
    # Even when the rare words propose nothing of it.
    other = Filters.of(scope_ids=[uid(1), uid(2)])
    assert {row.id for row in leg(KNOWLEDGE, "often seldom", other, small=True).found} == {uid(1), uid(2)}
    assert leg(KNOWLEDGE, "often seldom", other) == brain_search.Leg(truncated=True)


def near(embedder: Any, query: str) -> Near:
    return Near(embedder.model, embedder.embed([query])[0])


def test_vectors_of_another_model_are_never_compared(memory: Storage) -> None:
    factory.use_embedder(memory.settings, HashEmbedder(model="old"))
    put_many(KNOWLEDGE, [new(1, "kelp")])
    settle()
    factory.use_embedder(memory.settings, HashEmbedder(model="fresh"))
    put_many(KNOWLEDGE, [new(2, "kelp")])
    settle()
    place = namespaces.find(KNOWLEDGE)
    assert place is not None
    with connection() as conn:
        for model, found in (("old", [uid(1)]), ("fresh", [uid(2)]), ("none", [])):
            leg = brain_search.vectors(conn, place.namespace_id, near(HashEmbedder(model=model), "kelp"), Filters(), 10)
            assert [row.id for row in leg.found] == found


@pytest.mark.parametrize("exact", [True, False])
def test_a_small_or_limited_set_beside_a_large_one_gets_all_it_asks_for(
    memory: Storage, monkeypatch: pytest.MonkeyPatch, *, exact: bool
) -> None:
    embedder = HashEmbedder()
    factory.use_embedder(memory.settings, embedder)
    put_many(KNOWLEDGE, [new(n, f"kelp {n}", kind="rare" if n % 20 == 0 else "note") for n in range(1, 401)])
    put_many(OTHER, [new(n, f"kelp {n}") for n in range(1, 31)])
    settle()
    if not exact:
        monkeypatch.setattr(brain_search, "EXACT", 5)
        monkeypatch.setattr(brain_search, "EXACT_ALONE", 5)
    for ns, filters, count in (
        (KNOWLEDGE, Filters(), 40),
        (KNOWLEDGE, Filters.of(kinds=["rare"]), 20),
        (KNOWLEDGE, Filters.of(scope_ids=[uid(n) for n in range(1, 13)]), 12),
        (OTHER, Filters(), 30),
    ):
        place = namespaces.find(ns)
        assert place is not None
        with connection() as conn:
            found = brain_search.vectors(conn, place.namespace_id, near(embedder, "kelp 7"), filters, 40)
        # Where the index comes to fewer than asked for, every vector is compared after all.
        assert (len(found.found), found.truncated) == (count, False)
        scores = [row.score for row in found.found]
        assert scores == sorted(scores, reverse=True)
        with reading() as conn:
            assert brain_search.vectors(conn, place.namespace_id, near(embedder, "kelp 7"), filters, 40) == found
            assert conn.execute("SHOW enable_sort").fetchall() == [("on",)]
    assert fetch_all("SHOW enable_sort") == [("on",)]


TITLES = st.lists(st.sampled_from(["kelp", "moss", "fern", "kelp moss"]), min_size=1, max_size=6)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shelves=st.lists(TITLES, min_size=2, max_size=4), query=st.sampled_from(["kelp", "moss fern", "fern"]))
def test_no_search_crosses_a_namespace(memory: Storage, shelves: list[list[str]], query: str) -> None:
    """Ids, words and vectors are the same everywhere; only the namespace tells them apart."""
    factory.use_embedder(memory.settings, HashEmbedder())
    places = [knowledge(f"shelf-{uid_of()}", tenant=f"t{n}") for n, _ in enumerate(shelves)]
    for ns, shelf in zip(places, shelves, strict=True):
        put_many(ns, [new(n + 1, f"{title} of {ns.agent}") for n, title in enumerate(shelf)])
    settle()
    for ns, shelf in zip(places, shelves, strict=True):
        found = titles(search(ns, query, limit=50))
        assert all(title.endswith(f"of {ns.agent}") for title in found)
        having = {f"{title} of {ns.agent}" for title in shelf if set(title.split()) & set(query.split())}
        assert having <= set(found)
        assert titles(search(ns, query, scope_ids=[uid(n) for n in range(1, 7)], limit=50)) == found


def test_a_question_in_quotes_and_operators_is_only_words() -> None:
    put_many(KNOWLEDGE, [new(1, 'Kelp\'s %s {depth} \\ "twelve"')])
    assert titles(search(KNOWLEDGE, "%(ns)s {0} 'twelve\\")) == ['Kelp\'s %s {depth} \\ "twelve"']


def test_updated_times_come_from_the_write() -> None:
    before = datetime.now(UTC)
    put_many(KNOWLEDGE, [new(1, "Kelp")])
    [result] = search(KNOWLEDGE, "kelp").results
    assert before <= result.object.updated_at <= datetime.now(UTC)
