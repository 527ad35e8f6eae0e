"""RabbitMQ as Celery's broker, so that a message counts as out when the broker says that a queue has it.

What py-amqp calls confirmed publishing takes the confirmation of an earlier message for that of a later one once a wait
was given up, waits without end for a broker that hangs, and takes a message that no queue took for one that is out.
"""

from __future__ import annotations

import time
from typing import Any

from amqp.exceptions import RecoverableConnectionError
from kombu.transport import TRANSPORT_ALIASES, pyamqp

# A broker that does not confirm is short of memory or disk, has lost its majority, or hangs; the outbox keeps the message.
_CONFIRM_S = 5.0
_ANSWER_S = 10.0
_CONFIRMED = "confirmed"


class _Impatient:
    """Waits for no answer without end, as py-amqp does where it is told no time; a broker that hangs never says anything."""

    def wait(self, method: object, callback: object = None, timeout: float | None = None, **more: Any) -> Any:  # noqa: ANN401
        """Raises: TimeoutError when an answer does not come."""
        return super().wait(method, callback, timeout or _ANSWER_S, **more)  # type: ignore[misc]


class Channel(_Impatient, pyamqp.Channel):
    """A channel that waits for the confirmation of what it sends to a queue.

    What goes to an exchange is news, commands and answers; whoever listens gets it, and nobody waits.
    """

    _confirm_selected: bool
    _sent = 0
    _wanted = 0
    _answer: str | None = None

    def basic_publish(self, msg: object, exchange: str = "", routing_key: str = "", **options: Any) -> None:  # noqa: ANN401
        """Send a message.

        Raises: RecoverableConnectionError when it is not known to be in its queue. The connection is given up then: what it
            still had to say could be taken for news of a later message.
        """
        if exchange:
            self._sent += self._confirm_selected
            self._basic_publish(msg, exchange, routing_key, **options)
            return
        answered = False
        try:
            self._begin_confirming()
            self._basic_publish(msg, exchange, routing_key, **{**options, "mandatory": True})
            self._wait_confirmed()
            answered = True
        finally:
            if not answered and self.connection is not None:
                self.connection.collect()

    def _begin_confirming(self) -> None:
        if not self._confirm_selected:
            self.confirm_select()
            self._confirm_selected, self._sent = True, 0
        self._sent += 1
        self._wanted, self._answer = self._sent, None

    def _wait_confirmed(self) -> None:
        deadline = time.monotonic() + _CONFIRM_S
        while self._answer is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise RecoverableConnectionError("the broker did not confirm a message")
            if self.connection is None:
                raise RecoverableConnectionError("the connection ended before a message was confirmed")
            try:
                self.connection.drain_events(timeout=left)
            except TimeoutError as error:
                raise RecoverableConnectionError("the broker did not confirm a message") from error
        if self._answer != _CONFIRMED:
            raise RecoverableConnectionError(self._answer)

    def _on_basic_ack(self, delivery_tag: int, multiple: bool) -> None:  # noqa: FBT001 - py-amqp calls it so
        self._settle(delivery_tag, multiple=multiple, answer=_CONFIRMED)

    def _on_basic_nack(self, delivery_tag: int, multiple: bool) -> None:  # noqa: FBT001
        self._settle(delivery_tag, multiple=multiple, answer="the broker refused a message")

    def _on_basic_return(self, *_: object) -> None:
        self._answer = "no queue took a message: it is not there any more"  # its confirmation follows

    def _settle(self, tag: int, *, multiple: bool, answer: str) -> None:
        if self._answer is None and (tag == self._wanted or (multiple and tag > self._wanted)):
            self._answer = answer


class Connection(_Impatient, pyamqp.Connection):
    """A connection of such channels."""

    Channel = Channel


class Transport(pyamqp.Transport):
    """The transport of broker URLs that begin with `amqp` or `pyamqp`."""

    Connection = Connection


class SSLTransport(pyamqp.SSLTransport):
    """The transport of broker URLs that begin with `amqps`."""

    Connection = Connection


def use() -> None:
    """Have broker URLs mean these transports; what this process has open already stays as it is."""
    TRANSPORT_ALIASES.update(dict.fromkeys(("amqp", "pyamqp"), f"{__name__}:Transport"))
    TRANSPORT_ALIASES.update(amqps=f"{__name__}:SSLTransport")
