"""The logger of tasks, commands and producers."""

from __future__ import annotations

import sys
from typing import Any

import structlog


class _Lines:
    """Lines go where the process has structlog send them, and to standard error where nobody has said so.

    Standard output belongs to the program that calls producers; some speak a protocol on it.
    """

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - methods and attributes of any logger
        if not structlog.is_configured():
            return getattr(structlog.PrintLogger(sys.stderr), name)
        return getattr(structlog.get_config()["logger_factory"]("isotherm"), name)


log = structlog.wrap_logger(_Lines())
