from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.interest import codec, s1
from isotherm.pipeline.interest.candidates import Candidate, Point, Source, normalize, statement_digest
from isotherm.pipeline.interest.pairs import Link, Relation, Side, relate_by_rules
from isotherm.pipeline.interest.s1 import Merge

BEGUN = datetime(2026, 3, 1, tzinfo=UTC)


def source(n: int) -> Source:
    return Source(1, n, f"m{n}", n, BEGUN + timedelta(minutes=n), 0, 0, statement_digest(f"statement {n}"))


def c(topic: str, confidence: float, n: int = 0, **more: object) -> Candidate:
    made = Candidate(topic, f"reason for {topic}", confidence, ("t",), (n, n), sources=(source(n),))
    return replace(made, **more)  # type: ignore[arg-type]


def p(topic: str, *vec: float, confidence: float = 0.9, n: int = 0) -> Point:
    return Point(c(topic, confidence, n), np.array(vec, dtype=np.float32))


def never(left: Side, right: Side, cosine: float | None) -> Relation:
    assert left
    assert right
    assert cosine is None or -1.01 <= cosine <= 1.01
    return Relation(Link.APART, "none")


def topics(points: Sequence[Point]) -> list[str]:
    return [point.candidate.topic for point in points]


def grouped(*points: Point, threshold: float = 0.6) -> list[list[int]]:
    return s1.group(points, never, threshold)


def test_interest_s1_1_names_that_differ_in_case_and_space_are_one_without_a_judgement() -> None:
    [one] = s1.fold([c("Go 泛型", 0.9, 1), c("  go  泛型 ", 0.8, 2)])
    assert (one.topic, one.confidence) == ("Go 泛型", 0.9)
    assert [s.record_key for s in one.sources] == [1, 2]


A, B, C = p("A", 1, 0, n=1), p("B", 0.9, 0.1, n=2), p("C", 0, 1, n=3)


def test_interest_s1_2_what_is_to_be_kept_is_kept() -> None:
    assert grouped(A, B, C) == [[0, 1], [2]]
    assert topics(s1.apply([A, B], [])) == ["A", "B"]


def test_interest_s1_3_merged_words_take_the_place_of_both_and_are_embedded_anew() -> None:
    [one] = s1.apply([A, B], [Merge((0, 1), "A合并B", "both")])
    assert one.candidate.topic == "A合并B"
    assert one.vec is None
    assert [s.record_key for s in one.candidate.sources] == [1, 2]


def test_interest_s1_4_and_s1_7_groups_come_in_the_order_of_their_first_member() -> None:
    assert grouped(C, A, B) == [[0], [1, 2]]
    assert topics([*s1.apply([A, B], [Merge((0, 1), "A与B合成", "")]), C]) == ["A与B合成", "C"]


def test_interest_s1_9_replaced_a_group_that_cannot_be_judged_is_kept_as_it_is() -> None:
    assert s1.apply([A, B], []) == [A, B]


def test_interest_f_7_folding_unites_turns_and_tags_and_keeps_the_surer_words() -> None:
    [one] = s1.fold(
        [
            c("PostgreSQL", 0.9, tags=("db",), turn_range=(1, 2)),
            c("postgresql", 0.7, tags=("db", "sql"), turn_range=(3, 4)),
        ]
    )
    assert (one.topic, one.confidence, one.turn_range, one.tags) == ("PostgreSQL", 0.9, (1, 4), ("db", "sql"))


def test_interest_f_8_a_judgement_of_worth_is_kept_whichever_side_had_it() -> None:
    for left, right in ((False, None), (None, False)):
        [one] = s1.fold([c("x", 0.9, wiki_worthy=left), c("x", 0.7, wiki_worthy=right)])
        assert one.wiki_worthy is False


def test_interest_b_1_a_cosine_of_exactly_the_threshold_does_not_join() -> None:
    assert grouped(p("x", 1, 0), p("y", 3, 4)) == [[0], [1]]


def test_interest_b_5_of_equal_confidences_the_first_words_stay() -> None:
    [one] = s1.fold([c("Kelp", 0.7), c("KELP", 0.7)])
    assert one.topic == "Kelp"


def test_interest_b_6_a_chain_is_one_group() -> None:
    assert grouped(p("x", 1, 0), p("y", 1, 1), p("z", 0, 1)) == [[0, 1, 2]]


def test_message_zero_is_a_turn_like_any_other() -> None:
    [one] = s1.fold([c("x", 0.5, 4), c("x", 0.9, 0)])
    assert one.turn_range == (0, 4)


def test_candidates_without_a_name_are_not_one() -> None:
    assert len(s1.fold([c("", 0.5), c(" ", 0.5)])) == 2


def test_a_group_has_at_most_twelve_members_however_long_the_chain() -> None:
    found = grouped(*(p(f"t{n}", 1, 0) for n in range(30)))
    assert sorted(map(len, found)) == [6, 12, 12]
    assert sorted(i for group in found for i in group) == list(range(30))


def test_without_vectors_the_rules_alone_make_groups() -> None:
    points = [Point(c(topic, 0.9)) for topic in ("cats", "Postgres 15", "the cat", "Postgres 17")]
    points = [replace(point, candidate=replace(point.candidate, reason="")) for point in points]
    assert s1.group(points, relate_by_rules) == [[0, 2], [1], [3]]
    assert s1.RuleJudge(relate_by_rules).judge([points[0], points[2]]) == [Merge((0, 1))]


def test_what_contradicts_is_not_merged_even_when_something_between_is_the_same_as_both() -> None:
    def relate(left: Side, right: Side, cosine: float | None) -> Relation:
        assert cosine is not None
        pair = {left.topic, right.topic}
        return Relation(Link.CONTRADICTS if pair == {"A", "C"} else Link.SAME, "test")

    assert s1.RuleJudge(relate).judge([A, B, C]) == []
    assert s1.RuleJudge(relate).judge([A, B]) == [Merge((0, 1))]


def test_codes_that_differ_are_kept_apart_however_alike_their_vectors() -> None:
    near = [p("API v1.2", 1, 0), p("API v1.3", 1, 0.01)]
    bare = [replace(point, candidate=replace(point.candidate, reason="")) for point in near]
    assert s1.RuleJudge(relate_by_rules).judge(bare) == []


NAME = st.sampled_from(["kelp", "Kelp", " KELP ", "tea", "Tee", "", "\ufb01sh", "FISH", "ﬁsh "])
CANDIDATES = st.lists(st.tuples(NAME, st.sampled_from([0.3, 0.5, 0.9])), max_size=12).map(
    lambda found: [c(name, confidence, n) for n, (name, confidence) in enumerate(found)]
)


@given(CANDIDATES)
def test_folding_loses_no_source_and_leaves_no_name_twice(candidates: list[Candidate]) -> None:
    folded = s1.fold(candidates)
    names = [one.name for one in folded if one.name]
    assert len(names) == len(set(names)) == len({one.name for one in candidates if one.name})
    assert {s.record_key for one in folded for s in one.sources} == set(range(len(candidates)))
    assert s1.fold(folded) == folded


@given(CANDIDATES, st.randoms(use_true_random=False))
def test_folding_in_another_order_finds_the_same_sources_for_each_name(
    candidates: list[Candidate], random: object
) -> None:
    mixed = list(candidates)
    random.shuffle(mixed)  # type: ignore[attr-defined]

    def found(given_: list[Candidate]) -> dict[str, tuple[Source, ...]]:
        return {one.name: one.sources for one in s1.fold(given_) if one.name}

    assert found(mixed) == found(candidates)


MERGES = st.lists(
    st.builds(Merge, st.lists(st.integers(-2, 7), max_size=5).map(tuple), st.sampled_from(["", "new"])), max_size=5
)


@given(st.integers(1, 6), MERGES)
def test_whatever_a_judge_says_every_member_has_exactly_one_outcome(count: int, merges: list[Merge]) -> None:
    members = [p(f"t{n}", 1, n, n=n) for n in range(count)]
    found = s1.apply(members, merges)
    assert sorted(s.record_key for point in found for s in point.candidate.sources) == list(range(count))


VECTORS = st.lists(st.tuples(*[st.integers(-3, 3)] * 3), min_size=1, max_size=14)


@given(VECTORS, st.floats(-0.5, 0.95))
def test_groups_are_a_partition_within_their_cap(vectors: list[tuple[int, ...]], threshold: float) -> None:
    found = grouped(*(p(f"t{n}", *v) for n, v in enumerate(vectors)), threshold=threshold)
    assert sorted(i for group in found for i in group) == list(range(len(vectors)))
    assert all(group == sorted(group) and len(group) <= s1.GROUP_MAX for group in found)
    assert found == sorted(found)


@given(st.text())
def test_normalizing_a_name_twice_changes_nothing(name: str) -> None:
    assert normalize(normalize(name)) == normalize(name)


@given(CANDIDATES)
def test_points_survive_being_written_as_json(candidates: list[Candidate]) -> None:
    points = [Point(one, np.array([0.1, n], dtype=np.float32) if n % 2 else None) for n, one in enumerate(candidates)]
    back = codec.load_points(codec.dump_points(points))
    assert back == points
    for one, other in zip(points, back, strict=True):
        assert (one.vec is None) == (other.vec is None)
        if one.vec is not None and other.vec is not None:
            assert one.vec.tolist() == other.vec.tolist()


@pytest.mark.parametrize("turn_range", [None, (0, 0), (2, 5)])
def test_an_unknown_range_of_turns_is_not_the_first_message(turn_range: tuple[int, int] | None) -> None:
    [back] = codec.load_candidates(codec.dump_candidates([c("x", 0.5, turn_range=turn_range)]))
    assert back.turn_range == turn_range
