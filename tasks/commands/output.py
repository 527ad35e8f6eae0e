"""How commands speak: tables for people, JSON for programs, a sentence and an exit code for errors."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntEnum
from typing import Annotated, Any, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from isotherm.pipeline.errors import IsothermError, RejectedError, TransientError
from isotherm.storage import servers
from isotherm.storage.settings import Settings, settings

out = Console()
err = Console(stderr=True)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]

_NAME_CHARS = 300


class Exit(IntEnum):
    """Exit codes of the command. 2 is the command line's own, for wrong usage."""

    OK = 0
    REFUSED = 1  # the input, or a part of it, cannot be used
    UNAVAILABLE = 3  # a server is away; the same call may work later
    UNHEALTHY = 4  # `doctor` found something, or work ended failed, dead or partial
    BUG = 70  # an error of ours


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Turn our errors into a line on standard error and an exit code; a person never sees a traceback."""
    try:
        yield
    except RejectedError as error:
        fail(str(error), Exit.REFUSED)
    except TransientError as error:
        fail(str(error), Exit.UNAVAILABLE)
    except IsothermError as error:
        fail(str(error), Exit.UNHEALTHY)
    except KeyboardInterrupt:
        fail("interrupted; what was accepted is stored", Exit.UNAVAILABLE)
    except BrokenPipeError:
        sys.stderr.close()  # nobody reads any more: a second error at exit would only disturb
        raise SystemExit(Exit.OK) from None
    except OSError as error:  # of a file that was named: adapters translate those of their servers
        name = "" if error.filename is None else f"{str(error.filename)[:_NAME_CHARS]}: "
        fail(f"{name}{error.strerror or type(error).__name__}", Exit.REFUSED)


def fail(sentence: str, code: Exit) -> NoReturn:
    """Print a sentence and end with a code."""
    err.print(f"[red]isotherm:[/red] {escape(sentence)}", soft_wrap=True)
    raise SystemExit(int(code))


def ready() -> Settings:
    """The settings, once PostgreSQL answers: a command should say at once that it does not, and what to do.

    Raises: UnavailableError or RejectedError with what to do about it.
    """
    chosen = settings()
    servers.probe(chosen)
    return chosen


def print_json(value: Any) -> None:  # noqa: ANN401 - any JSON value
    """Print one JSON document."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=_plain) + "\n")


def _plain(value: Any) -> Any:  # noqa: ANN401 - what json cannot write itself
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Mapping):
        return dict(value)
    return str(value)


def table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    right: Sequence[int] = (),
    whole: Sequence[int] = (0,),
) -> Table:
    """A table for people; cells that are not rich markup of ours are escaped by the caller.

    Args: right: indexes of columns that hold numbers; whole: of columns that are never broken into lines.
    """
    made = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
    )
    for number, name in enumerate(columns):
        made.add_column(name, justify="right" if number in right else "left", overflow="fold", no_wrap=number in whole)
    for row in rows:
        made.add_row(*(cell if isinstance(cell, str) else str(cell) for cell in row))
    return made


_STYLES = {"done": "green", "running": "cyan", "accepted": "cyan", "partial": "yellow", "cancelled": "yellow"}


def state(name: str) -> str:
    """A state in its color."""
    style = _STYLES.get(name, "red")
    return f"[{style}]{name}[/{style}]"


def counted(n: int, noun: str, plural: str | None = None) -> str:
    """A number with what it counts: 1 record, 2 records."""
    return f"{n} {noun if n == 1 else plural or f'{noun}s'}"


def age(moment: datetime | None) -> str:
    """How long ago a moment was, for people."""
    return "-" if moment is None else span((datetime.now(UTC) - moment).total_seconds())


def span(seconds: float) -> str:
    """A duration in its two largest units at most."""
    if seconds < 1:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    for size, unit, smaller, small in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min"), (60, "min", 1, "s")):
        if seconds >= size:
            rest = int(seconds % size // smaller)
            return f"{int(seconds // size)} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{seconds:.0f} s"


def size(n: float) -> str:
    """Bytes in the unit that fits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if n < 1024 or unit == "GiB":  # noqa: PLR2004 - the factor between the units
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    raise AssertionError("the loop returns at the last unit")


def clip(text: str, width: int = 100) -> str:
    """Text on one line, cut for a table."""
    line = " ".join(text.split())
    return escape(line if len(line) <= width else line[: width - 1] + "…")
