"""What comes in by standard input, options and small files, read whole or refused with a sentence."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from isotherm.pipeline.errors import RejectedError

LIMIT = 64 * 1024 * 1024


def bytes_of(file: Path, limit: int = LIMIT) -> bytes:
    """Read a file whole, without trust in the size it says: a pipe or a device says none.

    Raises: RejectedError when it is longer than `limit` bytes; OSError when it cannot be read.
    """
    with file.open("rb") as source:
        raw = source.read(limit + 1)
    if len(raw) > limit:
        raise RejectedError(f"{file.name}: more than {limit} bytes")
    return raw


def lines(source: BinaryIO, most: int) -> Iterator[bytes]:
    """Lines of a file; of one beyond the limit only so much as shows that it is, so that memory stays flat."""
    limit = most + 1
    while line := source.readline(limit):
        yield line
        while len(line) == limit and not line.endswith(b"\n"):
            line = source.readline(limit)


def text_or_input(text: str) -> str:
    """The text, or standard input for a hyphen.

    Raises: RejectedError when what comes in is not UTF-8.
    """
    if text != "-":
        return text
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise RejectedError("standard input is not UTF-8") from None


def json_of(source: str | bytes, what: str) -> Any:  # noqa: ANN401 - any JSON value
    """Parse JSON.

    Args: what: how a person calls it.
    Raises: RejectedError, which quotes nothing of it.
    """
    try:
        return json.loads(source)
    except ValueError:
        raise RejectedError(f"{what} is not JSON") from None
    except RecursionError:
        raise RejectedError(f"{what} is nested too deeply") from None
