import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.pipeline.tier.cold import (
    SummaryFault,
    TruncateSummarizer,
    check_summary,
    own_summary,
    truncate_summary,
)

SOURCE = (
    "The customer asked why the invoice of March was charged twice. Support found that the payment service had "
    "retried after a timeout, and that the second charge was refunded on the same day. The customer wants a letter "
    "that confirms the refund, sent to the accounting address, and asks that future retries use an idempotency key. "
) * 3


def test_tier_t28_a_summary_is_cut_with_one_ellipsis() -> None:
    summary = TruncateSummarizer().summarize("y" * 64, max_chars=20)
    assert summary == "y" * 20 + "…"
    assert len(summary.encode()) <= 25


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        (" a b ", 3, "a b"),
        ("abcd", 3, "abc…"),
        ("ab cd", 3, "ab…"),
        ("ab…cd", 3, "ab…"),
        ("", 3, ""),
        ("黒猫です", 2, "黒猫…"),
    ],
)
def test_truncation(text: str, limit: int, expected: str) -> None:
    assert truncate_summary(text, limit) == expected


@settings(deadline=None)
@given(st.text(max_size=60), st.integers(1, 40))
def test_truncated_text_is_short_and_stays_as_it_is_when_short(text: str, limit: int) -> None:
    summary = truncate_summary(text, limit)
    assert len(summary) <= limit + 1
    if len(text.strip()) <= limit:
        assert summary == text.strip()


@pytest.mark.parametrize(
    ("summary", "fault"),
    [
        ("", SummaryFault.EMPTY),
        (" \n", SummaryFault.EMPTY),
        ("…", SummaryFault.EMPTY),
        (SOURCE + "and more", SummaryFault.LONGER),
        ("the customer asked " * 20, SummaryFault.REPEATED),
        ("ha" * 100, SummaryFault.REPEATED),
        ("顧客は返金を求めた。" * 12, SummaryFault.REPEATED),
        (SOURCE[:200] + "refund refund refund refund " * 15, SummaryFault.REPEATED),
        ("Customer was charged twice in March; the refund was made the same day, a letter is wanted.", None),
        ("Short.", None),
        (truncate_summary(SOURCE), None),
    ],
)
def test_summaries_are_refused_with_a_reason(summary: str, fault: SummaryFault | None) -> None:
    assert check_summary(summary, SOURCE) is fault


def test_a_source_that_repeats_may_have_a_summary_that_repeats() -> None:
    source = "x" * 5_000
    assert check_summary(truncate_summary(source), source) is None


@settings(deadline=None)
@given(st.text(min_size=1, max_size=2_000).filter(str.strip), st.integers(1, 600))
def test_a_truncated_summary_of_any_text_has_no_fault_but_emptiness(text: str, limit: int) -> None:
    assert check_summary(truncate_summary(text, limit), text) in (None, SummaryFault.EMPTY, SummaryFault.LONGER)


def test_tier_x25_a_small_record_is_its_own_summary() -> None:
    assert own_summary("x" * 4_095) == "x" * 4_095
    assert own_summary("x" * 4_096) is None
    assert own_summary("é" * 5, min_bytes=10) is None
