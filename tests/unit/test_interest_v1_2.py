from __future__ import annotations

from uuid import UUID

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.interest import questions, v1_2
from isotherm.pipeline.interest.candidates import (
    Candidate,
    Contradiction,
    Decision,
    HistPoint,
    Kind,
    Outcome,
    Point,
    Status,
)
from isotherm.pipeline.interest.pairs import relate_by_rules
from isotherm.pipeline.interest.questions import Decided, DecidedContradiction, DecidedItem
from isotherm.pipeline.interest.v1_2 import Unit, adjudicate_by_rules, completed

H1, H2 = UUID(int=1), UUID(int=2)


def p(topic: str, reason: str = "", confidence: float = 0.5, vec: tuple[float, ...] = (1, 0), **more: object) -> Point:
    candidate = Candidate(topic, reason, confidence, tags=("t",), **more)  # type: ignore[arg-type]
    return Point(candidate, np.array(vec, dtype=np.float32))


def h(id_: UUID, name: str, confidence: float = 0.9, vec: tuple[float, ...] = (1, 0.1)) -> HistPoint:
    return HistPoint(id_, name, "", confidence=confidence, vec=np.array(vec, dtype=np.float32))


def unit(*points: Point, hist: tuple[HistPoint, ...] = (h(H1, "kelp"),)) -> Unit:
    return Unit({f"p{n}": point for n, point in enumerate(points)}, hist)


def by_rules(of: Unit) -> Outcome:
    return completed(adjudicate_by_rules(of, relate_by_rules), of)


def by_model(of: Unit, *items: DecidedItem, told: tuple[DecidedContradiction, ...] = ()) -> Outcome:
    said = Decided(decisions=list(items), contradictions=list(told))
    return completed(questions.read_decided(said, of), of)


def test_the_same_interest_becomes_part_of_the_stored_one_and_its_clearer_words_stay() -> None:
    [decision] = by_rules(unit(p("Kelp"))).decisions
    assert (decision.target, decision.rewrite) == (str(H1), False)
    [decision] = by_rules(unit(p("Kelp", confidence=0.95))).decisions
    assert (decision.target, decision.rewrite) == (str(H1), True)


def test_a_contradiction_keeps_both_points() -> None:
    found = by_rules(unit(p("eats fish again"), hist=(h(H1, "vegetarian", vec=(0, 1)),)))
    [decision] = found.decisions
    assert (decision.target, decision.archives, decision.status) == (None, (), Status.ACTIVE)
    assert found.contradictions == (Contradiction("p0", str(H1), "exclusion", ("fish", "vegetarian")),)


def test_two_new_points_of_a_unit_can_become_one() -> None:
    found = by_rules(unit(p("cats"), p("the cat"), hist=(h(H1, "dogs", vec=(0, 1)),)))
    assert [d.target for d in found.decisions] == [None, "p0"]


def test_a_contradiction_of_a_merged_point_is_told_of_the_point_it_became() -> None:
    found = by_rules(
        unit(p("vegetarian", "I'm vegetarian"), hist=(h(H1, "vegetarian"), h(H2, "eats fish again", vec=(0, 1))))
    )
    assert found.decisions[0].target == str(H1)
    [told] = found.contradictions
    assert {told.left, told.right} == {str(H1), str(H2)}


def test_interest_ad_1_merge_writes_the_model_s_words_over_the_stored_ones() -> None:
    [decision] = by_model(
        unit(p("a")), DecidedItem(point="n1", action="merge", target="h1", topic="合并后", reason="r")
    ).decisions
    assert (decision.target, decision.topic, decision.rewrite) == (str(H1), "合并后", True)


def test_interest_ad_3_keep_makes_a_point_of_its_own() -> None:
    [decision] = by_model(unit(p("a")), DecidedItem(point="n1", action="keep", topic="新点")).decisions
    assert (decision.target, decision.topic, decision.status) == (None, "新点", Status.ACTIVE)


def test_interest_ad_6_archive_retires_the_stored_point_and_makes_a_new_one() -> None:
    [decision] = by_model(unit(p("a")), DecidedItem(point="n1", action="archive", target="h1")).decisions
    assert (decision.target, decision.archives) == (None, (str(H1),))


def test_interest_ad_7_replaced_a_member_that_was_not_decided_on_waits_for_review() -> None:
    found = by_model(unit(p("a"), p("b")), DecidedItem(point="n1", action="merge", target="h1", topic="x"))
    assert [(d.members, d.target, d.status) for d in found.decisions] == [
        (("p0",), str(H1), Status.ACTIVE),
        (("p1",), None, Status.PENDING_REVIEW),
    ]


def test_interest_ad_9_a_contradiction_is_told_with_its_description() -> None:
    told = (DecidedContradiction(left="n1", right="h1", description="矛盾"),)
    found = by_model(unit(p("a")), DecidedItem(point="n1", action="keep"), told=told)
    assert found.contradictions == (Contradiction("p0", str(H1), "model", description="矛盾"),)


def test_interest_ad_10_replaced_without_an_answer_all_wait_for_review_and_nothing_else_changes() -> None:
    found = completed(Outcome(), unit(p("a"), p("b")))
    assert [d.status for d in found.decisions] == [Status.PENDING_REVIEW] * 2
    assert not found.contradictions


def test_interest_x_3_blank_words_mean_the_member_s_own() -> None:
    [decision] = by_model(unit(p("a")), DecidedItem(point="n1", action="merge", target="h1", topic="  ")).decisions
    assert (decision.target, decision.topic, decision.rewrite) == (str(H1), "", False)
    assert v1_2.reworded(p("a").candidate, decision).topic == "a"


def test_interest_x_4_a_target_outside_the_unit_voids_that_member_only() -> None:
    for target in ("", "h7", str(H2), "n9"):
        for action in ("merge", "archive"):
            found = by_model(
                unit(p("a"), p("b")),
                DecidedItem(point="n1", action=action, target=target, topic="x"),
                DecidedItem(point="n2", action="keep"),
            )
            assert {d.members[0]: d.status for d in found.decisions} == {
                "p0": Status.PENDING_REVIEW,
                "p1": Status.ACTIVE,
            }
            assert not any(d.archives or d.target for d in found.decisions)


def test_interest_x_5_an_unknown_action_keeps_the_point() -> None:
    [decision] = by_model(unit(p("a")), DecidedItem(point="n1", action="compose", target="h1")).decisions
    assert (decision.target, decision.status) == (None, Status.ACTIVE)


def test_interest_x_6_a_later_unit_of_a_queue_sees_what_the_earlier_one_wrote() -> None:
    first = unit(p("Kelp", confidence=0.95))
    before = Outcome((Decision(("p0",), target=str(H1), topic="kelp forests", reason="r", rewrite=True),))
    later = Unit({"p1": p("kelp forests")}, (h(H1, "kelp"),), (before,), {"p0": first.members["p0"]})
    [known] = later.known()
    assert (known.key, known.side.topic) == (str(H1), "kelp forests")
    assert by_rules(later).decisions[0].target == str(H1)


def test_interest_x_7_a_point_that_an_earlier_unit_archived_is_no_target_any_more() -> None:
    before = Outcome((Decision(("p0",), archives=(str(H1),)),))
    later = Unit({"p1": p("kelp")}, (h(H1, "kelp"),), (before,), {"p0": p("kelp farms")})
    assert [k.key for k in later.known()] == ["p0"]
    assert str(H1) not in {d.target for d in by_rules(later).decisions}


def test_no_false_contradiction_between_what_has_nothing_to_do_with_each_other() -> None:
    names = (
        "sea kayaking",
        "bake sourdough",
        "Python 3.12",
        "dark mode",
        "vegetarian",
        "moving to Bergen",
        "short answers",
    )
    for n, name in enumerate(names):
        others = tuple(HistPoint(UUID(int=10 + k), other, "") for k, other in enumerate(names) if k != n)
        assert by_rules(unit(Point(Candidate(name, kind=Kind.FACT)), hist=others)).contradictions == ()


KEY = st.sampled_from(["p0", "p1", "p2", str(H1), str(H2), "p9", "nonsense", ""])
DECISION = st.builds(
    Decision,
    st.lists(KEY, min_size=1, max_size=3).map(tuple),
    target=st.none() | KEY,
    archives=st.lists(KEY, max_size=2).map(tuple),
)
OUTCOME = st.builds(
    Outcome,
    st.lists(DECISION, max_size=5).map(tuple),
    st.lists(st.builds(Contradiction, KEY, KEY, st.just("x")), max_size=3).map(tuple),
)


@given(OUTCOME)
def test_whatever_was_said_every_member_is_decided_once_and_nothing_unseen_is_touched(said: Outcome) -> None:
    of = unit(p("a"), p("b"), p("c"))
    found = completed(said, of)
    assert sorted(m for d in found.decisions for m in d.members) == ["p0", "p1", "p2"]
    made: set[str] = set()
    for decision in found.decisions:
        assert decision.target is None or decision.target in made | {str(H1)}
        assert set(decision.archives) <= {str(H1)}
        made.add(decision.members[0])
    assert all(c.left != c.right and {c.left, c.right} <= {"p0", "p1", "p2", str(H1)} for c in found.contradictions)
    assert completed(found, of) == found


TOPIC = st.sampled_from(
    ["kelp", "Kelp", "vegetarian", "eats fish again", "Postgres 15", "Postgres 17", "tea", "cats", "the cat"]
)


@given(st.lists(TOPIC, min_size=1, max_size=5), st.lists(TOPIC, max_size=4, unique=True))
def test_the_rules_decide_on_every_member_once(topics: list[str], stored: list[str]) -> None:
    hist = tuple(HistPoint(UUID(int=n), name, "") for n, name in enumerate(stored))
    of = Unit({f"p{n}": Point(Candidate(topic)) for n, topic in enumerate(topics)}, hist)
    found = adjudicate_by_rules(of, relate_by_rules)
    assert [d.members for d in found.decisions] == [(m,) for m in of.members]
    assert completed(found, of) == found
