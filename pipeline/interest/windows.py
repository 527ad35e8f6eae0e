"""A session as its messages, without what memory itself put there, cut into windows of user turns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

# Recalled text comes back in transcripts. Learning from it would make memory confirm itself. Each block is replaced by
# blanks of the same length, so that places in the message stay right.
_NAMES = "isotherm[_-]memory|memory[_-]context|(?:relevant|recalled|retrieved)[_-]memor(?:y|ies)|memories|recall"
_INJECTED = re.compile(
    rf"<(?P<tag>{_NAMES})(?:\s[^<>]*)?>.*?(?:</(?P=tag)\s*>|\Z)"
    r"|\[memory[ _]context\].*?(?:\[/memory[ _]context\]|\Z)",
    re.IGNORECASE | re.DOTALL,
)
_USER = "user"
_KEPT = frozenset({"user", "assistant"})


@dataclass(frozen=True, slots=True)
class Message:
    """A message of a session; `turn` is its 0-based place in the session."""

    turn: int
    role: str
    text: str
    at: datetime
    namespace_id: int = 0
    record_key: int = 0
    record_id: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """Messages that are read together. Those before `first` and from `end` on are context: read, and not reported."""

    messages: tuple[Message, ...]
    first: int
    end: int


def without_recalled(text: str) -> str:
    """The text with blocks of recalled memory blanked out; its length and the places in it stay.

    A block that is never closed goes on to the end.
    """
    return _INJECTED.sub(lambda found: " " * len(found.group()), text)


def windows(messages: Sequence[Message], user_turns: int) -> list[Window]:
    """Cut a session into windows of a number of user turns, each with one message of context on either side.

    Every message is inside exactly one window. Tool messages and messages without text are left out of the windows.
    Args: user_turns: at least 1.
    """
    spoken = [m for m in messages if m.role.casefold() in _KEPT and m.text.strip()]
    starts = [place for place, message in enumerate(spoken) if message.role.casefold() == _USER]
    edges = [0, *starts[user_turns::user_turns], len(spoken)] if spoken else [0]
    found = []
    for first, end in pairwise(edges):
        before, after = max(0, first - 1), min(len(spoken), end + 1)
        found.append(Window(tuple(spoken[before:after]), spoken[first].turn, spoken[end - 1].turn + 1))
    return found
