"""Summaries of cold records: made by a model or by truncation, and refused when they are worth nothing."""

from enum import StrEnum
from typing import Protocol

COLD_MIN_BYTES = 4_096
SUMMARY_MAX_CHARS = 512
_ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
# A window of running text repeats few of its 8-character pieces; a model caught in a loop repeats nearly all.
_PIECE_CHARS = 8
_WINDOW_CHARS = 160
_MIN_REPEATED_CHARS = 48
_MIN_DISTINCT_SHARE = 0.4


class SummaryFault(StrEnum):
    """Why a summary is refused."""

    EMPTY = "empty"
    LONGER = "longer_than_source"
    REPEATED = "repeated"


class Summarizer(Protocol):
    """Shortens a text; what it returns is checked with `check_summary` before use."""

    def summarize(self, text: str, *, max_chars: int) -> str:
        """Return a summary of at most about `max_chars` characters. Raises TransientError when it may work later."""
        ...


class TruncateSummarizer:
    """The summarizer without a model: the beginning of the text."""

    def summarize(self, text: str, *, max_chars: int) -> str:
        """Return the first `max_chars` characters, and an ellipsis when something was cut."""
        return truncate_summary(text, max_chars)


def own_summary(text: str, min_bytes: int = COLD_MIN_BYTES) -> str | None:
    """Return the text itself when it is below `min_bytes` in UTF-8: it goes cold whole. None means: summarize it."""
    return text if len(text.encode("utf-8", "replace")) < min_bytes else None


def truncate_summary(text: str, max_chars: int = SUMMARY_MAX_CHARS) -> str:
    """Trim the text and cut it at `max_chars` characters, followed by one ellipsis when something was cut."""
    trimmed = text.strip()
    if len(trimmed) <= max_chars:
        return trimmed
    return trimmed[:max_chars].rstrip().rstrip(_ELLIPSIS) + _ELLIPSIS


def check_summary(summary: str, source: str) -> SummaryFault | None:
    """Return why a summary cannot stand for its source, None when it can.

    A summary that repeats itself is accepted when its source does so too, as logs and tables do.
    """
    folded, original = _folded(summary), _folded(source)
    if not folded.strip(_ELLIPSIS):
        return SummaryFault.EMPTY
    if len(folded) > len(original):
        return SummaryFault.LONGER
    repeats = _distinct_share(folded) < _MIN_DISTINCT_SHARE
    if repeats and _distinct_share(original) >= _MIN_DISTINCT_SHARE:
        return SummaryFault.REPEATED
    return None


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


def _distinct_share(text: str) -> float:
    """Return the smallest share of distinct pieces in any window; 1 for a short text."""
    if len(text) < _MIN_REPEATED_CHARS:
        return 1.0
    starts = range(0, max(1, len(text) - _WINDOW_CHARS // 2), _WINDOW_CHARS // 2)
    return min(_share_of(text[start : start + _WINDOW_CHARS]) for start in starts)


def _share_of(window: str) -> float:
    pieces = [window[at : at + _PIECE_CHARS] for at in range(len(window) - _PIECE_CHARS + 1)]
    return len(set(pieces)) / len(pieces) if pieces else 1.0
