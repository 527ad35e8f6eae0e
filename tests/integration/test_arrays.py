from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.storage.postgres import arrays

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.storage.embedded import Endpoints

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
SHORT = settings(max_examples=40, deadline=None)


@pytest.fixture(scope="module")
def conn(endpoints: Endpoints) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True, options="-c timezone=UTC") as conn:
        yield conn


def read(conn: psycopg.Connection[tuple[object, ...]], *columns: arrays.Column) -> tuple[object, ...]:
    row = conn.execute(f"SELECT {', '.join(['%s'] * len(columns))}", columns).fetchone()
    assert row is not None
    return row


@given(values=st.lists(st.none() | TEXT, max_size=20))
@SHORT
def test_texts_come_back(conn: psycopg.Connection[tuple[object, ...]], values: list[str | None]) -> None:
    raw = [None if value is None else value.encode() for value in values]
    assert read(conn, arrays.texts(values), arrays.encoded(raw), arrays.byteas(raw)) == (values, values, raw)


@given(
    st.lists(st.integers(-(2**15), 2**15 - 1), max_size=40),
    st.lists(st.floats(allow_nan=False), max_size=40),
    st.lists(st.booleans(), max_size=40),
)
@SHORT
def test_numbers_come_back(
    conn: psycopg.Connection[tuple[object, ...]], small: list[int], real: list[float], truth: list[bool]
) -> None:
    integers, large = [n * 2**16 for n in small], [n * 2**48 for n in small]
    found = read(
        conn,
        arrays.smallints(small),
        arrays.integers(integers),
        arrays.bigints(large),
        arrays.floats(real),
        arrays.booleans(truth),
    )
    assert found == (small, integers, large, real, truth)


@given(st.lists(st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5))])), max_size=40))
@SHORT
def test_moments_come_back(conn: psycopg.Connection[tuple[object, ...]], values: list[datetime]) -> None:
    kept = [v for v in values if 2 < v.year < 9998]
    assert read(conn, arrays.moments(kept)) == (kept,)


def test_number_that_does_not_fit_is_refused_and_not_cut() -> None:
    for values in ([2**31], list(range(2**31 - 8, 2**31 + 8))):
        with pytest.raises((OverflowError, arrays.struct.error)):
            arrays.integers(values)


@SHORT
@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=30))
def test_numbers_come_back_as_one_array(conn: psycopg.Connection[tuple[object, ...]], values: list[int]) -> None:
    sent = conn.execute("SELECT array_send(%s::bigint[])", [arrays.bigints(values)]).fetchone()
    assert sent is not None
    assert isinstance(sent[0], bytes)
    assert arrays.numbers(sent[0]).tolist() == values
