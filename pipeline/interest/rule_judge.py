"""Judges two statements of interest by rules: offline, at once, and with the rule that fired.

It is careful, not clever: `same` needs equal words, `contradicts` needs words it knows, and what neither shows is
`unsure`. Its words are English (`rule_words`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

from isotherm.pipeline.interest import rule_words as known
from isotherm.pipeline.interest.rule_reading import Clause, Reading, Statement, near, read, stems_of

_SAME_SUBJECT = 0.6
_BEGINNING = 5


class Verdict(StrEnum):
    """How two statements relate."""

    SAME = "same"
    DIFFERENT = "different"
    CONTRADICTS = "contradicts"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and why.

    Args: rule: the rule that fired; evidence: what it saw on the left and on the right, empty when it saw all of them.
        Evidence is stored text and belongs beside the contradiction, not in logs.
    """

    verdict: Verdict
    rule: str
    evidence: tuple[str, str] = ("", "")


_Evidence = tuple[str, str] | None


class RuleJudge:
    """Says whether two short statements are the same, different, contradictory, or that it cannot tell.

    Swapping the statements swaps the evidence and nothing else. Statements whose codes or numbers differ (v1.2 and
    v1.3, SR-052 and SR-053) are never the same.
    """

    def judge(self, left: Statement, right: Statement) -> Judgement:
        """Judge two statements. Never raises; the cost is linear in their words for each pair of their clauses."""
        one, other = read(left), read(right)
        if _exact(one, other):
            return Judgement(Verdict.SAME, "exact")
        found = _contradiction(one, other) if _may_contradict(one, other) else None
        return found or _sameness(one, other)

    def contradicts(self, one: Reading, other: Reading) -> bool:
        """Whether two statements that were read contradict each other, as `judge` says it. Never raises."""
        return _may_contradict(one, other) and not _exact(one, other) and _contradiction(one, other) is not None


def _exact(one: Reading, other: Reading) -> bool:
    return one.spelling == other.spelling or bool(one.topic and (one.topic, one.reason) == (other.topic, other.reason))


def _contradiction(one: Reading, other: Reading) -> Judgement | None:
    for name, rule in _CONTRADICTIONS:
        evidence = rule(one, other)
        if evidence is not None:
            return Judgement(Verdict.CONTRADICTS, name, evidence)
    return None


def _may_contradict(one: Reading, other: Reading) -> bool:
    """Whether any rule has something to look at. Most pairs of a session have nothing to do with each other."""
    denies = len(one.polarities | other.polarities) > 1
    return denies or one.excludes or other.excludes or not one.signals.isdisjoint(other.signals)


def _sameness(one: Reading, other: Reading) -> Judgement:
    near_one, near_other = near(one.topic), near(other.topic)
    if _codes_differ(one, other):
        if _masked(near_one, one) == _masked(near_other, other):
            return Judgement(Verdict.DIFFERENT, "codes_differ", (_shown(one.codes), _shown(other.codes)))
    elif near_one and near_one == near_other:
        if _tension(one, other):
            return Judgement(Verdict.UNSURE, "same_topic_in_tension")
        return Judgement(Verdict.SAME, "same_topic" if one.topic == other.topic else "near_exact")
    if one.stems and other.stems and _beginnings(one.stems).isdisjoint(_beginnings(other.stems)):
        return Judgement(Verdict.DIFFERENT, "nothing_shared")
    return Judgement(Verdict.UNSURE, "no_rule")


def _codes_differ(one: Reading, other: Reading) -> bool:
    """A reason may leave a code out; topics may not, and neither may name another one."""
    nested = one.codes <= other.codes or other.codes <= one.codes
    return one.topic_codes != other.topic_codes or not nested


def _masked(topic: tuple[str, ...], reading: Reading) -> tuple[str, ...]:
    return tuple("" if word in reading.codes else word for word in topic)


def _tension(one: Reading, other: Reading) -> bool:
    for left, right in product(one.clauses, other.clauses):
        opposed = any(_opposed(left, right))
        days_apart = bool(left.weekdays and right.weekdays and left.weekdays.isdisjoint(right.weekdays))
        if opposed or days_apart:
            return True
    return {clause.negative for clause in one.clauses} != {clause.negative for clause in other.clauses}


def _polarity(one: Reading, other: Reading) -> _Evidence:
    """One says that it is so, the other that it is not: "likes coffee", "no longer drinks coffee"."""
    for left, right in product(one.clauses, other.clauses):
        if left.negative == right.negative:
            continue
        denied, said = (left, right) if left.negative else (right, left)
        # "No coffee after noon" does not deny "drinks coffee"; "no longer drinks it" denies "drinks it daily".
        withdrawn = (one.changed or other.changed) and bool(denied.content) and denied.content <= said.content
        if withdrawn or _overlap(denied.content, said.content) >= _SAME_SUBJECT:
            return ("not", "is") if left.negative else ("is", "not")
    return None


def _opposite_words(one: Reading, other: Reading) -> _Evidence:
    """Words of opposite meaning about the same subject: "dark mode", "light mode"."""
    for left, right in product(one.clauses, other.clauses):
        if left.negative != right.negative:
            continue
        for mine, yours in _opposed(left, right):
            if _same_subject(left, right, {*stems_of(mine), *stems_of(yours)}, changed=one.changed or other.changed):
                return mine, yours
    return None


def _weekday(one: Reading, other: Reading) -> _Evidence:
    """Other days for the same subject."""
    for left, right in product(one.clauses, other.clauses):
        days, other_days = left.weekdays, right.weekdays
        if days and other_days and days.isdisjoint(other_days) and left.negative == right.negative:
            dropped = {stem for day in known.WEEKDAYS for stem in stems_of(day)}
            if _same_subject(left, right, dropped, changed=one.changed or other.changed):
                return _shown(days), _shown(other_days)
    return None


def _number(one: Reading, other: Reading) -> _Evidence:
    """Another number of the same thing: a version, an amount with its unit, a time of day."""
    for left, right in product(one.clauses, other.clauses):
        if left.negative != right.negative:
            continue
        for key in sorted(left.numbers.keys() & right.numbers.keys()):
            mine, yours = left.numbers[key], right.numbers[key]
            if mine != yours and _same_subject(left, right, set(), changed=one.changed or other.changed):
                return mine, yours
    return None


def _exclusion(one: Reading, other: Reading) -> _Evidence:
    """What somebody is rules out what somebody eats or drinks: "vegetarian", "eats fish again"."""
    for left, right in product(one.clauses, other.clauses):
        if not (left.negative or right.negative):
            found = _excludes(left, right)
            if found is not None:
                return found
            found = _excludes(right, left)
            if found is not None:
                return found[1], found[0]
    return None


def _excludes(state: Clause, deed: Clause) -> _Evidence:
    for name in sorted(state.tokens & known.EXCLUDED.keys()):
        consumed = (known.EXCLUDED[name] & deed.tokens) - state.tokens
        if consumed and name not in deed.tokens and deed.tokens & known.CONSUMES:
            return name, _shown(frozenset(consumed))
    return None


def _slot(one: Reading, other: Reading) -> _Evidence:
    """Another value where there is one at a time: "lives in Berlin", "moved to Munich"."""
    for key in sorted(one.slots.keys() & other.slots.keys(), key=str):
        (mine, my_change), (yours, your_change) = one.slots[key], other.slots[key]
        if mine != yours and not (my_change and your_change):
            return mine, yours
    return None


# In this order: the first that fires is the one that is told.
_CONTRADICTIONS: tuple[tuple[str, Callable[[Reading, Reading], _Evidence]], ...] = (
    ("polarity", _polarity),
    ("opposite_words", _opposite_words),
    ("weekday", _weekday),
    ("number", _number),
    ("exclusion", _exclusion),
    ("slot", _slot),
)


def _opposed(left: Clause, right: Clause) -> list[tuple[str, str]]:
    """Pairs of opposites of which each clause has one, in the order left, right."""
    if left.tokens.isdisjoint(known.OPPOSITES) or right.tokens.isdisjoint(known.OPPOSITES):
        return []
    found = []
    for first, second in known.ANTONYMS:
        for mine, yours in ((first, second), (second, first)):
            only_mine = mine in left.tokens and mine not in right.tokens
            if only_mine and yours in right.tokens and yours not in left.tokens:
                found.append((mine, yours))
    return found


def _same_subject(left: Clause, right: Clause, dropped: set[str], *, changed: bool) -> bool:
    """Whether two clauses are about one thing besides the words that differ; a told change may leave words out."""
    mine, yours = left.content - dropped, right.content - dropped
    if changed:
        return mine <= yours or yours <= mine
    return bool(mine) and mine == yours


def _overlap(left: frozenset[str], right: frozenset[str]) -> float:
    return len(left & right) / len(left | right) if left and right else 0.0


def _beginnings(stems: frozenset[str]) -> set[str]:
    """PostgreSQL and Postgres share one."""
    return {stem[:_BEGINNING] for stem in stems}


def _shown(found: frozenset[str]) -> str:
    return ", ".join(sorted(found))
