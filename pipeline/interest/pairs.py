"""How two points relate: by the rule judge, by the likeness of their vectors, and by the words they share.

The rule judge is careful and leaves most rewordings undecided. What it leaves is taken for one interest when both are of
one kind, share a word that says what they are about, and are alike enough; never when their codes or numbers differ, or
when one denies what the other says.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from isotherm.pipeline.interest import opposites, rule_words
from isotherm.pipeline.interest.candidates import Kind, normalize
from isotherm.pipeline.interest.rule_judge import RuleJudge, Verdict
from isotherm.pipeline.interest.rule_reading import Statement, read
from isotherm.pipeline.text import words

# Cosine above which two statements in other words are one, when nothing speaks against it.
ALIKE = 0.84
# Cosine above which a shared subject is enough. Unrelated statements of one session lie between 0 and 0.35.
AKIN = 0.40
# The same where everything that one is about is in the topic of the other.
NESTED = 0.30
# Words of a topic that names a thing: "restored wooden rowing boat", "volunteer at the dog shelter".
_NAME_WORDS = 3
_TELLS = re.compile(r"\w+ (?:is|are|was|were)\b", re.IGNORECASE)

_KINDS = {Kind.INTEREST: 1, Kind.PREFERENCE: 1, Kind.PLAN: 1, Kind.FACT: 2, Kind.SCHEDULE: 3, Kind.TOOL: 4}
# Words that many interests share and none is about.
_COMMON = frozenset(
    words(
        """
        place thing time day week month year work home town world way best good great new old long short small big first last
        people person friend group part kind sort lot bit set help idea plan goal start begin end try make get go come take
        give need look find use want like love enjoy prefer feel think know learn call name own morning evening night weekend
        monday tuesday wednesday thursday friday saturday sunday mode site screen today now four five two three more most
        spend participate event program style another other next soon every whole city trip both
        """
    )
)


class Link(StrEnum):
    """How two points relate."""

    SAME = "same"
    CONTRADICTS = "contradicts"
    APART = "apart"


@dataclass(frozen=True, slots=True)
class Relation:
    """How two points relate, by which rule, and for a contradiction what it saw on the left and on the right."""

    link: Link
    rule: str
    words: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Side:
    """A point as it is compared."""

    topic: str
    reason: str
    kind: Kind = Kind.INTEREST


class Relate(Protocol):
    """Says how two points relate; swapping them swaps the words and nothing else."""

    def __call__(self, left: Side, right: Side, cosine: float | None) -> Relation:
        """Args: cosine: of their vectors, None when there are none."""
        ...


def relate_by_rules(left: Side, right: Side, cosine: float | None) -> Relation:
    """Relate two points without asking a model. Never raises."""
    whole = _JUDGE.judge(_statement(left), _statement(right))
    if whole.verdict is Verdict.CONTRADICTS:
        return Relation(Link.CONTRADICTS, whole.rule, whole.evidence)
    # A topic is a claim by itself; what a reason adds can hide from the judge that two claims are about one thing.
    bare = not (left.reason or right.reason)
    topics = whole if bare else _JUDGE.judge(Statement(left.topic), Statement(right.topic))
    if topics.verdict is Verdict.CONTRADICTS:
        return Relation(Link.CONTRADICTS, topics.rule, topics.evidence)
    if whole.verdict is Verdict.SAME:
        return Relation(Link.SAME, whole.rule)
    if normalize(left.topic) == normalize(right.topic) and topics.verdict is Verdict.SAME:
        return Relation(Link.SAME, "same_name")
    if "codes_differ" in (whole.rule, topics.rule) or "tension" in whole.rule:
        return Relation(Link.APART, whole.rule)
    return _by_likeness(left, right, cosine)


def contradictions_by_rules(sides: Sequence[Side], pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those of the pairs, by place, of which `relate_by_rules` finds a contradiction. Never raises.

    Most pairs of a session have nothing to do with each other, and cost next to nothing here: each side is read once.
    """
    whole = [read(_statement(side)) for side in sides]
    topics = [read(Statement(side.topic)) for side in sides]
    bare = [not side.reason for side in sides]
    return [
        (i, j)
        for i, j in pairs
        if _JUDGE.contradicts(whole[i], whole[j])
        or (not (bare[i] and bare[j]) and _JUDGE.contradicts(topics[i], topics[j]))
    ]


_JUDGE = RuleJudge()


def _statement(side: Side) -> Statement:
    """A denial that stands in the topic and in the reason would count as two, and so as none."""
    return Statement("" if side.reason and _denies(side) else side.topic, side.reason)


def _by_likeness(left: Side, right: Side, cosine: float | None) -> Relation:
    if cosine is None or _denied(left) != _denied(right) or opposites.opposed(left.topic, right.topic):
        return Relation(Link.APART, "undecided")
    if cosine > ALIKE and _numbers(left) == _numbers(right) and not opposites.swapped(left.topic, right.topic):
        return Relation(Link.SAME, "alike")
    if _KINDS[left.kind] == _KINDS[right.kind] and _name_things(left, right) and not _named_apart(left, right):
        if cosine > NESTED and _nested(left, right):
            return Relation(Link.SAME, "nested_subject")
        if cosine > AKIN and _share_subject(left, right):
            return Relation(Link.SAME, "shared_subject")
    return Relation(Link.APART, "undecided")


def _denies(side: Side) -> bool:
    said = side.topic.casefold().replace("\u2019", "'").split()
    return said[:2] == ["used", "to"] or any(word in rule_words.NEGATORS or word.endswith("n't") for word in said)


def _denied(side: Side) -> tuple[bool, int]:
    """Whether a topic denies, and how often: of two denials one may be gone."""
    return _denies(side), opposites.denials(side.topic)


def _name_things(left: Side, right: Side) -> bool:
    """Whether both topics name something rather than tell a whole sentence, of which a shared word is only a part."""
    if any(_TELLS.search(side.topic) for side in (left, right)):
        return False
    return max(len(_subjects(left.topic)), len(_subjects(right.topic))) <= _NAME_WORDS


def _numbers(side: Side) -> frozenset[str]:
    return frozenset(word for word in words(side.topic) if any(char.isdecimal() for char in word))


def _nested(left: Side, right: Side) -> bool:
    mine, yours = _subjects(left.topic), _subjects(right.topic)
    return bool(mine and yours) and (mine <= yours or yours <= mine)


def _named_apart(left: Side, right: Side) -> bool:
    """Whether each names somebody or something, and not the same: Europe and Costa Rica, mom's and grandma's."""
    mine, yours = _names(left.topic), _names(right.topic)
    return bool(mine and yours) and mine.isdisjoint(yours)


def _names(topic: str) -> frozenset[str]:
    """Capitalized words after the first one, and whose something is."""
    shown = topic.replace("\u2019", "'").split()
    return frozenset(
        stem
        for place, word in enumerate(shown)
        if (place and word[:1].isupper()) or word.endswith("'s")
        for stem in words(word)
    )


def _share_subject(left: Side, right: Side) -> bool:
    """Whether what one is about is said by the other."""
    mine, yours = _subjects(left.topic), _subjects(right.topic)
    return bool(mine & (yours | _subjects(right.reason)) or yours & _subjects(left.reason))


def _subjects(text: str) -> frozenset[str]:
    return frozenset(word for word in words(text) if word.isalpha()) - _COMMON
