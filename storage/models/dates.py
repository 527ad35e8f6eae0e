"""Dates in questions, by the library dateparser (extra `dates`)."""

from __future__ import annotations

import importlib
import importlib.util
from datetime import UTC, datetime, timedelta
from typing import Any

from isotherm.pipeline.tier.spans import Span, month_after
from isotherm.storage.models.per_process import PerProcess


class ParsedDates:
    """Reads English phrases; the library is loaded at first use, which takes about a second."""

    def __init__(self) -> None:
        self._module = PerProcess(lambda: importlib.import_module("dateparser.date"))

    def read(self, phrase: str, now: datetime) -> Span | None:
        """The day, week, month or year a phrase means, in UTC; the last one before `now` where it does not say."""
        found = self._read(phrase, now)
        if found.date_obj is None:
            return None
        day = found.date_obj.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=UTC)
        return _span(day, found.period)

    def _read(self, phrase: str, now: datetime) -> Any:  # noqa: ANN401 - the library ships no types
        settings = {
            "PREFER_DATES_FROM": "past",
            "PREFER_DAY_OF_MONTH": "first",
            "RELATIVE_BASE": now.astimezone(UTC).replace(tzinfo=None),
        }
        parser = self._module.get().DateDataParser(languages=["en"], settings=settings)
        return parser.get_date_data(phrase)


def date_reader() -> ParsedDates | None:
    """The reader, None where the extra `dates` is not installed."""
    return _READER if importlib.util.find_spec("dateparser") is not None else None


def _span(day: datetime, period: str) -> Span:
    if period == "year":
        start = day.replace(month=1, day=1)
        return Span(start, start.replace(year=start.year + 1))
    if period == "month":
        start = day.replace(day=1)
        return Span(start, month_after(start))
    return Span(day, day + timedelta(days=7 if period == "week" else 1))


_READER = ParsedDates()
