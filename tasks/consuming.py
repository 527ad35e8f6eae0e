"""How a worker takes messages."""

from __future__ import annotations

from celery.worker.consumer import consumer

from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.tasks import broker
from isotherm.tasks.log import log


class Consumer(consumer.Consumer):  # type: ignore[misc]  # celery ships no types
    """Celery's own, which makes no queues for delays on RabbitMQ, and makes broken ones anew.

    Nothing here is sent with a countdown: what waits, waits in its row. A message that somebody else sends with one is held
    by the worker that has it.
    """

    class Blueprint(consumer.Consumer.Blueprint):  # type: ignore[misc]
        """What it does when it starts, in order."""

        default_steps = [step for step in consumer.Consumer.Blueprint.default_steps if ":DelayedDelivery" not in step]  # noqa: RUF012 - Celery's own is a list

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """The connection is made anew after this."""
        super().on_connection_error_after_connected(exc)
        if not broker.is_queue_fault(exc):
            return
        try:
            for queue in broker.mend():
                log.warning("worker.queue_made_anew", queue=queue)
        except (TransientError, RejectedError) as error:
            log.warning("worker.server_away", reason=str(error))
