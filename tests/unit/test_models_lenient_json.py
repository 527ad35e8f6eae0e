import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.lenient_json import json_values, read_cut_off, read_json

SCALAR = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8)
VALUE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))
WHOLE = st.lists(VALUE, max_size=4) | st.dictionaries(st.text(max_size=4), VALUE, max_size=4)
# Prose that holds no bracket of its own and no end of reasoning.
PROSE = st.text(st.characters(exclude_characters="{}[]`<>", codec="utf-8"), max_size=30)


@given(WHOLE, PROSE, PROSE, st.booleans())
def test_a_value_is_found_whatever_stands_around_it(value: Any, before: str, after: str, fenced: bool) -> None:  # noqa: FBT001
    written = json.dumps(value, ensure_ascii=fenced, indent=1)
    middle = f"\n```json\n{written}\n```\n" if fenced and "```" not in written else written
    if "</think>" not in written:
        assert read_json(before + middle + after) == value


@given(st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    assert all(isinstance(value, dict | list) for value in json_values(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": [1, 2,], }', {"a": [1, 2]}),
        ('{"a": ",]"}', {"a": ",]"}),
        ('{"a": "two\nlines"}', {"a": "two\nlines"}),
        ('I think {so}: {"a": "}{"} bye', {"a": "}{"}),
        ('<think>{"x": 1}</think>{"a": 1}', {"a": 1}),
        ('["a \\" quote"]', ['a " quote']),
    ],
)
def test_untidy_json_is_read(text: str, value: object) -> None:
    assert read_json(text) == value


@pytest.mark.parametrize(
    "text", ["", "none", '"text"', "3", '{"a": NaN}', "{'a': 1}", '{"a": 1', "[" * 5000, '{"a" 1}']
)
def test_what_is_no_json_is_refused_without_repeating_it(text: str) -> None:
    with pytest.raises(ValueError, match="no JSON object or list"):
        read_json(text)


def test_every_value_of_a_text_is_offered_in_order() -> None:
    assert list(json_values('As [1] says:\n{"a": 2}')) == [[1], {"a": 2}]


@given(st.lists(VALUE, max_size=5), st.booleans(), st.data())
def test_a_cut_list_keeps_a_beginning_of_its_whole_items(items: list[Any], named: bool, data: st.DataObject) -> None:  # noqa: FBT001
    written = json.dumps({"n": 1, "items": items} if named else items)
    if "</think>" in written:
        return
    opened = written.index("[") + 1
    cut = written[: data.draw(st.integers(opened, len(written)))]
    found: Any = read_cut_off(cut)
    kept = found["items"] if named else found
    assert kept == items[: len(kept)]
    if cut == written:
        assert kept == items


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('```json\n{"a": [{"x": 1}, {"x": 2', {"a": [{"x": 1}]}),
        ('{"a": [1], "b": [2, 3', {"a": [1], "b": [2]}),
        ('{"a": [1, 2], "b": "cut', {"a": [1, 2]}),
        ('{"a": [', {"a": []}),
    ],
)
def test_fields_before_the_cut_are_kept(text: str, value: object) -> None:
    assert read_cut_off(text) == value


def test_nothing_is_read_before_a_list_began() -> None:
    with pytest.raises(ValueError, match="no JSON list had begun"):
        read_cut_off('{"a": "cut')


@pytest.mark.parametrize("piece", ["[", '{"', '"', "[1,", "```\n", '{"a":[', '{"a":{', "\\"])
def test_hostile_text_takes_linear_time(piece: str) -> None:
    text = piece * (300_000 // len(piece))
    started = time.process_time()
    list(json_values(text))
    assert time.process_time() - started < 2
