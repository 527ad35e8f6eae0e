import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace, message_id
from isotherm.pipeline.tier.manager import Manager
from isotherm.pipeline.tier.memory_store import MemoryStore
from isotherm.pipeline.tier.messages import ChatMessage, ToolCall, message_of, message_record
from isotherm.pipeline.tier.records import (
    NewRecord,
    Record,
    Tier,
    cleaned_records,
    importance_for_role,
    importance_of,
    searchable_text,
)

T0 = datetime(2026, 7, 1, 12, tzinfo=UTC)
NS = Namespace.of("assistant", "x:assistant")


def test_ranks_and_tiers_convert_both_ways() -> None:
    assert [(tier, tier.rank) for tier in Tier] == [(Tier.HOT, 3), (Tier.WARM, 2), (Tier.COLD, 1)]
    assert all(Tier.from_rank(tier.rank) is tier for tier in Tier)
    with pytest.raises(RejectedError, match="rank 0"):
        Tier.from_rank(0)


def test_tier_t06_importance_by_role_and_searchable_text() -> None:
    assert importance_for_role("user") > importance_for_role("tool")
    assert [importance_for_role(role) for role in (" User ", "ASSISTANT", "tool", "system", "", None)] == [
        0.7,
        0.6,
        0.4,
        0.5,
        0.5,
        0.5,
    ]
    assert searchable_text("content", {"searchable": "  hello  "}) == "hello"
    assert searchable_text("content", {"searchable": " "}) == "content"
    assert searchable_text("content", {"searchable": 5}) == "content"


@pytest.mark.parametrize(
    ("given", "stored"), [(None, 0.7), (0.0, 0.0), (-1.0, 0.0), (7.0, 1.0), (0.3, 0.3), (math.inf, 1.0)]
)
def test_tier_weak_09_importance_is_clamped(given: float | None, stored: float) -> None:
    assert importance_of(given, "user") == stored


def test_importance_that_is_no_number_is_refused() -> None:
    with pytest.raises(RejectedError, match=r"^importance"):
        importance_of(math.nan, None)


def test_cleaned_record_is_storable() -> None:
    record = NewRecord("r1", "a\x00b", T0, role="tool", metadata={"k": "\ud800"}, categories=("c\x00",)).cleaned()
    assert (record.content, record.importance, record.metadata) == ("a\ufffdb", 0.4, {"k": "\ufffd"})
    assert record.categories == ("c\ufffd",)
    assert record.cleaned() == record


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": " "}, "id"),
        ({"content": "x" * 11}, "content"),
        ({"created_at": datetime(2026, 1, 1)}, "created_at"),  # noqa: DTZ001 - the naive case
        ({"metadata": {"a": math.nan}}, "metadata"),
        ({"categories": ("c",) * 65}, "categories"),
    ],
)
def test_records_that_cannot_be_stored_are_refused_by_field(changes: dict[str, Any], field: str) -> None:
    given: dict[str, Any] = {"id": "r1", "content": "x", "created_at": T0, **changes}
    with pytest.raises(RejectedError, match=rf"^{field}: "):
        NewRecord(**given).cleaned(max_bytes=10)


def test_pinned_records_never_start_below_warm() -> None:
    assert NewRecord("r1", "x", T0, tier=Tier.COLD, pinned=True).cleaned().tier is Tier.WARM
    assert NewRecord("r1", "x", T0, tier=Tier.COLD).cleaned().tier is Tier.COLD


def test_tier_t42_a_message_becomes_a_record() -> None:
    """Replaced: the content is the text of the message, where the original kept its JSON there and the text in `searchable`.

    So words, vectors and summaries are of what was said, a cold record that gives its summary still reads as a message
    (X-14), and the text is not stored twice; role and kind, and what else a message has, are metadata beside it.
    """
    message = ChatMessage(role="user", content="hello world", time=T0)
    record = message_record(NS, message, 0)
    assert len(record.id) == 32
    assert (record.tier, record.content, record.categories) == (Tier.HOT, "hello world", ("user",))
    assert (record.importance, record.created_at) == (0.7, T0)
    assert searchable_text(record.content, record.metadata) == "hello world"
    manager = Manager(MemoryStore(), clock=lambda: T0 + timedelta(days=1))
    stored = manager.remember(NS, record)
    assert (stored.created_at, stored.last_access_at) == (T0, T0)
    assert (stored.tier, stored.namespace.scope) == (Tier.HOT, "session")
    assert message_of(stored) == message
    assert record.metadata == {"role": "user", "kind": "message"}
    assert message_of(record) == message


def test_tier_t43_provenance_is_part_of_the_decoded_message() -> None:
    record = message_record(NS, ChatMessage(role="assistant", content="hi", time=T0), 1, provenance="integrator")
    assert record.metadata["provenance"] == "integrator"
    assert message_of(record).metadata["provenance"] == "integrator"


def test_tool_calls_survive_beside_the_text() -> None:
    call = ToolCall(id="c1", name="search", input={"q": ["a", 1, None]})
    message = ChatMessage(role="assistant", time=T0, tool_calls=(call,), metadata={"tier": "conversation"})
    record = message_record(NS, message, 2)
    assert record.content == ""
    assert record.metadata["message"] == {
        "tool_calls": [{"id": "c1", "name": "search", "input": {"q": ["a", 1, None]}}],
        "metadata": {"tier": "conversation"},
    }
    assert message_of(record) == message


def test_tool_answers_survive() -> None:
    message = ChatMessage(role="tool", content="42", time=T0, tool="search", tool_call_id="c1")
    record = message_record(NS, message, 3)
    assert record.importance == 0.4
    assert message_of(record) == message


def test_seeding_a_message_twice_gives_the_same_record() -> None:
    message = ChatMessage(role="user", content="hello\x00", time=T0)
    assert message_record(NS, message, 4) == message_record(NS, message, 4)
    assert message_record(NS, message, 4).id != message_record(NS, message, 5).id
    assert message_record(NS, message, 4).id == message_id(NS, T0, "user", "hello\ufffd", 4)


def test_tier_x14_an_archived_message_still_decodes() -> None:
    new = message_record(NS, ChatMessage(role="user", content="long text", time=T0), 0)
    stored = Record(
        id=new.id,
        namespace=NS,
        content=None,
        summary="long…",
        tier=Tier.COLD,
        pinned=False,
        version=2,
        importance=0.7,
        access_count=0,
        heat=0.0,
        created_at=T0,
        last_access_at=T0,
        moved_at=T0,
        size_bytes=9,
        metadata=new.metadata,
        categories=new.categories,
        content_sha256="0" * 64,
    )
    assert message_of(stored).content == "long…"


def test_messages_that_do_not_parse_are_refused_without_their_values() -> None:
    with pytest.raises(RejectedError, match=r"^ChatMessage: ") as caught:
        ChatMessage.parse({"role": "user", "time": "secret", "content": 5, "other": 1})
    assert "secret" not in str(caught.value)
    assert all(field in str(caught.value) for field in ("time", "content", "other"))


@pytest.mark.parametrize(("given", "stored"), [(10**400, 1.0), (-(10**400), 0.0), (float("inf"), 1.0), (0.25, 0.25)])
def test_importance_of_any_size_is_clamped(given: float, stored: float) -> None:
    assert importance_of(given, None) == stored


def test_importance_of_another_type_is_refused() -> None:
    for wrong in (float("nan"), "0.5", b"x"):
        with pytest.raises(RejectedError, match="importance"):
            importance_of(wrong, None)  # type: ignore[arg-type]


plain = st.text(st.characters(codec="ascii"), max_size=8)
records = st.builds(
    NewRecord,
    id=st.sampled_from(["r1", " ", "", "é", "a\tb", "x" * 600, 5]) | plain,
    content=st.sampled_from(["hello", "a\x00b", "\ud800", "é" * 6, "x" * 11, None]) | plain,
    created_at=st.sampled_from([T0, T0.astimezone(timezone(timedelta(hours=2))), T0.replace(tzinfo=None), "now"]),
    role=st.sampled_from([None, "user", "\x00", "x" * 600, 7]),
    importance=st.sampled_from([None, 0.4, 1, 9, -1, math.nan]),
    categories=st.sampled_from([(), [], None, ("c\x00",)]),
    metadata=st.sampled_from([{}, None, {"k": "\ud800"}, {"k": math.nan}]),
    tier=st.sampled_from(Tier),
    pinned=st.booleans(),
)


@given(st.lists(records, max_size=3) | st.lists(st.builds(NewRecord, id=plain, content=plain, created_at=st.just(T0))))
def test_records_of_a_call_are_cleaned_as_one_by_one(given: list[NewRecord]) -> None:
    try:
        expected = [record.cleaned(max_bytes=10) for record in given]
    except RejectedError as error:
        with pytest.raises(RejectedError, match=f"^{re.escape(str(error))}$"):
            cleaned_records(given, max_bytes=10)
    else:
        cleaned = cleaned_records(given, max_bytes=10)
        assert [replace(record, importance=record.weight) for record in cleaned] == expected
