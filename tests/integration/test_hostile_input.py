"""Any text, number, time or mapping to every producer: a typed refusal that quotes nothing, or a success; never half a write."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from isotherm.pipeline.brain.objects import NewObject
from isotherm.pipeline.errors import IsothermError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers

if TYPE_CHECKING:
    from isotherm.storage.opened import Storage

pytestmark = pytest.mark.usefixtures("kept_storage")

NS = Namespace.of("atlas", "s1", tenant="acme")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ONE, TWO = UUID(int=(1 << 100) + 1), UUID(int=(1 << 100) + 2)
_MOST_TOLD = 600

ANY_TEXT = st.text(
    st.one_of(st.characters(), st.sampled_from(["\0", "\ud800", "\udfff", "\u0301", "\u202e", "\x1b", "'", "%", "\\"]))
)
ANY_NUMBER = st.one_of(
    st.integers(), st.floats(), st.sampled_from([2**63, -(2**63) - 1, 10**400, math.inf, -math.inf, math.nan, True])
)
ANY_TIME = st.one_of(
    st.datetimes(),
    st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=14)), timezone(-timedelta(hours=12))])),
)
ANY_JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), ANY_NUMBER, ANY_TEXT),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(ANY_TEXT, inner, max_size=3)),
    max_leaves=8,
)
ANY_MAPPING = st.dictionaries(ANY_TEXT, ANY_JSON, max_size=4)


def line(**parts: Any) -> TranscriptLine:
    return replace(TranscriptLine(1, "atlas", "s1", "acme", "user", "kelp", NOON), **parts)


TEXTS: dict[str, Callable[[str], object]] = {
    "remember": lambda v: producers.remember(NS, v),
    "id": lambda v: producers.remember(NS, "kelp", record_id=v),
    "key": lambda v: producers.remember(NS, "kelp", key=v),
    "role": lambda v: producers.remember(NS, "kelp", role=v),
    "categories": lambda v: producers.remember(NS, "kelp", categories=[v]),
    "remember_messages": lambda v: producers.remember_messages([line(content=v)]),
    "ingest_session": lambda v: producers.ingest_session(NS, [line(content=v)]),
    "update": lambda v: producers.update(NS, "r", content=v),
    "get": lambda v: producers.get(NS, v),
    "forget": lambda v: producers.forget(NS, [f"no {v}"]),
    "recall": lambda v: producers.recall(NS, v, touch=False),
    "put": lambda v: producers.put(NS, "note", title=v, content=v),
    "kind": lambda v: producers.put(NS, v, title="kelp"),
    "link": lambda v: producers.link(NS, ONE, TWO, "near", note=v),
    "label": lambda v: producers.link(NS, ONE, TWO, v),
    "search": lambda v: producers.search(NS, v),
    "find_exact": lambda v: producers.find_exact(NS, v),
    "recall_interests": lambda v: producers.recall_interests(NS.bank, v),
}
NUMBERS: dict[str, Callable[[Any], object]] = {
    "importance": lambda v: producers.remember(NS, "kelp", importance=v),
    "expected_version": lambda v: producers.update(NS, "r", role="x", expected_version=v),
    "limit of list_all": lambda v: producers.list_all(NS, limit=v),
    "limit of search": lambda v: producers.search(NS, "kelp", limit=v),
    "confidence": lambda v: producers.link(NS, ONE, TWO, "near", confidence=v),
    "hops": lambda v: producers.expand(NS, ONE, ["near"], hops=v),
    "limit of expand": lambda v: producers.expand(NS, ONE, ["near"], limit=v),
    "limit of find_exact": lambda v: producers.find_exact(NS, "one", limit=v),
    "tokens": lambda v: producers.recall_context(NS, "kelp", tokens=v, touch=False),
}
TIMES: dict[str, Callable[[datetime], object]] = {
    "remember": lambda v: producers.remember(NS, "kelp", time=v),
    "message": lambda v: producers.remember_messages([line(time=v)]),
    "source": lambda v: producers.put(NS, "note", title="kelp", source_time=v),
}
MAPPINGS: dict[str, Callable[[Any], object]] = {
    "remember": lambda v: producers.remember(NS, "kelp", metadata=v),
    "update": lambda v: producers.update(NS, "r", metadata=v),
    "put": lambda v: producers.put(NS, "note", title="kelp", properties=v),
    "search": lambda v: producers.search(NS, "kelp", properties=v),
}
hostile = settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def filled(kept_storage: Storage) -> Storage:
    producers.remember(NS, "kelp", record_id="r")
    producers.put_many(NS, [NewObject(ONE, "note", "one"), NewObject(TWO, "note", "two")])
    return kept_storage


def counts() -> list[Any]:
    tables = ("operations", "operation_steps", "tier_records", "brain_objects", "brain_edges", "outbox")
    return fetch_all("SELECT " + ", ".join(f"(SELECT count(*) FROM {t})" for t in tables))


def taken_or_refused(call: Callable[[Any], object], value: Any) -> None:
    producers.flush()
    before = counts()
    try:
        call(value)
    except IsothermError as error:
        said = str(error)
        assert len(said) < _MOST_TOLD
        assert not (isinstance(value, str) and len(value) > 20 and value in said), "the refusal quotes what was given"
        assert counts() == before, "a refused call has written something"


@pytest.mark.parametrize("name", TEXTS)
@hostile
@given(value=ANY_TEXT)
@example("\ud800")
@example("a\0b")
@example("x" * 5_000)
def test_any_text_is_stored_whole_or_refused_whole(name: str, value: str) -> None:
    taken_or_refused(TEXTS[name], value)


@pytest.mark.parametrize("name", NUMBERS)
@hostile
@given(value=ANY_NUMBER)
@example(10**400)
@example(math.nan)
@example(1.0)
@example(1.5)
def test_any_number_is_taken_or_refused(name: str, value: float) -> None:
    taken_or_refused(NUMBERS[name], value)


@pytest.mark.parametrize("name", TIMES)
@hostile
@given(value=ANY_TIME)
@example(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))))
@example(datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=12))))
def test_any_time_is_taken_or_refused(name: str, value: datetime) -> None:
    taken_or_refused(TIMES[name], value)


@pytest.mark.parametrize("name", MAPPINGS)
@hostile
@given(value=ANY_MAPPING)
@example({"n": 10**400})
@example({"a\0": 1, "a\ud800": 2})
def test_any_mapping_is_taken_or_refused(name: str, value: Any) -> None:
    taken_or_refused(MAPPINGS[name], value)


def test_text_of_ten_megabytes_is_refused_by_the_name_of_its_limit() -> None:
    for call in (TEXTS["remember"], TEXTS["remember_messages"], TEXTS["ingest_session"], TEXTS["update"], TEXTS["put"]):
        with pytest.raises(IsothermError, match=r"1048576|max_content|MAX_CONTENT|longer|larger|bytes"):
            call("kelp " * 2_000_000)
