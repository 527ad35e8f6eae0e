from __future__ import annotations

import pytest
from celery import Celery
from celery.backends.redis import RedisBackend
from kombu.utils import functional

from isotherm.tasks import celery_amqp, celery_redis
from isotherm.tasks.celery_redis import Connection


class EnoughError(Exception):
    """The test has seen what it wanted."""


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "amqp://127.0.0.1:1//"])
def test_broker_that_was_away_for_long_is_asked_again_every_few_seconds(
    monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    pauses: list[float] = []

    def note(_: Exception, pause: float) -> None:
        pauses.append(pause)
        if len(pauses) == 30:
            raise EnoughError

    monkeypatch.setattr(functional, "sleep", lambda _: None)
    with pytest.raises(EnoughError):
        Connection(url).ensure_connection(note)
    assert 0 < min(pauses) <= max(pauses) <= 5


@pytest.mark.parametrize("scheme", ["amqp", "amqps", "pyamqp"])
def test_every_way_to_rabbitmq_waits_for_confirmations(scheme: str) -> None:
    transport = Connection(f"{scheme}://127.0.0.1:1//").get_transport_cls()
    assert transport.Connection.Channel is celery_amqp.Channel


def test_other_apps_of_the_process_keep_their_result_backend() -> None:
    ours, other = (Celery(backend="redis://127.0.0.1:1/0", set_as_current=False) for _ in range(2))
    celery_redis.use(ours)
    assert type(ours.backend) is celery_redis.Backend
    assert type(other.backend) is RedisBackend
