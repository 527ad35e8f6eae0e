"""What the broker holds and who listens to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tenacity
from kombu.exceptions import ChannelError, OperationalError

from isotherm.pipeline.errors import UnavailableError
from isotherm.tasks.app import app

_NOT_FOUND = "404"


def lost() -> tuple[type[BaseException], ...]:
    """What a broker that is away or refuses looks like; each transport has errors of its own besides kombu's."""
    connection = app.connection_for_read()
    return (OperationalError, OSError, *connection.connection_errors, *connection.channel_errors)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except lost() as error:
        raise UnavailableError("the broker cannot be reached") from error


def depth(queue: str) -> int:
    """How many messages wait in a queue; those that a worker has taken do not count.

    Raises: UnavailableError when the broker cannot be reached.
    """
    with _translated(), app.connection_for_read() as connection:
        connection.ensure_connection(max_retries=1, timeout=3)
        try:
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
        except ChannelError as error:
            if str(error.reply_code) != _NOT_FOUND:
                raise
            return 0  # nobody has declared it yet, so it holds nothing


def consumers(timeout: float = 1.5) -> dict[str, list[str]]:
    """Worker names by queue, from the workers' own answers.

    Args: timeout: seconds to wait for answers.
    Raises: UnavailableError when the broker cannot be reached.
    """
    # A connection kept since the broker was restarted is found dead only by using it; the second one is new.
    again = tenacity.Retrying(
        stop=tenacity.stop_after_attempt(2), retry=tenacity.retry_if_exception_type(lost()), reraise=True
    )
    with _translated():
        answers: dict[str, list[dict[str, Any]]] = again(app.control.inspect(timeout=timeout).active_queues) or {}
    found: dict[str, list[str]] = {}
    for worker, queues in sorted(answers.items()):
        for queue in queues:
            found.setdefault(queue["name"], []).append(worker)
    return found
