"""Reads candidates out of a window of a session by rules, without a model.

It is careful rather than complete: a sentence counts when the user says something about themselves in a form that the
patterns of `statement_words` know. What others say, questions, and what recall put into the session do not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from isotherm.pipeline.interest import statement_words as known
from isotherm.pipeline.interest.candidates import TAGS_MAX, Candidate, Kind, Source, statement_digest
from isotherm.pipeline.interest.statement_words import Pattern
from isotherm.pipeline.interest.windows import Message, Window, without_recalled
from isotherm.pipeline.ports import KeyphraseExtractor
from isotherm.pipeline.text import words

_TOPIC_WORDS = 9
_TOPIC_CHARS = 80
_REASON_CHARS = 300
# Longer messages are documents that were pasted, not statements: of those only the plainest forms count.
_SPOKEN_CHARS = 1_200
# Facts may be told with words that stand for something else; what somebody likes or plans must name it.
_SELF_CONTAINED = frozenset({Kind.INTEREST, Kind.PREFERENCE, Kind.PLAN})
_PLAIN = frozenset({"allergy", "diet", "no_longer", "preference", "aversion", "into", "favorite"})

_SENTENCE = re.compile(r"[^.!?\n]*(?:[.!?](?!\s|$|[\"'\u201d\u2019)])[^.!?\n]*)*[.!?\n]*[\"'\u201d\u2019)]*")
_CLAUSE = re.compile(
    r",? (?:and|but|so|though) (?=(?:I|we|my)\b)|, (?=(?:I|I'm|I\u2019m|we|my)\b)|; |"
    r"^(?:agreed|yes|no|ok|okay|right|sure|good|great|thanks|perfect|done)[,.:] ",
    re.IGNORECASE,
)
_LABEL = re.compile(r"^(?:[A-Z][\w']*(?: [\w']+){0,4}): (?=(?:please|I|we|my)\b)")
_LEAD_IN = re.compile(
    r"^(?:(?:and|but|also|oh|well|so|then|actually|anyway|btw|by the way|ok|okay|thanks|hi|hello|hey|yes|no|ha)\b[,:!]?\s+)+",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Clause:
    """A part of a message that says one thing; `start` and `end` are its places in the message."""

    text: str
    start: int
    end: int
    question: bool


class RuleExtractor:
    """Finds candidates by patterns; what they are about is tagged by a keyphrase extractor."""

    def __init__(self, keyphrases: KeyphraseExtractor) -> None:
        self._keyphrases = keyphrases

    def extract(self, window: Window) -> list[Candidate]:
        """The candidates of a window, in order; a topic that comes twice is left twice. Never raises.

        Cost: linear in the length of the window's messages.
        """
        found: list[Candidate] = []
        for place, message in enumerate(window.messages):
            if window.first <= message.turn < window.end and message.role.casefold() == "user":
                following = window.messages[place + 1] if place + 1 < len(window.messages) else None
                found += self._of_message(message, following)
        return found

    def _of_message(self, message: Message, following: Message | None) -> Iterator[Candidate]:
        text = without_recalled(message.text)
        clauses = list(_clauses(text))
        spoken = len(text) <= _SPOKEN_CHARS
        joyful = spoken and bool(known.JOY.search(text))
        told = 0  # places before this one belong to a statement already
        for place, clause in enumerate(clauses):
            if clause.start < told:
                continue
            before = clauses[place - 1] if place else None
            read = _recurring(clause, following) if spoken else None
            read = read or _read(clause, before, joyful=joyful, spoken=spoken)
            if read is not None:
                told = _elaboration(read, clause, clauses[place + 1 :]).end
                yield self._candidate(read, message, text, clause.start, told)

    def _candidate(self, read: _Read, message: Message, text: str, start: int, end: int) -> Candidate:
        said = text[start:end]
        statement = " ".join(said.split())[:_REASON_CHARS]
        tags = [phrase.text for phrase in self._keyphrases.extract(f"{read.topic}. {statement}", TAGS_MAX)]
        source = Source(
            message.namespace_id,
            message.record_key,
            message.record_id,
            message.turn,
            message.at,
            start,
            end,
            statement_digest(said),
        )
        return Candidate(
            topic=read.topic,
            reason=statement,
            confidence=read.pattern.confidence,
            tags=tuple(tags),
            turn_range=(message.turn, message.turn),
            subjective=read.pattern.subjective,
            event_time=message.at,
            kind=read.pattern.kind,
            importance=read.pattern.importance,
            sources=(source,),
        )


@dataclass(frozen=True, slots=True)
class _Read:
    topic: str
    pattern: Pattern


_RECURS = Pattern("recurring", known.RECURRING, Kind.SCHEDULE, 0.8, 0.6)
_JOYFUL = Pattern("joyful", known.GERUND, Kind.INTEREST, 0.7, 0.8, subjective=True)
_VERSION = Pattern("versioned", known.VERSIONED, Kind.TOOL, 0.7, 0.6)


def _clauses(text: str) -> Iterator[Clause]:
    for found in _SENTENCE.finditer(text):
        sentence = found.group()
        question = "?" in sentence[-4:]
        label = _LABEL.match(sentence.lstrip())
        begin = len(sentence) - len(sentence.lstrip()) + (label.end() if label else 0)
        cuts = [(m.start() + begin, m.end() + begin) for m in _CLAUSE.finditer(sentence[begin:])]
        starts = [begin, *(end for _, end in cuts)]
        ends = [*(start for start, _ in cuts), len(sentence)]
        for start, end in zip(starts, ends, strict=True):
            part = sentence[start:end]
            if part.strip(" .!?\n,;:"):
                left = start + len(part) - len(part.lstrip())
                right = start + len(part.rstrip(" .!?\n\"'\u201d\u2019"))
                if right > left:
                    yield Clause(sentence[left:right], found.start() + left, found.start() + right, question)


def _read(clause: Clause, before: Clause | None, *, joyful: bool, spoken: bool) -> _Read | None:
    text = _LEAD_IN.sub("", clause.text)
    for pattern in known.PATTERNS:
        if (clause.question and pattern.name != "announced") or not (spoken or pattern.name in _PLAIN):
            continue
        match = pattern.regex.search(text)
        if match and len(text[: match.start()].split()) <= pattern.lead:
            topic = _topic(match.group("topic"), pattern)
            if topic is None:
                return None
            if pattern.name == "choice" and before is not None:
                topic = f"{_subject(before.text)} {topic.casefold()}".strip()
            return _Read(pattern.prefix + topic, pattern)
    if clause.question or not spoken:
        return None
    return _fragment(text, joyful=joyful)


def _fragment(text: str, *, joyful: bool) -> _Read | None:
    """A sentence without "I": a thing with its version, or what the user does gladly."""
    match = known.VERSIONED.match(text)
    if match:
        return _Read(match.group("topic"), _VERSION)
    match = known.GERUND.match(text) if joyful else None
    if match and match.group("gerund").casefold() in known.PASTIMES:
        topic = _topic(known.ABOUT_IT.sub("", match.group("topic")), _JOYFUL)
        return _Read(topic, _JOYFUL) if topic else None
    return None


def _subject(question: str) -> str:
    """What a sentence before a wish is about: "a theme setting for the docs site" → "docs site"."""
    match = re.search(r"\b(?:for|of|in|on) (?:the |your |my |our )?([\w -]+)$", question)
    return match.group(1).strip() if match else ""


def _topic(found: str, pattern: Pattern) -> str | None:
    if pattern.name == "labeled":
        return found[:_TOPIC_CHARS].strip()
    if pattern.name == "name":
        return ", ".join(part.strip() for part in found.split(",")[:2])[:_TOPIC_CHARS]
    if pattern.name == "best":
        found = re.split(r"[,:]\s+", found)[-1]
        begun = found.split()[0].casefold() if found.split() else ""
        if begun.endswith("ing") and begun not in known.PASTIMES | {"being"}:
            return None
    cut = known.TOPIC_END.split(found.strip(), maxsplit=1)[0] if pattern.name != "no_longer" else found.strip()
    if pattern.name == "wish":
        cut = " ".join(cut.rsplit(" to ", maxsplit=1))
    short = " ".join(known.TOPIC_START.sub("", cut).split()[:_TOPIC_WORDS])[:_TOPIC_CHARS]
    topic = known.TOPIC_TAIL.sub("", short.strip(" .,;:'\"`"))
    meaning = [word for word in words(f"{topic} 0")[:-1] if word not in known.PRONOUNS]
    first = topic.split()[0].casefold() if topic else ""
    if not meaning or first in known.PRONOUNS or set(meaning) <= known.VAGUE:
        return None
    if pattern.kind in _SELF_CONTAINED and _stands_for_something(topic):
        return None
    return topic


def _stands_for_something(topic: str) -> bool:
    said = topic.casefold().split()
    return said[0] in known.THEIRS or not known.ELSEWHERE.isdisjoint(said)


def _recurring(clause: Clause, following: Message | None) -> _Read | None:
    """An appointment that comes back: its name may stand in the answer that confirms it, where the user said "we meet"."""
    if clause.question or not known.GATHERING.search(clause.text):
        return None
    matches = list(known.RECURRING.finditer(clause.text))
    named = [(match, _confirmed(match, following)) for match in matches]
    named = [(match, name) for match, name in named if name] or [
        (match, _before(clause.text[: match.start()])) for match in matches
    ]
    match, name = named[0] if named else (None, "")
    return _Read(f"{name} on {_days(match)}{_time(match)}", _RECURS) if match and name else None


def _days(match: re.Match[str]) -> str:
    return match.group("days") or f"{match.group('day')}s"


def _time(match: re.Match[str]) -> str:
    return match.group("time") or match.group("hour") or ""


def _confirmed(match: re.Match[str], following: Message | None) -> str:
    if following is None or following.role.casefold() != "assistant":
        return ""
    day = _days(match).split(",")[0].split()[0]
    said = re.search(rf"(?:^|[.:!] )([a-z][\w' -]{{3,60}}?)(?:,| on) {day}\b", following.text)
    return said.group(1).strip() if said else ""


def _before(text: str) -> str:
    """The name of an appointment as the user said it, without what leads up to it."""
    text = re.split(r"[:,.]\s+", text.strip())[-1]
    if text.casefold().startswith("not"):
        return ""
    text = re.sub(
        r"^(?:(?:\w+ )?(?:wants?|has|have|got|is|are|we|I)|our|my|the) ",
        "",
        _LEAD_IN.sub("", text),
        flags=re.IGNORECASE,
    )
    text = re.sub(r"(?:^| )(?:is|are|was|happens?|takes? place)$", "", text)
    return " ".join(text.split()[-_TOPIC_WORDS:])


def _elaboration(read: _Read, clause: Clause, following: list[Clause]) -> Clause:
    """The sentence after a pastime that goes on about it belongs to it."""
    if read.pattern.name == "free_time" and following and following[0].text.startswith(("I ", "We ", "My ")):
        return following[0]
    return clause
