"""Questions about a time: which phrase of a query names one, and the span of event time that it means.

Phrases are English; what a phrase means is read by a library behind `DateReader`. Without it such questions are asked by
their words alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|"
    r"nov(?:ember)?|dec(?:ember)?)"
)
_NUMBER = r"(?:\d+|a|one|two|three|four|five|six|few)"
_PHRASE = (
    rf"(?:\d{{1,2}}(?:st|nd|rd|th)?(?: of)? {_MONTH}(?:,? \d{{4}})?|{_MONTH} \d{{1,2}}(?:st|nd|rd|th)?(?:,? \d{{4}})?(?!\d)|"
    rf"{_MONTH},? \d{{4}}|\d{{4}}-\d{{2}}-\d{{2}}|yesterday|today|(?:last|this|past) (?:week|month|year)\b|"
    rf"{_NUMBER} (?:day|week|month|year)s? ago)"
)
# A month or a year alone is one only behind a word of time: "may" and 2000 mean many things.
_LOOSE = rf"(?:{_PHRASE}|{_MONTH}\b|(?:19|20)\d{{2}}\b)"
_BETWEEN = re.compile(rf"\b(?:between|from) ({_LOOSE}) (?:and|to|until) ({_LOOSE})", re.IGNORECASE)
_RELATED = re.compile(rf"\b(before|until|after|since|in|during|by|of) ({_LOOSE})", re.IGNORECASE)
_PLAIN = re.compile(rf"\b{_PHRASE}", re.IGNORECASE)
_EVER: Final = datetime.min.replace(tzinfo=UTC)
_NEVER: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, the end excluded; both aware."""

    start: datetime
    end: datetime


class DateReader(Protocol):
    """Reads a phrase such as `May 3, 2023`, `March` or `two weeks ago`."""

    def read(self, phrase: str, now: datetime) -> Span | None:
        """The day, week, month or year it means, the last one before `now` where it does not say; None when unreadable."""
        ...


def names_a_time(query: str) -> bool:
    """Whether a query has a phrase that may mean a time."""
    return any(pattern.search(query) for pattern in (_PLAIN, _RELATED, _BETWEEN))


def span_of(query: str, now: datetime, reader: DateReader) -> Span | None:
    """The time a question is about: between two dates, before or after one, or the date itself; None for no time."""
    if found := _BETWEEN.search(query):
        one, other = (reader.read(phrase, now) for phrase in found.groups())
        if one is not None and other is not None and one.start < other.end:
            return Span(one.start, other.end)
    if found := _RELATED.search(query):
        return _related(found[1].lower(), reader.read(found[2], now))
    if found := _PLAIN.search(query):
        return reader.read(found[0], now)
    return None


def month_after(start: datetime) -> datetime:
    """The first moment of the next month. Args: start: of a month."""
    return (start + timedelta(days=32)).replace(day=1)


def _related(word: str, span: Span | None) -> Span | None:
    if span is None:
        return None
    if word == "before":
        return Span(_EVER, span.start)
    if word in {"until", "by"}:
        return Span(_EVER, span.end)
    if word == "after":
        return Span(span.end, _NEVER)
    return Span(span.start, _NEVER) if word == "since" else span
