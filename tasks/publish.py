"""Publishing after the commit: at once and best effort. What does not get out stays in the outbox for the relay."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import structlog
from kombu.exceptions import OperationalError

from isotherm.pipeline.errors import TransientError
from isotherm.storage.postgres import outbox
from isotherm.storage.postgres.outbox import Message
from isotherm.storage.postgres.pool import connection
from isotherm.tasks.canvas import BUILDERS

log = structlog.get_logger("isotherm")

# After a failure nothing is tried for a moment: a caller that stores a thousand records must not wait for a thousand
# refused connections.
_PAUSE_S = 1.0


class _State:
    paused_until = 0.0


# Ids of outbox rows that are out; the next write of this process removes them on its way.
_sent: deque[int] = deque(maxlen=10_000)


def publish(messages: Sequence[Message]) -> list[int]:
    """Publish messages; returns the ids of those that are out, and never raises because a broker is away."""
    out: list[int] = []
    if not messages or time.monotonic() < _State.paused_until:
        return out
    try:
        for message in messages:
            BUILDERS[message.builder](message.payload).apply_async(retry=False)
            out.append(message.id)
    except (OperationalError, OSError) as error:
        _State.paused_until = time.monotonic() + _PAUSE_S
        log.warning("outbox.publish_postponed", error=type(error).__name__, messages=len(messages) - len(out))
    return out


def publish_after_commit(messages: Sequence[Message]) -> None:
    """Publish what a committed transaction enqueued and remember what is out."""
    _sent.extend(publish(messages))


def publish_and_remove(messages: Sequence[Message]) -> None:
    """Publish what a committed transaction enqueued, and remove what is out at once.

    For canvases: the relay cannot tell that one is out, and would send all its messages again after the grace.
    """
    out = publish(messages)
    if not out:
        return
    try:
        with connection() as conn:
            outbox.remove(conn, out)
    except TransientError as error:
        log.warning("outbox.message_left", messages=len(out), reason=str(error))


def take_sent(most: int = 500) -> list[int]:
    """Outbox ids that were published and may be removed with the next write."""
    return [_sent.popleft() for _ in range(min(most, len(_sent)))]


def put_back(ids: Sequence[int]) -> None:
    """Keep ids whose removal was rolled back."""
    _sent.extend(ids)
