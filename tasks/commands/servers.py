"""`up`, `down`, `migrate`: servers and processes of this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

from isotherm.storage import servers
from isotherm.storage.postgres import migrate as migrations
from isotherm.storage.settings import Settings, settings
from isotherm.tasks.commands.output import JsonFlag, err, errors_as_sentences, out, print_json, table
from isotherm.tasks.processes import Flower, Processes


def start_servers(chosen: Settings) -> list[str]:
    """Start the embedded servers, if any is needed, and migrate; returns lines worth showing.

    Raises: UnavailableError and RejectedError with what is wrong.
    """
    lines: list[str] = []
    if servers.needs_embedded(chosen):
        embedded = servers.embedded(chosen)
        embedded.start()
        lines += embedded.notes
    applied = migrations.migrate(servers.postgres_dsn(chosen), rls=chosen.rls)
    lines += [f"migration {m.number:04} {m.name} applied" for m in applied]
    return lines


def up(
    *,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Workers to run; 0: only the servers.")] = 2,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Processes of each worker.")] = 2,
    flower: Annotated[bool, typer.Option("--flower", help="Also run flower, on a free loopback port.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Start what this machine needs: embedded servers, migrations, workers and beat. Running twice changes nothing."""
    with errors_as_sentences():
        chosen = settings()
        with err.status("starting the servers"):
            lines = start_servers(chosen)
        for line in lines:
            err.print(f"[dim]{escape(line)}[/dim]", soft_wrap=True)
        processes = Processes(chosen)
        if workers:
            with err.status("starting workers and beat"):
                processes.start_beat()
                processes.start_workers(workers, concurrency)
        entry = None
        if flower:
            with err.status("starting flower"):
                entry = processes.start_flower()
        if as_json:
            print_json({"processes": _processes(chosen), "flower": None if entry is None else asdict(entry)})
            return
        if entry is not None:
            show_flower(entry)
        show_processes(chosen)


def show_flower(flower: Flower) -> None:
    """Say where flower is and how to get in."""
    out.print(f"flower: {flower.url}  user [bold]{flower.user}[/bold]  password [bold]{escape(flower.password)}[/bold]")


def show_processes(chosen: Settings) -> None:
    """Print a table of the servers and processes of this data folder."""
    rows = [
        (each["name"], _running(each["running"]), each["pid"] or "-", each["version"] or "-", escape(each["path"]))
        for each in _processes(chosen)
    ]
    out.print(table("Processes", ("name", "state", "pid", "version", "data or log"), rows, right=(2,)))


def _processes(chosen: Settings) -> list[dict[str, Any]]:
    """Servers and processes of a data folder; `path` is where the data are, or the log."""
    found: list[dict[str, Any]] = []
    if servers.needs_embedded(chosen):
        found += [
            {"name": s.name, "running": s.running, "pid": s.pid, "version": s.version, "path": str(s.data_dir)}
            for s in servers.embedded(chosen).status()
        ]
    found += [
        {"name": p.name, "running": p.running, "pid": p.pid, "version": None, "path": str(p.log)}
        for p in Processes(chosen).status()
    ]
    return found


def _running(running: bool) -> str:  # noqa: FBT001 - the one thing it is about
    return "[green]running[/green]" if running else "[red]stopped[/red]"


def down(*, as_json: JsonFlag = False) -> None:
    """Stop the processes and embedded servers of this data folder, and no others. Nothing is lost."""
    with errors_as_sentences():
        chosen = settings()
        with err.status("stopping"):
            stopped = Processes(chosen).stop()
            if servers.needs_embedded(chosen):
                embedded = servers.embedded(chosen)
                stopped += [s.name for s in embedded.status() if s.running]
                embedded.stop()
        if as_json:
            print_json({"stopped": stopped})
            return
        out.print(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


def migrate(*, as_json: JsonFlag = False) -> None:
    """Bring the database to this version."""
    with errors_as_sentences():
        applied = migrations.migrate(servers.postgres_dsn(settings()), rls=settings().rls)
        if as_json:
            print_json({"applied": [migration.number for migration in applied]})
            return
        for migration in applied:
            out.print(f"applied {migration.number:04} {migration.name}")
        if not applied:
            out.print("the database is at this version already")
        if settings().rls:
            out.print("row-level security is on")
