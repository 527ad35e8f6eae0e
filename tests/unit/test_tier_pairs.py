"""Calls of tools and their answers come whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.tier.messages import with_whole_pairs


@dataclass(frozen=True)
class Message:
    name: str
    metadata: Mapping[str, Any]


def said(name: str) -> Message:
    return Message(name, {"kind": "message"})


def calls(*ids: str) -> Message:
    return Message(f"calls {' '.join(ids)}", {"message": {"tool_calls": [{"id": i, "name": "look"} for i in ids]}})


def answer(call_id: str) -> Message:
    return Message(f"answer {call_id}", {"message": {"tool": "look", "tool_call_id": call_id}})


def names(*messages: Message) -> list[str]:
    return [m.name for m in with_whole_pairs(messages)]


def test_what_calls_no_tools_is_left_alone() -> None:
    assert names(said("a"), said("b")) == ["a", "b"]
    assert names() == []
    assert names(Message("odd", {"message": "text", "kind": 3})) == ["odd"]


def test_answers_whose_call_was_cut_off_are_left_out() -> None:
    assert names(answer("1"), answer("2"), said("a"), calls("3"), answer("3")) == ["a", "calls 3", "answer 3"]


def test_call_that_misses_an_answer_is_left_out_with_those_it_got() -> None:
    assert names(calls("1", "2"), answer("1"), said("a")) == ["a"]
    assert names(calls("1", "2"), answer("2"), answer("1"), said("a")) == ["calls 1 2", "answer 2", "answer 1", "a"]


def test_call_at_the_end_is_still_being_worked_on() -> None:
    assert names(said("a"), calls("1", "2")) == ["a", "calls 1 2"]
    assert names(said("a"), calls("1", "2"), answer("1")) == ["a", "calls 1 2", "answer 1"]


def test_second_answer_to_one_call_is_left_out() -> None:
    assert names(calls("1"), answer("1"), answer("1"), said("a")) == ["calls 1", "answer 1", "a"]


_MESSAGES = st.lists(
    st.one_of(
        st.just(said("text")),
        st.lists(st.sampled_from("123"), min_size=1, unique=True).map(lambda ids: calls(*ids)),
        st.sampled_from("123").map(answer),
    ),
    max_size=12,
)


@given(_MESSAGES)
def test_every_answer_that_stays_has_its_call_before_it_and_twice_is_once(messages: list[Message]) -> None:
    kept = with_whole_pairs(messages)
    assert with_whole_pairs(kept) == kept
    assert [m for m in kept if m.name == "text"] == [m for m in messages if m.name == "text"]
    awaited: set[str] = set()
    for message in kept:
        envelope = message.metadata.get("message", {})
        if "tool_call_id" in envelope:
            assert envelope["tool_call_id"] in awaited
        else:
            awaited = {call["id"] for call in envelope.get("tool_calls", [])}
