"""Rules of the engine that need no server: kinds, filters, knobs, snapshots, landings, order, snippets, long texts."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.brain import errors
from isotherm.pipeline.brain.answers import Answer, Result, landing_ids, landing_ids_of, reranked, sort_objects
from isotherm.pipeline.brain.catalog import plain_times
from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.brain.errors import (
    FilterError,
    InvalidError,
    KindError,
    RerankError,
    ResultSetIdRequiredError,
    ResultSetNotFoundError,
)
from isotherm.pipeline.brain.filters import Filters, Range
from isotherm.pipeline.brain.kinds import CORE_KEYS, FieldSpec, FieldType, KindSpec, instant, normalized
from isotherm.pipeline.brain.long_texts import embed_whole, windows
from isotherm.pipeline.brain.objects import NewObject, Object
from isotherm.pipeline.brain.result_sets import Kept, KeptPart, ResultSet, SearchContext, cursor, read_cursor
from isotherm.pipeline.brain.snippets import snippet_around
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.fusion import Fusion

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

NOW = datetime(2026, 7, 1, tzinfo=UTC)
NS = UUID(int=77)
A, B, C = (UUID(int=n) for n in (1, 2, 3))


def stored(object_id: UUID = A, **said: Any) -> Object:
    given = {"kind": "note", "title": "", "summary": "", "content": None, "content_type": "", "properties": {},
             "parent_id": None, "position": None, "revision": 1, "vector_state": "done", "created_at": NOW,
             "updated_at": NOW}  # fmt: skip
    return Object(id=object_id, **{**given, **said})


# Kinds


@pytest.mark.parametrize(
    "wrong",
    [
        KindSpec(" "),
        KindSpec("K", fields=(FieldSpec("created_after", FieldType.STRING),)),
        KindSpec("K", fields=(FieldSpec("a", FieldType.STRING), FieldSpec(" a ", FieldType.NUMBER))),
        KindSpec("K", fields=(FieldSpec("bad-key!", FieldType.STRING),)),
        KindSpec("K", fields=(FieldSpec("a", "uuid"),)),  # type: ignore[arg-type]
        KindSpec("K", fields=(FieldSpec("", FieldType.STRING),)),
        KindSpec("bad\x00name"),
    ],
)
def test_brain_k01_kinds_that_are_described_wrongly_are_refused(wrong: KindSpec) -> None:
    with pytest.raises(KindError):
        wrong.normalized()


@pytest.mark.parametrize("name", [*sorted(CORE_KEYS), "id", "content", "summary", "parent_id", "position", "revision"])
def test_names_that_mean_something_else_are_no_fields(name: str) -> None:
    with pytest.raises(KindError, match=name):
        FieldSpec(name, FieldType.STRING).normalized()


def test_kinds_are_read_as_they_were_written_with_operators_by_type() -> None:
    kind = KindSpec(" Deal ", " what ", is_parent=True, fields=(FieldSpec("hot", FieldType.BOOLEAN, examples=(True,)),
                    FieldSpec("amount", FieldType.NUMBER, required=True)))  # fmt: skip
    assert KindSpec.of_json(json.loads(json.dumps(kind.normalized().to_json()))) == kind.normalized()
    assert [f.operators[0] for f in kind.fields] == ["eq", "eq"]
    assert "in" not in FieldType.BOOLEAN.operators
    assert list(normalized([KindSpec("b"), KindSpec("a")])) == ["a", "b"]
    for wrong in ({"kind": "K", "fields": [{"name": "a"}]}, {"kind": "K", "fields": {}}, {"kind": 3}, {"kind": "K", "is_part": 1},
                  {"kind": "K", "fields": ["a"]}, {"kind": "K", "fields": [{"name": "a", "type": "string", "examples": 1}]}):  # fmt: skip
        with pytest.raises(KindError):
            KindSpec.of_json(wrong)


def test_moments_are_read_from_dates_and_text_with_a_zone_and_nothing_else() -> None:
    assert instant("2026-07-01") == NOW
    assert instant("2026-07-01T02:00:00+02:00") == NOW
    assert instant("2026-07-01T00:00:00Z") == NOW
    for none in ("now", "", "2026-13-01", "20260701", datetime(2026, 7, 1), 5, None, "0001-01-01T00:00:00+14:00"):  # noqa: DTZ001 - one without a zone
        assert instant(none) is None
    assert plain_times(NewObject(A, "k", properties={"when": NOW, "n": 1})).properties == {
        "when": "2026-07-01T00:00:00.000000Z",
        "n": 1,
    }


# Filters


@pytest.mark.parametrize(
    "wrong",
    [
        {"updated_after": "not-a-date"}, {"": 1}, {"a": None}, {"a": []}, {"a": {"b": 1}}, {"a": {}}, {"a": {"gt": True}},
        {"a": {"gt": 1, "lt": "2026-01-01"}}, {"a": {"gt": "x"}}, {"a": {"gt": float("nan")}}, {"title": []}, {"kind": [" "]},
        {"a": [None]}, {"created_before": 7},
    ],
)  # fmt: skip
def test_brain_s07_filters_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(FilterError):
        Filters.parse(wrong)


def test_one_flat_mapping_is_read_as_filters() -> None:
    read = Filters.parse(
        {"kind": "Deal", "title": ["A", "B"], "created_after": "2026-07-01", " amount ": {"lt": 3}}, [A]
    )
    assert read == Filters(
        kinds=("Deal",), titles=("A", "B"), created_after=NOW, properties={"amount": Range({"lt": 3})}, scope_ids=(A,)
    )
    assert read.narrow
    assert not Filters.parse({}).narrow
    assert not Range({"gt": 1}).of_moments
    assert Range({"gt": NOW}).of_moments


# Knobs


def test_knobs_have_bounds_and_pages_are_never_silently_shorter() -> None:
    for wrong in ({"candidate_k": 0}, {"rerank_n": -1}, {"max_result_set": 0}):
        with pytest.raises(RejectedError):
            EngineConfig(**wrong)
    config = EngineConfig(default_limit=7, max_limit=9)
    assert (config.limit(None), config.limit(9)) == (7, 9)
    for wrong_limit in (0, -1, 10):
        with pytest.raises(RejectedError):
            config.limit(wrong_limit)
    assert EngineConfig(default_limit=7, max_limit=5).limit(None) == 5
    assert EngineConfig().now().utcoffset() == timedelta(0)


def test_brain_r06_the_numbers_of_the_original_are_one_call_away() -> None:
    go = EngineConfig.go_default()
    assert (go.fusion, go.decay, go.rrf_k, go.candidate_k, go.evidence_n) == (Fusion.RRF, Decay(0.02, 0.0), 60, 40, 3)
    assert (go.default_limit, go.max_limit, go.max_result_set, go.max_graph_calls) == (10, 50, 1_000, 64)
    assert replace(go, decay=Decay.off()).decay.per_day == 0


def test_brain_weak_28_every_error_is_a_type_that_says_what_to_do() -> None:
    found = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, errors.BrainError)]
    assert len(found) >= 25
    assert all(issubclass(error, RejectedError) and error.__doc__ for error in found)


# Snapshots


def result_set(number: int = 1, at: datetime = NOW) -> ResultSet:
    items = (Kept(A, 0.5, (KeptPart(B, 0.5),), {"type": "about"}), Kept(C))
    return ResultSet(UUID(int=number), NS, "search", "kelp", items, at, ("vector",), truncated=True)


def test_brain_c01_results_are_exported_restored_and_cleared() -> None:
    """Several sets live at once; a format that is not ours, older ones too, is refused and changes nothing."""
    context = SearchContext(now=lambda: NOW)
    assert context.export() == b""
    context.put(result_set())
    exported = context.export()
    other = SearchContext(now=lambda: NOW)
    other.restore(exported)
    assert other.get(UUID(int=1), NS) == result_set()
    for broken in (b"{", b"[]", b'{"format": 2}', b'{"format": 1, "result_sets": [{}]}', b'"x"', b"\xff"):
        with pytest.raises(InvalidError):
            other.restore(broken)
    assert other.get(UUID(int=1), NS) == result_set()
    for nothing in (None, b""):
        other.restore(exported)
        other.restore(nothing)
        with pytest.raises(ResultSetNotFoundError):
            other.get(UUID(int=1), NS)
    context.clear()
    assert context.export() == b""
    with pytest.raises(ResultSetIdRequiredError):
        context.put(result_set(0))


def test_sets_live_for_a_while_and_the_oldest_goes_first() -> None:
    clock = [NOW]
    context = SearchContext(timedelta(minutes=5), most=2, now=lambda: clock[0])
    for number in (1, 2, 3):
        context.put(result_set(number, clock[0]))
        clock[0] += timedelta(minutes=1)
    with pytest.raises(ResultSetNotFoundError):
        context.get(UUID(int=1), NS)
    assert context.get(UUID(int=2), NS).id == UUID(int=2)
    with pytest.raises(ResultSetNotFoundError):
        context.get(UUID(int=3), UUID(int=78))
    clock[0] += timedelta(minutes=3)
    with pytest.raises(ResultSetNotFoundError):
        context.get(UUID(int=2), NS)
    assert context.get(UUID(int=3), NS).id == UUID(int=3)


@given(number=st.integers(1, 2**128 - 1), offset=st.integers(0, 2**32 - 1))
def test_a_cursor_says_where_it_goes_on(number: int, offset: int) -> None:
    assert read_cursor(cursor(UUID(int=number), offset)) == (UUID(int=number), offset)


@given(text=st.text(max_size=40))
def test_what_is_no_cursor_is_refused_whatever_it_is(text: str) -> None:
    try:
        read_cursor(text)
    except (ResultSetIdRequiredError, ResultSetNotFoundError):
        return
    assert len(text) >= 27


# Landing, order, reranking


def test_brain_e17_parts_land_on_their_parents_once() -> None:
    found = [stored(B, parent_id=A), stored(C, parent_id=A), stored(UUID(int=9)), stored(C, parent_id=UUID(int=0)),
             stored(UUID(int=0))]  # fmt: skip
    assert landing_ids(found) == [A, UUID(int=9)]
    assert landing_ids([]) == []
    assert landing_ids_of(Answer(tuple(Result(each, 1.0, None) for each in found))) == [A, UUID(int=9)]


def test_brain_e18_objects_are_sorted_by_what_their_values_are() -> None:
    """Numbers as numbers and keys with capitals too, which the original could not."""

    def order(key: str, *said: dict[str, Any], descending: bool = False) -> list[int]:
        objects = [stored(UUID(int=n), **one) for n, one in enumerate(said, 1)]
        return [each.id.int for each in sort_objects(objects, key, descending=descending)]

    assert order("position", {"position": 1}, {}) == [2, 1]
    assert order("flag", *({"properties": {"flag": value}} for value in (True, False))) == [2, 1]
    assert order(" Title ", {"title": "b"}, {"title": "a"}) == [2, 1]
    assert order("updated_at", {}, {"updated_at": NOW + timedelta(1)}, descending=True) == [2, 1]
    assert order("created_at", {"created_at": NOW + timedelta(1)}, {}) == [2, 1]
    assert order(" ", {"title": "b"}, {"title": "a"}) == [1, 2]
    assert order("Amount", *({"properties": {"Amount": value}} for value in (10, 2.5, "x", None, True))) == [
        4,
        5,
        2,
        1,
        3,
    ]
    assert order("same", {}, {}, {}) == [1, 2, 3]


def test_a_reranker_may_only_leave_out_and_reorder() -> None:
    assert reranked([A, B, C], None) == [A, B, C]
    assert reranked([A, B, C], [C, A]) == [C, A]
    for wrong in ([A, A], [NS]):
        with pytest.raises(RerankError):
            reranked([A, B, C], wrong)


# Snippets


def test_brain_r08_a_snippet_begins_where_most_of_the_words_are() -> None:
    text = "one " * 100 + "the kelp forest grows " + "two " * 100
    shown = snippet_around(text, ["kelp", "forest"])
    assert shown.startswith("…")
    assert "kelp forest" in shown
    assert shown.endswith("…")
    assert len(shown) <= 242
    assert snippet_around("kelp " + text, ["kelp"]).startswith("kelp one")
    assert snippet_around("short", ["kelp"]) == "short"
    assert snippet_around(text, []) == text[:240] + "…"
    assert snippet_around(text, ["kelp"], 0) == text.strip()
    assert "海藻森林" in snippet_around("雨" * 300 + "海藻森林" + "雨" * 300, ["海藻", "森林"])
    assert snippet_around("x" * 500 + "kelp" + "x" * 500, ["kelp"]).startswith("xxx")


@given(text=st.text(max_size=600), words=st.lists(st.text(max_size=5), max_size=5), most=st.integers(60, 300))
def test_a_snippet_is_a_piece_of_its_text(text: str, words: list[str], most: int) -> None:
    shown = snippet_around(text, words, most)
    assert len(shown) <= most + 2
    assert shown.removeprefix("…").removesuffix("…") in text.strip() or shown in text


# Long texts


@given(text=st.text(alphabet="ab ", max_size=300), chars=st.integers(2, 40))
def test_windows_hold_all_words_in_order(text: str, chars: int) -> None:
    found = windows(text, chars, 1_000)
    assert all(len(each) <= chars for each in found)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert len(windows(text, chars, 3)) <= 3


class Counting:
    """An embedder whose vector says how many a and b a text has."""

    model, dimension = "counting", 2

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raw = np.array([[t.count("a"), t.count("b")] for t in texts], dtype=np.float32).reshape(-1, 2)
        return raw / np.maximum(np.linalg.norm(raw, axis=1, keepdims=True), 1e-9)


def test_the_end_of_a_long_text_counts_too_and_a_short_one_keeps_its_vector() -> None:
    found = embed_whole(Counting(), ["a", "a " * 3_000 + "b " * 3_000, "b"])
    assert found.tolist()[0] == [1, 0]
    assert found.tolist()[2] == [0, 1]
    assert found[1] == pytest.approx([np.sqrt(0.5)] * 2, abs=0.01)
    assert embed_whole(Counting(), []).shape == (0, 2)
