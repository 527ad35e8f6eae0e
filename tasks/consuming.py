"""How a worker takes messages."""

from __future__ import annotations

from celery.worker.consumer import consumer


class Consumer(consumer.Consumer):  # type: ignore[misc]  # celery ships no types
    """Celery's own, which makes no queues for delays on RabbitMQ.

    Nothing here is sent with a countdown: what waits, waits in its row. A message that somebody else sends with one is held
    by the worker that has it.
    """

    class Blueprint(consumer.Consumer.Blueprint):  # type: ignore[misc]
        """What it does when it starts, in order."""

        default_steps = [step for step in consumer.Consumer.Blueprint.default_steps if ":DelayedDelivery" not in step]  # noqa: RUF012 - Celery's own is a list
