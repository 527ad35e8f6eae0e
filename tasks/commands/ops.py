"""`ops`: what became of each call, and the two things a person can do about it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated
from uuid import UUID

import typer
from rich.markup import escape

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.work import OperationState
from isotherm.storage.postgres import operations
from isotherm.storage.postgres.operations import Operation
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import system
from isotherm.tasks import producers
from isotherm.tasks.commands.output import (
    JsonFlag,
    age,
    clip,
    counted,
    errors_as_sentences,
    out,
    print_json,
    ready,
    span,
    state,
    table,
)

app = typer.Typer(help="Operations: list, show, retry, cancel.", no_args_is_help=True)

OperationId = Annotated[str, typer.Argument(metavar="ID", help="Id of an operation, as `ops list` shows it.")]


def parse_id(text: str) -> UUID:
    """Raises: RejectedError when the text is no operation id."""
    try:
        return UUID(text)
    except ValueError:
        raise RejectedError("an operation id looks like 01975c1e-7d1c-7e60-b8a5-94f2a1d0c3b7") from None


@app.command("list")
def list_operations(
    *,
    states: Annotated[list[OperationState] | None, typer.Option("--state", help="Only these states.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only this kind, such as tier.remember.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, newest first.")] = 20,
    as_json: JsonFlag = False,
) -> None:
    """List operations, newest first."""
    with errors_as_sentences():
        storage.open(ready())
        with system(), connection() as conn:
            found = operations.newest(
                conn, states=[s.value for s in states] if states else None, kind=kind, limit=limit
            )
            totals = operations.counts(conn)
        if as_json:
            print_json([asdict(o) for o in found])
            return
        show_operations(found, totals)


def show_operations(found: list[Operation], totals: list[tuple[str, str, int]]) -> None:
    """Print operations as a table, and how many there are in all by kind and state."""
    # What became of it stands below its kind: beside the id, which is never broken, a narrow terminal has no room for it.
    rows = [(str(o.id), _told(o), state(o.state), age(o.created_at)) for o in found]
    out.print(table("Operations", ("id", "kind and result", "state", "age"), rows, whole=(0, 2, 3)))
    show_totals(totals)


def _told(operation: Operation) -> str:
    became = clip(operation.error or _counts(operation), 60)
    return operation.kind + (f"\n[dim]{became}[/dim]" if became else "")


def show_totals(totals: list[tuple[str, str, int]]) -> None:
    """Print how many operations there are by kind, and in which states."""
    kinds: dict[str, list[str]] = {}
    for kind, name, count in totals:
        kinds.setdefault(kind, []).append(f"{count} {state(name)}")
    for kind, states in kinds.items():
        out.print(f"{kind}: {', '.join(states)}")


def _took(operation: Operation) -> str:
    if operation.finished_at is None:
        return "-"
    return span((operation.finished_at - operation.created_at).total_seconds())


def _counts(operation: Operation) -> str:
    return " ".join(f"{name}={n}" for name, n in (operation.result or {}).items() if isinstance(n, int) and n)


@app.command()
def show(operation_id: OperationId, *, as_json: JsonFlag = False) -> None:
    """Show an operation and its steps."""
    with errors_as_sentences():
        wanted = parse_id(operation_id)
        storage.open(ready())
        with system(), connection() as conn:
            found, steps = operations.get(conn, wanted), operations.steps_of(conn, wanted)
        if as_json:
            print_json({**asdict(found), "steps": [asdict(s) for s in steps]})
            return
        out.print(
            f"{found.kind}  {found.id}  {state(found.state)}  accepted {age(found.created_at)} ago, took {_took(found)}"
        )
        if found.error:
            out.print(f"reason: {escape(found.error)}", soft_wrap=True)
        if found.result:
            out.print(f"result: {escape(_counts(found)) or 'nothing to do'}", soft_wrap=True)
        rows = [
            (s.id, s.stage, s.unit or "-", s.queue, state(s.state), s.attempts, s.waits, clip(s.last_error or "", 60))
            for s in steps
        ]
        columns = ("step", "stage", "unit", "queue", "state", "attempts", "waits", "last error")
        out.print(table("Steps", columns, rows, right=(0, 5, 6)))


@app.command()
def retry(operation_id: OperationId, *, as_json: JsonFlag = False) -> None:
    """Run the failed, dead and cancelled steps of an operation again."""
    with errors_as_sentences():
        wanted = parse_id(operation_id)
        ready()
        tell_retried(wanted, producers.retry(wanted), f"isotherm ops show {wanted}", as_json=as_json)


def tell_retried(operation_id: UUID, steps: int, look: str, *, as_json: bool) -> None:
    """Say how many steps run again, and with which command to look at them."""
    if as_json:
        print_json({"operation": operation_id, "steps": steps})
    else:
        verb = "runs" if steps == 1 else "run"
        out.print(f"{counted(steps, 'step')} {verb} again; see `{look}`", soft_wrap=True)


@app.command()
def cancel(operation_id: OperationId, *, as_json: JsonFlag = False) -> None:
    """Stop what has not ended of an operation; what it stored already stays."""
    with errors_as_sentences():
        wanted = parse_id(operation_id)
        ready()
        ended = producers.cancel(wanted)
        if as_json:
            print_json({"operation": wanted, "state": ended.state})
        else:
            out.print(f"operation {wanted} is {state(ended.state)}")
