"""Redis as Celery's broker and result backend, without three habits that long-lived processes cannot afford.

A channel whose connection was given up has no address any more. Closing it gives back what it had not acknowledged, and a task
that ends later acknowledges its message by it; the missing address ends the whole worker, where a lost connection is otherwise
retried.

What a worker tells of its broker would hold passwords, where its URL is that of a socket or names several brokers.

Whoever sends a chord listens for the result of each member from then on, on a channel of its own that stays open as long as
the process lives. Here nobody asks for results; the members of chords are counted without them.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.app import amqp
from celery.backends import redis as results
from kombu import connection
from kombu.transport import TRANSPORT_ALIASES, redis
from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import ConnectionError  # noqa: A004 - what a lost connection is to kombu and to Celery

# Kombu's own pauses grow to half a minute, in which a worker does nothing.
_AGAIN_S = 5


class QoS(redis.QoS):
    """What a channel holds unacknowledged."""

    def restore_unacked(self, client: object = None) -> None:
        """Give back what was not acknowledged, while there is a connection to do it by.

        Otherwise it stays where the broker keeps it, until its time to be visible again; its step does not wait for that.
        """
        if self.channel.given_up:
            self._delivered.clear()
            return
        super().restore_unacked(client)  # type: ignore[no-untyped-call]  # kombu ships no types


class Channel(redis.Channel):
    """A channel that knows when its connection was given up: by then it can be closed, and all else finds a lost connection."""

    QoS = QoS

    @property
    def given_up(self) -> bool:
        """Whether the connection was closed, so that no other can be made in its place."""
        return getattr(self.connection, "client", None) is None

    def _get_pool(self, asynchronous: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 - as kombu has it
        """Connections to Redis. Raises: ConnectionError when this channel is of a connection that was given up."""
        if self.given_up:
            raise ConnectionError("the connection of this channel was closed")
        return super()._get_pool(asynchronous)  # type: ignore[no-untyped-call]


class Transport(redis.Transport):
    """The transport of broker URLs that begin with `redis` or `rediss`."""

    Channel = Channel


class Connection(connection.Connection):
    """A connection whose description can be shown."""

    def info(self) -> dict[str, Any]:
        """What it is. Passwords within URLs are left out; the one that has a name of its own is known to whoever shows this."""
        found: dict[str, Any] = super().info()  # type: ignore[no-untyped-call]
        shown = {"alternates": [maybe_sanitize_url(url) for url in found["alternates"]]}
        if "://" in (found["hostname"] or ""):  # the whole URL of a socket
            shown["hostname"] = maybe_sanitize_url(found["hostname"])
        return {**found, **shown}

    def ensure_connection(self, *args: Any, **how: Any) -> connection.Connection:  # noqa: ANN401 - as kombu has it
        """Wait for the broker. One that was away for long is asked again as soon as one that was away for a moment."""
        connected: connection.Connection = super().ensure_connection(*args, **{"interval_max": _AGAIN_S, **how})  # type: ignore[no-untyped-call]
        return connected


class Amqp(amqp.AMQP):  # type: ignore[misc]
    """How an app reaches its broker."""

    Connection = Connection


class ResultConsumer(results.ResultConsumer):  # type: ignore[misc]  # celery ships no types
    """Listens for no result."""

    def consume_from(self, task_id: str) -> None:
        """Nothing waits for a result."""


class Backend(results.RedisBackend):  # type: ignore[misc]
    """The result backend: it counts the members of chords."""

    ResultConsumer = ResultConsumer


def use(app: Celery) -> None:
    """Have an app use these; what this process has open already stays as it is."""
    TRANSPORT_ALIASES.update(dict.fromkeys(("redis", "rediss"), f"{__name__}:Transport"))
    # Not in place: other apps of this process share the mapping, and wait for the results that this backend never hears of.
    ours = dict.fromkeys(("redis", "rediss", "socket"), f"{__name__}:Backend")
    app.loader.override_backends = {**app.loader.override_backends, **ours}
