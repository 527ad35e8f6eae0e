"""What the broker holds and who listens to it."""

from __future__ import annotations

from typing import Any

from kombu.exceptions import ChannelError, OperationalError

from isotherm.pipeline.errors import UnavailableError
from isotherm.tasks.app import app


def depth(queue: str) -> int:
    """How many messages wait in a queue; those that a worker has taken do not count.

    Raises: UnavailableError when the broker cannot be reached.
    """
    try:
        with app.connection_for_read() as connection:
            connection.ensure_connection(max_retries=1, timeout=3)
            return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
    except ChannelError:
        return 0  # nobody has declared it yet, so it holds nothing
    except (OperationalError, OSError) as error:
        raise UnavailableError("the broker cannot be reached") from error


def consumers(timeout: float = 1.5) -> dict[str, list[str]]:
    """Worker names by queue, from the workers' own answers.

    Args: timeout: seconds to wait for answers.
    Raises: UnavailableError when the broker cannot be reached.
    """
    try:
        answers: dict[str, list[dict[str, Any]]] = app.control.inspect(timeout=timeout).active_queues() or {}
    except (OperationalError, OSError) as error:
        raise UnavailableError("the broker cannot be reached") from error
    found: dict[str, list[str]] = {}
    for worker, queues in sorted(answers.items()):
        for queue in queues:
            found.setdefault(queue["name"], []).append(worker)
    return found
