"""Which of two objects is current, by edges and by what they say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from isotherm.pipeline.brain.renewing import EdgeFound, Said, latest, statements, successors

T0 = datetime(2026, 3, 1, tzinfo=UTC)
A, B, C = (UUID(int=n) for n in (1, 2, 3))
OLD, NEW = "The quota is 1,000 calls.", "The quota is now 1,200 calls."


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("supersedes", {B: {A}}),
        (" Replaces ", {B: {A}}),
        ("superseded_by", {A: {B}}),
        ("sequel", {A: {B}}),
        ("contradicts", {A: {B}}),
    ],
)
def test_labels_say_which_end_is_newer(label: str, expected: dict[UUID, set[UUID]]) -> None:
    assert successors([EdgeFound(A, B, label)], {A: T0, B: T0 + timedelta(days=1)}) == expected


def test_a_contradiction_without_times_or_of_one_time_says_nothing() -> None:
    assert successors([EdgeFound(A, B, "contradicts")], {}) == {}
    assert successors([EdgeFound(A, B, "contradicts")], {A: T0, B: T0}) == {}


def test_the_older_one_is_renewed_by_all_that_follow_and_by_none_in_a_circle() -> None:
    assert latest({A: {B}, B: {C}}) == [(A, B), (A, C), (B, C)]
    assert latest({A: {B}, B: {A}}) == []


def said(*texts: str, dated: bool = True) -> list[Said]:
    at = [T0 + timedelta(days=n) for n in range(len(texts))]
    return [Said(UUID(int=n + 1), at[n] if dated else None, at[n], "note", text) for n, text in enumerate(texts)]


def test_statements_are_compared_only_when_a_dated_one_says_that_something_is_new() -> None:
    assert {one.key for one in statements("the quota?", said(OLD, NEW))} == {0, 1}
    assert statements("the quota?", said(OLD, OLD)) == []
    assert statements("the quota?", said(OLD, NEW, dated=False)) == []
    assert statements("the quota originally?", said(OLD, NEW)) == []
    assert statements("the ferry?", said(OLD, NEW)) == []
