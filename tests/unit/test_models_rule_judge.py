import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from isotherm.pipeline.interest.rule_judge import Judgement, RuleJudge, Verdict
from isotherm.pipeline.interest.rule_reading import Statement

judge = RuleJudge().judge

PHRASES = st.sampled_from(
    [
        "likes coffee", "no longer drinks coffee", "prefers dark mode", "switched to light mode", "meeting on Tuesdays",
        "moved to Thursdays", "Postgres 15", "upgraded to Postgres 17", "vegetarian", "eats fish again", "lives in Berlin",
        "moved to Munich", "runs 5 km", "ticket SR-052", "doesn't", "C++", "the user", "because", ",", "used to like jazz",
        "favorite color is blue", "at 9:30", "喜欢咖啡", "🍎", "-5", "%",
    ]
)  # fmt: skip
TEXT = st.lists(PHRASES | st.text(max_size=6), max_size=4).map(" ".join)
STATEMENT = st.builds(Statement, TEXT, TEXT, st.lists(st.text(max_size=5), max_size=2).map(tuple))


def of(left: str | tuple[str, str], right: str | tuple[str, str]) -> Judgement:
    one, two = (Statement(side) if isinstance(side, str) else Statement(*side) for side in (left, right))
    return judge(one, two)


@given(STATEMENT, STATEMENT)
def test_swapping_the_statements_swaps_the_evidence_and_nothing_else(left: Statement, right: Statement) -> None:
    there, back = judge(left, right), judge(right, left)
    assert (there.verdict, there.rule, there.evidence) == (back.verdict, back.rule, back.evidence[::-1])


@given(STATEMENT)
def test_a_statement_is_the_same_as_itself(statement: Statement) -> None:
    assert judge(statement, statement) == Judgement(Verdict.SAME, "exact")


CODE = st.from_regex(r"(?:[A-Z]{1,3}-)?[1-9][0-9]{0,3}(?:\.[0-9]{1,2})?", fullmatch=True)
TEMPLATE = st.sampled_from(["{}", "ticket {}", "uses {} at work", "release v{} of the app", "the {} report", "Go {}!"])


@given(CODE, CODE, TEMPLATE, st.booleans())
def test_codes_that_differ_are_never_the_same(one: str, other: str, template: str, in_reason: bool) -> None:  # noqa: FBT001
    assume(one.casefold() != other.casefold())
    left, right = template.format(one), template.format(other)
    assert of(left, right).verdict is not Verdict.SAME
    if in_reason:
        assert of(("Release", left), ("Release", right)).verdict is not Verdict.SAME


@pytest.mark.parametrize(
    ("left", "right", "rule"),
    [
        ("Dark  mode", "dark-mode", "exact"),
        ("\uff24ark Mode", "dark mode.", "exact"),
        ("the user prefers dark mode", "Prefers dark mode!", "near_exact"),
        ("cats", "the cat", "near_exact"),
        ("has two cats", "has 2 cats", "exact"),
        ("uses Python v3.12", "uses Python 3.12", "exact"),
        (("Postgres", "at work"), ("Postgres", "asks about indexes"), "same_topic"),
        (("Postgres", "since 2024"), ("Postgres", ""), "same_topic"),
        ("喜欢咖啡", "喜欢咖啡。", "exact"),
    ],
)
def test_equal_words_are_the_same(left: str, right: str, rule: str) -> None:
    assert of(left, right) == Judgement(Verdict.SAME, rule)


@pytest.mark.parametrize(
    ("left", "right", "rule", "evidence"),
    [
        ("vegetarian", "eats fish again", "exclusion", ("vegetarian", "fish")),
        ("prefers dark mode", "switched to light mode", "opposite_words", ("dark", "light")),
        ("meeting on Tuesdays", "moved to Thursdays", "weekday", ("tuesday", "thursday")),
        ("Postgres 15", "Postgres 17", "number", ("15", "17")),
        ("uses Postgres 15 in staging", "upgraded to Postgres 17", "number", ("15", "17")),
        ("runs 5 km", "runs 10km", "number", ("5", "10")),
        ("standup at 9am", "standup moved to 10am", "number", ("9am", "10am")),
        ("budget is $500", "budget is $700", "number", ("500", "700")),
        ("likes coffee", "doesn't like coffee anymore", "polarity", ("is", "not")),
        ("likes coffee", "stopped drinking coffee", "polarity", ("is", "not")),
        ("used to like jazz", "likes jazz", "polarity", ("not", "is")),
        ("lives in Berlin", "moved to Munich", "slot", ("berlin", "munich")),
        ("works at Google", "joined Meta", "slot", ("google", "meta")),
        ("favorite color is blue", "favorite color is green", "slot", ("blue", "green")),
        (
            ("Editor theme", "prefers dark mode"),
            ("Editor theme", "now light mode"),
            "opposite_words",
            ("dark", "light"),
        ),
        (("Coffee", "drinks it daily"), ("Coffee", "no longer drinks it"), "polarity", ("is", "not")),
    ],
)
def test_contradictions_name_the_rule_and_what_it_saw(
    left: str, right: str, rule: str, evidence: tuple[str, str]
) -> None:
    assert of(left, right) == Judgement(Verdict.CONTRADICTS, rule, evidence)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("API v1.2", "API v1.3"),
        ("SR-052", "SR-053"),
        ("ticket SR-052", "ticket SR-053"),
        ("reads chapter 3", "reads chapter 4"),
        ("RFC 7230", "RFC 7231"),
    ],
)
def test_other_codes_name_other_things(left: str, right: str) -> None:
    assert of(left, right).rule == "codes_differ"
    assert of(left, right).verdict is Verdict.DIFFERENT


def test_nothing_shared_is_different_but_a_shared_beginning_is_not_enough_to_say_so() -> None:
    assert of("violin lessons", "postgres tuning") == Judgement(Verdict.DIFFERENT, "nothing_shared")
    assert of("Postgres", "PostgreSQL").verdict is Verdict.UNSURE


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("dog bites man", "man bites dog"),
        ("C++", "C"),
        ("likes \U0001f34e", "likes \U0001f34a"),
        ("drinks coffee", "no coffee after noon"),
        ("sister lives in Berlin", "lives in Munich"),
        ("Redis is used to cache", "Redis caches"),
        ("moved from Berlin to Paris", "moved from Paris to Berlin"),
        ("dark mode in VS Code", "light mode in Slack"),
        (("Standup", "Tuesdays with Anna"), ("Standup", "Thursdays with Bob")),
        (("Postgres", "because MySQL has no JSON"), ("Postgres", "fast")),
        ("", "!"),
    ],
)
def test_what_no_rule_shows_is_unsure(left: str, right: str) -> None:
    assert of(left, right).verdict is Verdict.UNSURE
