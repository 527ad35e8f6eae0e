from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from isotherm.pipeline.tier.spans import Span, month_after, names_a_time, span_of
from isotherm.storage.models.dates import date_reader

NOW = datetime(2023, 10, 1, 12, tzinfo=UTC)
READ = {
    "May 3, 2023": Span(datetime(2023, 5, 3, tzinfo=UTC), datetime(2023, 5, 4, tzinfo=UTC)),
    "March": Span(datetime(2023, 3, 1, tzinfo=UTC), datetime(2023, 4, 1, tzinfo=UTC)),
    "June 2023": Span(datetime(2023, 6, 1, tzinfo=UTC), datetime(2023, 7, 1, tzinfo=UTC)),
    "2022": Span(datetime(2022, 1, 1, tzinfo=UTC), datetime(2023, 1, 1, tzinfo=UTC)),
    "last week": Span(datetime(2023, 9, 24, tzinfo=UTC), datetime(2023, 10, 1, tzinfo=UTC)),
}


class Known:
    """Reads the phrases above."""

    def read(self, phrase: str, now: datetime) -> Span | None:
        assert now == NOW
        return READ.get(phrase)


@pytest.mark.parametrize("query", ["May I ask?", "in the march of time", "2000 calls", "Who is she?", ""])
def test_words_that_only_look_like_a_time_are_none(query: str) -> None:
    assert not names_a_time(query)
    assert span_of(query, NOW, Known()) is None


def test_a_date_is_its_day_and_a_month_its_month() -> None:
    assert span_of("Who did Ana meet on May 3, 2023?", NOW, Known()) == READ["May 3, 2023"]
    assert span_of("What did we plan in March?", NOW, Known()) == READ["March"]
    assert span_of("What happened last week?", NOW, Known()) == READ["last week"]


def test_before_after_since_and_between() -> None:
    june = READ["June 2023"]
    before, after, since = (
        span_of(f"What was said {word} June 2023?", NOW, Known()) for word in ("before", "after", "since")
    )
    assert before is not None
    assert (before.start.year, before.end) == (1, june.start)
    assert after is not None
    assert (after.start, after.end.year) == (june.end, 9999)
    assert since is not None
    assert since.start == june.start
    assert span_of("between March and June 2023", NOW, Known()) == Span(READ["March"].start, june.end)


def test_a_month_ends_where_the_next_begins() -> None:
    assert month_after(datetime(2024, 1, 1, tzinfo=UTC)) == datetime(2024, 2, 1, tzinfo=UTC)
    assert month_after(datetime(2024, 12, 1, tzinfo=UTC)) == datetime(2025, 1, 1, tzinfo=UTC)


def test_the_library_reads_days_weeks_months_and_years() -> None:
    pytest.importorskip("dateparser")
    reader = date_reader()
    assert reader is not None
    for phrase in ("May 3, 2023", "March", "June 2023", "2022"):
        assert reader.read(phrase, NOW) == READ[phrase]
    yesterday = reader.read("yesterday", NOW)
    assert yesterday == Span(NOW.replace(hour=0) - timedelta(days=1), NOW.replace(hour=0))
    assert reader.read("kelp", NOW) is None
