from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
import redis
from kombu import Consumer, Queue

from isotherm.tasks.celery_redis import Connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from isotherm.storage.embedded import Endpoints

QUEUE = Queue("given-up", routing_key="given-up")
ENDS: dict[str, Callable[[Any], None]] = {
    "acknowledged": lambda message: message.ack(),
    "refused": lambda message: message.reject(),
    "given back": lambda message: message.requeue(),
}


def refuse(*_: object, **__: object) -> None:
    raise redis.ConnectionError("nobody listens")


@pytest.fixture
def broker(endpoints: Endpoints, client: redis.Redis) -> Iterator[Connection]:
    assert client.ping()
    with Connection(endpoints.broker_url) as found:
        yield found


def received(broker: Connection) -> Any:
    """The next message, by a channel of its own, as a worker holds it while it works on it."""
    broker.Producer().publish({"step": 1}, routing_key="given-up", exchange="", declare=[QUEUE])
    messages: list[Any] = []
    with Consumer(broker.channel(), [QUEUE], callbacks=[lambda _, message: messages.append(message)]):
        while not messages:
            broker.drain_events(timeout=10)
    return messages[0]


def give_up(broker: Connection) -> None:
    """What a worker does with a connection that was lost."""
    broker.collect(socket_timeout=1)
    with suppress(*broker.connection_errors):
        broker.close()


@pytest.mark.parametrize("end", ENDS)
def test_a_message_that_ends_after_its_connection_was_given_up_is_in_its_queue_again(
    broker: Connection, client: redis.Redis, end: str
) -> None:
    held = received(broker)
    give_up(broker)
    assert client.llen("given-up") == 1
    with suppress(*broker.connection_errors):
        ENDS[end](held)
    assert (client.llen("given-up"), client.hlen("unacked")) == (1, 0)


@pytest.mark.parametrize("end", ENDS)
def test_a_message_that_ends_after_its_connection_was_given_up_without_its_broker_finds_it_lost_and_stays(
    broker: Connection, client: redis.Redis, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    held = [received(broker) for _ in range(2)]  # the last channel to be made is closed first, and in vain
    with monkeypatch.context() as away:
        away.setattr(redis.ConnectionPool, "get_connection", refuse)
        give_up(broker)
        held[0].channel.close()
    with pytest.raises(broker.connection_errors):  # what Celery takes for a lost connection; all else ends the worker
        ENDS[end](held[0])
    assert not held[0].acknowledged
    assert (client.llen("given-up"), client.hlen("unacked")) == (0, 2)


def test_a_channel_is_closed_twice_and_after_its_connection(broker: Connection) -> None:
    channels = [broker.channel() for _ in range(2)]
    channels[0].close()
    give_up(broker)
    for channel in channels:
        channel.close()
        with pytest.raises(broker.connection_errors):
            channel.queue_purge("given-up")
