"""The `isotherm` command."""

from __future__ import annotations

import io
import logging
import os
import sys
from typing import Annotated

import structlog
import typer
from rich.markup import escape

from isotherm import __version__
from isotherm.tasks.commands import (
    backup,
    brain,
    brain_find,
    config,
    demo,
    doctor,
    edit,
    erase,
    evaluate,
    graph,
    ingest,
    interest_changes,
    memory,
    ops,
    runs,
    servers,
    tiers,
    transfer,
)
from isotherm.tasks.commands.output import Exit, err, out

app = typer.Typer(
    help="Long-term memory for AI agents: remember, recall, and watch memory move between hot, warm and cold.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_HERE = "This machine"
_MEMORY = "Memory"
_INTERESTS = "Interests"
_KNOWLEDGE = "Knowledge"
_WORK = "Background work"

app.command(rich_help_panel=_HERE)(servers.up)
app.command(rich_help_panel=_HERE)(servers.down)
app.command(rich_help_panel=_HERE)(servers.migrate)
app.command(rich_help_panel=_HERE)(doctor.doctor)
app.command(rich_help_panel=_HERE)(backup.backup)
app.command("restore-db", rich_help_panel=_HERE)(backup.restore_db)
app.command(rich_help_panel=_HERE)(demo.demo)
app.command("settings", rich_help_panel=_HERE)(config.show_settings)
app.command(rich_help_panel=_MEMORY)(ingest.ingest)
app.command(rich_help_panel=_MEMORY)(memory.remember)
app.command(rich_help_panel=_MEMORY)(memory.recall)
app.add_typer(tiers.app, name="tiers", rich_help_panel=_MEMORY)
app.command(rich_help_panel=_MEMORY)(memory.reconcile)
app.command(rich_help_panel=_MEMORY)(memory.restore)
app.command(rich_help_panel=_MEMORY)(edit.get)
app.command(rich_help_panel=_MEMORY)(edit.update)
app.command(rich_help_panel=_MEMORY)(edit.pin)
app.command(rich_help_panel=_MEMORY)(edit.unpin)
app.command(rich_help_panel=_MEMORY)(edit.explain)
app.command(rich_help_panel=_MEMORY)(erase.forget)
app.command(rich_help_panel=_MEMORY)(erase.forgotten)
app.command(rich_help_panel=_MEMORY)(transfer.export)
app.command("import", rich_help_panel=_MEMORY)(transfer.import_)
app.add_typer(interest_changes.interests, name="interests", rich_help_panel=_INTERESTS)
app.add_typer(interest_changes.contradictions, name="contradictions", rich_help_panel=_INTERESTS)
app.add_typer(runs.app, name="runs", rich_help_panel=_INTERESTS)
app.command(rich_help_panel=_KNOWLEDGE)(brain.put)
app.command(rich_help_panel=_KNOWLEDGE)(brain.search)
app.command(rich_help_panel=_KNOWLEDGE)(brain.expand)
app.command(rich_help_panel=_KNOWLEDGE)(brain_find.read)
app.command(rich_help_panel=_KNOWLEDGE)(brain_find.find)
app.command(rich_help_panel=_KNOWLEDGE)(brain_find.links)
app.command(rich_help_panel=_KNOWLEDGE)(brain_find.kinds)
app.command("eval", rich_help_panel=_KNOWLEDGE)(evaluate.evaluate)
app.add_typer(graph.app, name="graph", rich_help_panel=_KNOWLEDGE)
app.add_typer(ops.app, name="ops", rich_help_panel=_WORK)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer passes the flag's value
    if wanted:
        out.print(f"isotherm {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show events and library logs on standard error.")] = False,
) -> None:
    del version
    level = logging.INFO if verbose else logging.CRITICAL
    logging.basicConfig(level=level, stream=sys.stderr)
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def main() -> None:
    """Run the command. A person sees a sentence for an error of ours, and a traceback only by ISOTHERM_DEBUG=1."""
    for stream in (sys.stdout, sys.stderr):  # a name that is not UTF-8 is shown escaped, in JSON as JSON escapes it
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except Exception as error:
        if os.environ.get("ISOTHERM_DEBUG"):
            raise
        kind = type(error).__name__
        err.print(f"[red]isotherm:[/red] unexpected {escape(kind)}; ISOTHERM_DEBUG=1 shows where", soft_wrap=True)
        raise SystemExit(int(Exit.BUG)) from None


if __name__ == "__main__":
    main()
