from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.interest.candidates import Kind
from isotherm.pipeline.interest.opposites import denials, opposed, swapped
from isotherm.pipeline.interest.pairs import Link, Side, relate_by_rules


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("walks into the office", "walks out of the office"),
        ("the blinds are folded", "the blinds are unfolded"),
        ("a window seat near the exit", "a window seat far from the exit"),
        ("two cats", "three cats"),
        ("a red bike", "a blue bike"),
    ],
)
def test_words_that_exclude_each_other_oppose_whatever_the_vectors_say(left: str, right: str) -> None:
    assert opposed(left, right)
    assert opposed(right, left)
    assert relate_by_rules(Side(left, ""), Side(right, ""), 0.99).link is not Link.SAME


@pytest.mark.parametrize(
    ("left", "right"), [("a red bike", "a fast red bike"), ("understands Norse", "stands"), ("a big dog", "a big cat")]
)
def test_what_one_says_more_opposes_nothing(left: str, right: str) -> None:
    assert not opposed(left, right)


def test_the_same_words_said_of_somebody_else_are_another_thing_and_a_passive_is_not() -> None:
    assert swapped("Ingrid mentors Petra", "Petra mentors Ingrid")
    assert not swapped("Ingrid mentors Petra", "Petra is mentored by Ingrid")
    assert not swapped("Ingrid mentors Petra", "Ingrid often mentors Petra")
    relation = relate_by_rules(Side("Ingrid mentors Petra", ""), Side("Petra mentors Ingrid", ""), 0.97)
    assert relation.link is Link.APART


def test_denials_are_counted_not_only_seen() -> None:
    assert [denials(said) for said in ("eats meat", "doesn't eat meat", "never eats meat, nobody here does")] == [
        0,
        1,
        2,
    ]
    left, right = Side("the team is not late and not lost", ""), Side("the team is late and lost", "")
    assert relate_by_rules(left, right, 0.95).link is not Link.SAME


def test_a_shared_word_makes_one_of_names_not_of_sentences() -> None:
    assert relate_by_rules(Side("sea kayaking", ""), Side("kayaking at sea", ""), 0.6).link is Link.SAME
    told = Side("the river is cold for kayaking", "", Kind.INTEREST)
    assert relate_by_rules(told, Side("kayaking", ""), 0.6).link is Link.APART


SAID = st.lists(
    st.sampled_from(["the", "dog", "cat", "chases", "is", "by", "not", "in", "out", "two", "three", "unfold", "fold"]),
    max_size=6,
).map(" ".join)


@given(SAID, SAID)
def test_order_of_the_sides_does_not_matter(left: str, right: str) -> None:
    assert opposed(left, right) == opposed(right, left)
    assert swapped(left, right) == swapped(right, left)
    assert not opposed(left, left)
    assert not swapped(left, left)


def test_words_of_opposite_meaning_are_opposed_in_any_form() -> None:
    assert opposed("somebody cleaned the animal", "somebody is dirtying the animal")
    assert opposed("running outside", "running indoors")
    assert opposed("a shallow lake", "deep lakes")
    assert not opposed("cleaning a shallow lake", "the cleaning of a lake")
