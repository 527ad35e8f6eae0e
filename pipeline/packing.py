"""Stored text in a prompt: how long it is, and how it is kept from posing as anything else."""

from __future__ import annotations

from typing import Final

# Around memory that is put before an agent; what stands between its ends is never learned from again.
TAG: Final = "isotherm_memory"
# Rounded down, so that the estimate rather errs by too many: English has about 4 bytes to a token, other scripts fewer.
_BYTES_PER_TOKEN = 3


def tokens(text: str) -> int:
    """How many tokens a text is at most likely to have, by its length in bytes."""
    return -(-len(text.encode("utf-8", "replace")) // _BYTES_PER_TOKEN)


def plain(text: str, limit: int) -> str:
    """On one line, cut off, without the signs of which the frame is made."""
    shown = " ".join(text.split())
    if len(shown) > limit:
        shown = f"{shown[: limit - 1]}\u2026"
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("[", "(").replace("]", ")")
