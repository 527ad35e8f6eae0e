"""What the broker holds and who listens to it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import tenacity
from kombu.connection import Connection
from kombu.exceptions import ChannelError, OperationalError

from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage.servers import Fault
from isotherm.storage.settings import Settings
from isotherm.tasks.app import app

# Answers of a broker: what it will say again however often it is asked, and that it knows of no such queue.
_REFUSALS = {
    "403": "the broker refuses this user, password or virtual host",
    "530": "the broker refuses this user, password or virtual host",
    "406": "a queue of ours is there with other arguments: remove it once it is empty, or name another virtual host",
}
_NOT_FOUND = "404"
_INTERNAL_ERROR = "541"


def lost() -> tuple[type[BaseException], ...]:
    """What a broker that is away or refuses looks like; each transport has errors of its own besides kombu's."""
    connection = app.connection_for_read()
    return (OperationalError, OSError, *connection.connection_errors, *connection.channel_errors)


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except lost() as error:
        if (refusal := _REFUSALS.get(str(getattr(error, "reply_code", "")))) is not None:
            raise RejectedError(refusal) from error
        raise UnavailableError("the broker cannot be reached") from error


def faults(chosen: Settings) -> list[Fault]:
    """What is wrong with a broker of its own; with Redis for everything it is Redis that is looked at."""
    if chosen.broker_url is None:
        return []
    try:
        kind()
    except UnavailableError as error:
        return [Fault(str(error), lasting=False)]
    except RejectedError as error:
        return [Fault(str(error), lasting=True)]
    return []


def kind() -> str:
    """What the broker is, after a look whether it lets us in, has our queues as they should be and takes messages.

    Raises: UnavailableError when it cannot be reached or takes none; RejectedError when it refuses us.
    """
    with _translated(), app.connection_for_read() as connection:
        connection.ensure_connection(max_retries=1, timeout=3)
        if connection.transport.driver_type != "amqp":
            return str(connection.transport.driver_type).capitalize()
        _declare_queues(connection)
        _send_one(connection)
        about = connection.connection.server_properties
        return f"{about.get('product')} {about.get('version')}"


def _declare_queues(connection: Connection) -> None:
    for queue in app.amqp.queues.values():
        queue(connection.default_channel).declare()


def _send_one(connection: Connection) -> None:
    """To a queue that goes with the connection. A broker whose memory or disk is short takes nothing and says nothing."""
    channel: Any = connection.default_channel
    own = channel.queue_declare(exclusive=True).queue
    try:
        channel.basic_publish(channel.prepare_message(b"{}"), routing_key=own)
    except lost() as error:
        raise UnavailableError("the broker takes no messages: look at its memory and its disk") from error


def is_queue_fault(error: BaseException) -> bool:
    """Whether something of the broker's own is in its way."""
    return str(getattr(error, "reply_code", "")) == _INTERNAL_ERROR


def mend() -> list[str]:
    """Make anew those of our queues of which RabbitMQ has nothing but the name; returns them.

    It comes back so when it was killed as it had just made them; then it cuts off who asks for them. What was sent to them
    meanwhile is announced again by the sweeper.

    Raises: UnavailableError when the broker cannot be reached; RejectedError when it refuses us.
    """
    with _translated():
        broken = [queue for queue in app.amqp.queues.values() if _gives_nothing(queue.name)]
        for queue in broken:
            with app.connection_for_write() as connection:
                channel: Any = connection.default_channel
                channel.queue_delete(queue.name)
                queue(channel).declare()
    return [queue.name for queue in broken]


def _gives_nothing(queue: str) -> bool:
    """Whether a queue that is known cannot be consumed. One that does not answer may have its nodes elsewhere."""
    connection = app.connection_for_read()
    try:
        channel: Any = connection.default_channel
        channel.queue_declare(queue, passive=True)
        channel.basic_qos(0, 1, False)
        try:
            channel.basic_consume(queue, callback=lambda _: None)
        except TimeoutError:
            return False
        except lost() as error:
            if not is_queue_fault(error):
                raise
            return True
        return False
    finally:
        connection.collect()  # without a word, which might not be answered


def depth(queue: str) -> int:
    """How many messages wait in a queue; those that a worker has taken do not count.

    Raises: UnavailableError when the broker cannot be reached; RejectedError when it refuses us.
    """
    return depths([queue])[queue]


def depths(queues: Collection[str]) -> dict[str, int]:
    """The same for several queues by one connection; no queue costs none."""
    if not queues:
        return {}
    with _translated(), app.connection_for_read() as connection:
        connection.ensure_connection(max_retries=1, timeout=3)
        return {queue: _depth(connection, queue) for queue in queues}


def _depth(connection: Connection, queue: str) -> int:
    try:
        declared: Any = connection.default_channel.queue_declare(queue, passive=True)  # type: ignore[no-untyped-call]
        return int(declared.message_count)
    except ChannelError as error:
        if str(error.reply_code) != _NOT_FOUND:
            raise
        return 0  # nobody has declared it yet, so it holds nothing


def consumers(timeout: float = 1.5) -> dict[str, list[str]]:
    """Worker names by queue, from the workers' own answers.

    Args: timeout: seconds to wait for answers.
    Raises: UnavailableError when the broker cannot be reached; RejectedError when it refuses us.
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
