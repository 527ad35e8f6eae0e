import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.pipeline.clean import METADATA_MAX_DEPTH, aware, clean_metadata, clean_name, clean_text
from isotherm.pipeline.errors import RejectedError

any_text = st.text(st.characters(), max_size=30)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=False, allow_infinity=False)
    | any_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(any_text, inner, max_size=3),
    max_leaves=10,
)


@settings(deadline=None)
@given(any_text)
def test_cleaned_text_is_storable_and_stays_as_it_is(text: str) -> None:
    cleaned = clean_text(text, field="content", max_bytes=10_000)
    cleaned.encode()
    assert "\x00" not in cleaned
    assert len(cleaned) == len(text)
    assert clean_text(cleaned, field="content", max_bytes=10_000) == cleaned


def test_nul_and_surrogates_become_replacement_characters() -> None:
    assert clean_text("a\x00b\ud800c\udfff", field="content", max_bytes=100) == "a\ufffdb\ufffdc\ufffd"


def test_long_text_is_refused_with_sizes_and_without_the_text() -> None:
    with pytest.raises(RejectedError, match=r"^content: 6 bytes, the limit is 5$"):
        clean_text("ééé", field="content", max_bytes=5)
    assert clean_text("ééé", field="content", max_bytes=6) == "ééé"


@pytest.mark.parametrize("name", ["", " ", "\t", "a\x00", "a\nb", "a\x7f", "a\x85b", "\ud800", "x" * 513])
def test_unusable_names_are_refused(name: str) -> None:
    with pytest.raises(RejectedError, match=r"^agent: "):
        clean_name(name, field="agent")


@pytest.mark.parametrize("name", ["a:b", " a ", "Ünï", "x" * 512, "日本", "a/b\\c"])
def test_usable_names_are_returned_unchanged(name: str) -> None:
    assert clean_name(name, field="agent") == name


@pytest.mark.parametrize("value", [None, 5, b"bytes"])
def test_what_is_no_text_is_refused(value: Any) -> None:
    with pytest.raises(RejectedError, match="text is needed"):
        clean_name(value, field="id")
    with pytest.raises(RejectedError, match="text is needed"):
        clean_text(value, field="content", max_bytes=5)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4))
def test_clean_metadata_is_json_and_cleaning_twice_changes_nothing(mapping: dict[str, Any]) -> None:
    cleaned = clean_metadata(mapping)
    assert json.loads(json.dumps(cleaned, allow_nan=False)) == cleaned
    assert clean_metadata(cleaned) == cleaned
    json.dumps(cleaned, ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        [float("-inf")],
        {1: "a"},
        {"a"},
        b"a",
        object(),
        2**128,
        datetime(2026, 1, 1, tzinfo=UTC),
    ],
)
def test_values_json_does_not_have_are_refused(value: Any) -> None:
    with pytest.raises(RejectedError, match=r"^metadata: "):
        clean_metadata({"key": value})


def test_metadata_is_scrubbed_in_values_and_keys() -> None:
    assert clean_metadata({"a\x00": ("b\ud800", {"c": "\x00"})}) == {"a\ufffd": ["b\ufffd", {"c": "\ufffd"}]}
    with pytest.raises(RejectedError, match="two keys are equal"):
        clean_metadata({"a\x00": 1, "a\ufffd": 2})


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"in": value}
    return value


def test_metadata_depth_is_limited() -> None:
    assert clean_metadata(nested(METADATA_MAX_DEPTH)) == nested(METADATA_MAX_DEPTH)
    with pytest.raises(RejectedError, match="deeper than 16"):
        clean_metadata(nested(METADATA_MAX_DEPTH + 1))
    loop: dict[str, Any] = {}
    loop["self"] = loop
    with pytest.raises(RejectedError, match="deeper than 16"):
        clean_metadata(loop)


def test_metadata_size_is_limited_also_when_shared_parts_unfold() -> None:
    with pytest.raises(RejectedError, match="the limit is 10"):
        clean_metadata({"key": "x" * 10}, max_bytes=10)
    shared: list[Any] = ["x"] * 100
    for _ in range(12):
        shared = [shared] * 100
    with pytest.raises(RejectedError, match="more than 1000 bytes"):
        clean_metadata({"key": shared}, max_bytes=1_000)


def test_moments_are_converted_to_utc_and_naive_ones_refused() -> None:
    zone = timezone(timedelta(hours=2))
    moment = aware(datetime(2026, 1, 1, 2, tzinfo=zone), "time")
    assert moment == datetime(2026, 1, 1, tzinfo=UTC)
    assert moment.tzinfo is UTC
    with pytest.raises(RejectedError, match=r"^time: a time zone is needed"):
        aware(datetime(2026, 1, 1), "time")  # noqa: DTZ001 - the naive case
    with pytest.raises(RejectedError, match="outside the years"):
        aware(datetime.min.replace(tzinfo=zone), "time")
