"""One format for all log lines: structlog events and the lines of libraries, as JSON or for people."""

from __future__ import annotations

import logging
import sys

import structlog


class WithoutBodies(logging.Filter):
    """Tells that a message was dropped, and not what was in it: a line of the log is no place for a body of any length."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Cut a line that Celery writes with the body of a message down to what happened."""
        if "body" in str(record.msg):
            record.msg = str(record.msg).partition("%")[0].partition("\n")[0].rstrip(" :")
            record.args, record.exc_info = (), None
        return True


def configure(*, json: bool, level: int = logging.INFO) -> None:
    """Send every log line of this process to standard error in one format.

    Args: json: one JSON object a line; off: colored text for people.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    last: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                last,
            ],
        )
    )
    logging.getLogger("celery.worker.consumer.consumer").addFilter(WithoutBodies())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
