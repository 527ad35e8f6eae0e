"""The brokers that tests run on: Redis, which all have, and RabbitMQ where its server is installed."""

from __future__ import annotations

import importlib.util
import runpy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from kombu import pools
from rabbit_server import RabbitServer

from isotherm.pipeline import stages
from isotherm.tasks.app import app

# A test with this mark runs once on each; its `rabbit` is None on Redis.
ON_BOTH = pytest.mark.parametrize("rabbit", ["redis", "rabbitmq"], indirect=True)
ON_RABBITMQ = pytest.mark.parametrize("rabbit", ["rabbitmq"], indirect=True)
_OF_A_BROKER = ("broker_url", "broker_transport_options", "task_queues")


def empty(server: RabbitServer) -> None:
    """Remove our queues with what is in them."""
    with server.connect() as connection:
        for queue in stages.Queue:
            connection.channel().queue_delete(queue.value)


@contextmanager
def of_settings() -> Iterator[None]:
    """Have Celery of this process use the broker that the settings name now, and afterwards the one it used before."""
    before = {name: app.conf[name] for name in _OF_A_BROKER}
    use_settings()
    try:
        yield
    finally:
        _use(before)


def use_settings() -> None:
    """Have Celery of this process use the broker that the settings name now, whenever it read them last."""
    found = importlib.util.find_spec("isotherm.celeryconfig")
    assert found is not None
    assert found.origin is not None
    _use(runpy.run_path(found.origin))


def _use(values: Mapping[str, Any]) -> None:
    pools.reset()
    app._pool = None
    app.__dict__.pop("amqp", None)
    app.conf.update({name: values[name] for name in _OF_A_BROKER})
