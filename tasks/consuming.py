"""How a worker takes messages."""

from __future__ import annotations

import warnings

from celery.exceptions import CPendingDeprecationWarning
from celery.worker.consumer import consumer

from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.tasks import broker
from isotherm.tasks.log import log


class Consumer(consumer.Consumer):  # type: ignore[misc]  # celery ships no types
    """Celery's own, which makes no queues for delays on RabbitMQ, makes broken ones anew and does not listen to other workers.

    Nothing here is sent with a countdown: what waits, waits in its row. A message that somebody else sends with one is held
    by the worker that has it. Workers have nothing to agree on, since what was claimed stands in PostgreSQL; Celery's way of
    listening to the others' heartbeats fails, with a traceback, each time the broker is lost.
    """

    class Blueprint(consumer.Consumer.Blueprint):  # type: ignore[misc]
        """What it does when it starts, in order."""

        default_steps = [  # noqa: RUF012 - Celery's own is a list
            step
            for step in consumer.Consumer.Blueprint.default_steps
            if not step.endswith((":DelayedDelivery", ":Gossip", ":Mingle"))
        ]

    def on_connection_error_after_connected(self, exc: Exception) -> None:
        """The connection is made anew after this."""
        with warnings.catch_warnings():
            # Each time, it would advise to end the tasks that run; their steps are claimed, and their work is kept.
            warnings.simplefilter("ignore", CPendingDeprecationWarning)
            super().on_connection_error_after_connected(exc)
        if not broker.is_queue_fault(exc):
            return
        try:
            for queue in broker.mend():
                log.warning("worker.queue_made_anew", queue=queue)
        except (TransientError, RejectedError) as error:
            log.warning("worker.server_away", reason=str(error))
