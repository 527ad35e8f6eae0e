from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.brain import bm25
from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.brain.expand import Wanted, split_labels
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.index_text import entity_index_text, index_text, index_text_with_parent, text_sha256
from isotherm.pipeline.brain.links import EdgeKey, EdgeMeta, fold_label
from isotherm.pipeline.brain.objects import NewObject, derived_id, namespace_uuid
from isotherm.pipeline.brain.promotion import Hit, promote, snippet
from isotherm.pipeline.brain.walk import Budget, Direction, Neighbor, Walked, trails
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace

NOW = datetime(2026, 7, 1, tzinfo=UTC)
A, B, C = (UUID(int=n) for n in (1, 2, 3))


# Decay


def test_brain_r4_a_rate_of_two_percent_a_day_without_a_floor() -> None:
    decay = Decay(0.02, floor=0)
    assert decay.apply(1.0, NOW - timedelta(days=30), NOW) == pytest.approx(0.548812, abs=1e-6)
    assert decay.apply(1.0, NOW - timedelta(days=1), NOW) == pytest.approx(0.980199, abs=1e-6)


def test_brain_r5_r6_what_age_leaves_alone() -> None:
    old = NOW - timedelta(days=400)
    assert Decay(per_day=0).apply(1.5, old, NOW) == 1.5
    assert Decay.off().apply(1.5, old, NOW) == 1.5
    assert Decay().apply(2.0, NOW + timedelta(days=1), NOW) == 2.0
    assert Decay().apply(0.9, None, NOW) == 0.9
    assert Decay().per_day == 0.02


@pytest.mark.parametrize("wrong", [{"floor": -0.1}, {"floor": 1.1}, {"per_day": math.nan}, {"per_day": math.inf}])
def test_decay_without_bounds_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(RejectedError, match="decay"):
        Decay(**wrong)


@given(
    score=st.floats(0, 100), floor=st.floats(0, 1), rate=st.floats(0, 1),
    days=st.lists(st.floats(0, 10_000), min_size=2, max_size=2),
)  # fmt: skip
def test_age_takes_more_the_longer_it_lasts_and_never_below_the_floor(
    score: float, floor: float, rate: float, days: list[float]
) -> None:
    newer, older = (Decay(rate, floor).apply(score, NOW - timedelta(days=d), NOW) for d in sorted(days))
    assert score * floor - 1e-9 <= older <= newer + 1e-9 <= score + 2e-9


# Promotion


def hit(number: int, score: float, parent: int | None = None, age: int = 0) -> Hit:
    return Hit(UUID(int=number), None if parent is None else UUID(int=parent), score, NOW - timedelta(days=age))


def test_brain_r3_weak_27_equal_scores_come_newest_first_then_by_id() -> None:
    found = promote([hit(2, 1, age=1), hit(1, 1, age=1), hit(3, 1)])
    assert [p.id.int for p in found] == [3, 1, 2]


def test_brain_r7_an_object_has_its_best_score_and_its_best_parts_as_evidence() -> None:
    [found] = promote([hit(11, 3, 1), hit(12, 5, 1), hit(13, 4, 1), hit(1, 1)], evidence=2)
    assert (found.id.int, found.score, [e.id.int for e in found.evidence]) == (1, 5, [12, 13])
    assert found.best.id.int == 12


def test_brain_r8_snippets_are_cut_at_240_characters() -> None:
    assert snippet("x" * 300) == "x" * 240 + "…"
    assert snippet("  \n ") == ""
    assert snippet("x" * 300, 0) == "x" * 300
    assert snippet(" fits ") == "fits"


def test_brain_r9_evidence_of_zero_means_three() -> None:
    [found] = promote([hit(n, n, 1) for n in range(11, 15)], evidence=0)
    assert len(found.evidence) == 3


HITS = st.lists(
    st.builds(hit, st.integers(10, 30), st.integers(0, 5).map(float), st.none() | st.integers(1, 4), st.integers(0, 3)),
    max_size=20,
    unique_by=lambda one: one.id,
)


@given(HITS, st.randoms(use_true_random=False))
def test_promotion_loses_no_object_and_ignores_the_order_of_hits(hits: list[Hit], order: st.DataObject) -> None:
    found = promote(hits)
    assert {p.id for p in found} == {h.parent_id or h.id for h in hits}
    assert len({p.id for p in found}) == len(found)
    for p in found:
        own = [h for h in hits if (h.parent_id or h.id) == p.id]
        assert p.score == max(h.score for h in own)
        assert all(e.parent_id == p.id for e in p.evidence)
    shuffled = list(hits)
    order.shuffle(shuffled)
    assert promote(shuffled) == found


# BM25

COUNTS = st.dictionaries(st.integers(0, 6), st.integers(1, 5), max_size=6)


@given(documents=st.dictionaries(st.integers(0, 9), COUNTS, max_size=8), query=st.lists(st.integers(0, 8), max_size=5))
def test_bm25_scores_what_has_a_word_of_the_query_and_nothing_else(
    documents: dict[int, dict[int, int]], query: list[int]
) -> None:
    found = bm25.scores(query, documents)
    assert set(found) == {key for key, counts in documents.items() if counts.keys() & set(query)}
    assert all(score > 0 for score in found.values())
    assert bm25.scores(query * 2, documents) == found


@given(tf=st.integers(1, 50), length=st.integers(1, 500), average=st.floats(1, 500))
def test_bm25_weight_grows_with_count_and_shrinks_with_length(tf: int, length: int, average: float) -> None:
    one = bm25.weight(tf, length, average)
    assert 0 < one < bm25.K1 + 1
    assert bm25.weight(tf + 1, length, average) > one
    assert bm25.weight(tf, length + 1, average) < one


@given(n=st.integers(1, 10**6), df=st.integers(1, 10**6))
def test_bm25_rare_words_tell_more_and_no_word_tells_less_than_nothing(n: int, df: int) -> None:
    assert bm25.idf(n, df) > 0
    assert bm25.idf(n, df) > bm25.idf(n, df + 1) or df > n


# Index texts


def test_brain_w06_texts_are_trimmed_and_joined() -> None:
    assert index_text(" t ", "", "c") == "t\nc"
    assert index_text("", " ", "\n") == ""
    assert index_text_with_parent("P", "t", "", "c") == "P\nt\nc"
    assert index_text_with_parent("P", "", "", "") == "P"
    assert index_text_with_parent(" ", "t", "", "") == "t"


def test_brain_w07_properties_are_lines_in_order_of_their_keys() -> None:
    properties = {"stage": " negotiation ", "amount": 120000.0, "hot": True, "big": 1_200_000.0, "rate": 0.25,
                  "n": -3, "list": [1], "map": {"a": 1}, "none": None, "blank": " "}  # fmt: skip
    assert entity_index_text("T", "S", "C", properties) == (
        "T\nS\namount: 120000\nbig: 1200000\nhot: true\nn: -3\nrate: 0.25\nstage: negotiation\nC"
    )


@given(st.text(), st.text())
def test_hashes_of_index_texts_differ_when_the_texts_do(one: str, other: str) -> None:
    assert (text_sha256(one) == text_sha256(other)) == (one == other)


# Objects and links


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"kind": " "}, "kind"),
        ({"id": UUID(int=0)}, "id"),
        ({"parent_id": UUID(int=0)}, "parent_id"),
        ({"parent_id": A}, "parent_id"),
        ({"position": 2**31}, "position"),
        ({"expected_revision": -1}, "expected_revision"),
        ({"properties": {"a": math.nan}}, "properties"),
        ({"content": "x" * 101}, "content"),
        ({"title": "x" * 5_000}, "title"),
    ],
)
def test_objects_that_cannot_be_stored_are_refused_by_the_name_of_the_field(
    wrong: dict[str, object], field: str
) -> None:
    with pytest.raises(RejectedError, match=f"^{field}: "):
        NewObject(**{"id": A, "kind": "note", **wrong}).cleaned(max_bytes=100)  # type: ignore[arg-type]


@given(st.text(), st.text())
def test_cleaning_twice_is_cleaning_once_and_what_comes_out_can_be_stored(title: str, content: str) -> None:
    once = NewObject(A, " note ", title, content=content, properties={"a": (1, 2)}).cleaned()
    assert once.cleaned() == once
    assert once.kind == "note"
    assert once.properties == {"a": [1, 2]}
    assert "\x00" not in once.title + once.content


def test_namespaces_and_derived_ids_are_told_apart() -> None:
    one, other = Namespace.of("a", scope="knowledge"), Namespace.of("a", scope="knowledge", tenant="t")
    assert namespace_uuid(one) != namespace_uuid(other)
    assert namespace_uuid(one).version == 5
    assert derived_id(one, "a", "bc") != derived_id(one, "ab", "c")
    assert derived_id(one, "a") != derived_id(other, "a")
    assert derived_id(one, "a") == derived_id(one, "a")


@pytest.mark.parametrize("label", ["", "  ", "contains", " PART_OF ", "PartOf", "a\x00b", "x" * 200])
def test_labels_that_mean_containment_or_nothing_are_refused(label: str) -> None:
    with pytest.raises(RejectedError, match="label"):
        EdgeKey(A, B, label).cleaned()


def test_edges_keep_the_case_of_their_label_and_lose_blanks_around_it() -> None:
    assert EdgeKey(A, B, " Likes ").cleaned() == EdgeKey(A, B, "Likes")
    with pytest.raises(RejectedError, match="itself"):
        EdgeKey(A, A, "likes").cleaned()
    with pytest.raises(RejectedError, match="confidence"):
        EdgeMeta(confidence=1.5).cleaned()
    with pytest.raises(RejectedError, match="confidence"):
        EdgeMeta(confidence=math.nan).cleaned()


@given(st.text())
def test_folding_a_label_twice_is_folding_it_once(label: str) -> None:
    assert fold_label(fold_label(label)) == fold_label(label)


# Expand


def test_brain_e16_labels_are_told_from_containment() -> None:
    assert split_labels([]) == Wanted(containment=True, labels=())
    assert split_labels([" ", ""]) == Wanted(containment=True, labels=())
    assert split_labels(["contains", "references", "REFERENCES"]) == Wanted(containment=True, labels=("references",))
    assert split_labels(["similar_to"]) == Wanted(containment=False, labels=("similar_to",))
    assert split_labels(["children"]) == Wanted(containment=False, labels=("children",))
    assert split_labels(None) == Wanted(containment=False, labels=None)
    assert split_labels(["b", "a"], containment=True) == Wanted(containment=True, labels=("b", "a"))


STEPS = st.lists(
    st.builds(
        lambda seed, peer, label, out: Neighbor(
            UUID(int=seed), UUID(int=peer), label, Direction.OUT if out else Direction.IN,
            EdgeKey(UUID(int=seed if out else peer), UUID(int=peer if out else seed), label),
        ),
        st.integers(1, 2), st.integers(1, 5), st.sampled_from(["a", "b"]), st.booleans(),
    ),
    max_size=20,
)  # fmt: skip


@given(STEPS, st.integers(1, 4), st.integers(0, 6), st.sets(st.integers(1, 5)))
def test_trails_lead_to_each_peer_once_over_every_edge_of_the_hop_that_reached_it_and_through_nothing_hidden(
    steps: list[Neighbor], hops: int, calls: int, hidden: set[int]
) -> None:
    by_seed: dict[UUID, list[Neighbor]] = {}
    for step in steps:
        by_seed.setdefault(step.seed, []).append(step)
    found, truncated = trails(A, Walked(by_seed), Budget(hops, calls), visible=lambda step: step.peer.int not in hidden)
    peers = [step.peer for step in found]
    assert len(set(peers)) == len(peers)
    assert A not in peers
    assert not hidden & {peer.int for peer in peers}
    depth = {A: 0} | {step.peer: step.depth for step in found}
    for reached in found:
        assert 1 <= reached.depth <= hops
        keys = {n.key for n in reached.steps}
        assert len(keys) == len(reached.steps)
        if calls > 5:
            assert keys == {n.key for n in steps if n.peer == reached.peer and depth.get(n.seed) == reached.depth - 1}
        assert all(depth[n.seed] == reached.depth - 1 for n in reached.steps)
    if calls == 0:
        assert (found, truncated) == ([], True)
    if calls > 5:
        assert not truncated
        near = {n.peer for n in by_seed.get(A, []) if n.peer.int not in hidden} - {A}
        assert near == {step.peer for step in found if step.depth == 1}


# Filters


def test_filters_know_when_they_leave_nothing_or_everything() -> None:
    assert not Filters.of().narrow
    assert Filters.of(scope_ids=[]).nothing
    assert Filters.of(scope_ids=[UUID(int=0)]).nothing
    assert not Filters.of(scope_ids=[A, A]).nothing
    assert Filters.of(scope_ids=[A, A]).scope_ids == (A,)
    assert Filters.of(properties={"b": [1, 2], "a": "x"}).narrow
