"""`up`, `down`, `migrate`, `doctor`: servers and processes of this machine, and whether all is well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from rich.markup import escape

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import TransientError
from isotherm.storage import servers
from isotherm.storage.postgres import migrate as migrations
from isotherm.storage.postgres import operations, outbox
from isotherm.storage.postgres.pool import connection
from isotherm.storage.settings import Settings, settings
from isotherm.tasks import broker
from isotherm.tasks.commands.output import (
    Exit,
    JsonFlag,
    err,
    errors_as_sentences,
    out,
    print_json,
    span,
    table,
)
from isotherm.tasks.processes import Flower, Processes

# A due message this old means that no relay runs: beat or every maintenance worker is away.
_RELAY_LATE_S = 60.0
# Work that nobody took for this long is a fault even where a consumer exists.
_STUCK_S = 600.0


def start_servers(chosen: Settings) -> list[str]:
    """Start the embedded servers, if any is needed, and migrate; returns lines worth showing.

    Raises: UnavailableError and RejectedError with what is wrong.
    """
    lines: list[str] = []
    if servers.needs_embedded(chosen):
        embedded = servers.embedded(chosen)
        embedded.start()
        lines += embedded.notes
    lines += [f"migration {m.number:04} {m.name} applied" for m in migrations.migrate(servers.postgres_dsn(chosen))]
    return lines


def up(
    *,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Workers to run; 0: only the servers.")] = 2,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Processes of each worker.")] = 2,
    flower: Annotated[bool, typer.Option("--flower", help="Also run flower, on a free loopback port.")] = False,
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
        if flower:
            with err.status("starting flower"):
                show_flower(processes.start_flower())
        show_processes(chosen)


def show_flower(flower: Flower) -> None:
    """Say where flower is and how to get in."""
    out.print(f"flower: {flower.url}  user [bold]{flower.user}[/bold]  password [bold]{escape(flower.password)}[/bold]")


def show_processes(chosen: Settings) -> None:
    """Print a table of the servers and processes of this data folder."""
    rows = []
    if servers.needs_embedded(chosen):
        rows += [
            (s.name, _running(s.running), s.pid or "-", s.version or "-", escape(str(s.data_dir)))
            for s in servers.embedded(chosen).status()
        ]
    rows += [(p.name, _running(p.running), p.pid or "-", "-", escape(str(p.log))) for p in Processes(chosen).status()]
    out.print(table("Processes", ("name", "state", "pid", "version", "data or log"), rows, right=(2,)))


def _running(running: bool) -> str:  # noqa: FBT001 - the one thing it is about
    return "[green]running[/green]" if running else "[red]stopped[/red]"


def down() -> None:
    """Stop the processes and embedded servers of this data folder, and no others. Nothing is lost."""
    with errors_as_sentences():
        chosen = settings()
        with err.status("stopping"):
            stopped = Processes(chosen).stop()
            if servers.needs_embedded(chosen):
                embedded = servers.embedded(chosen)
                stopped += [s.name for s in embedded.status() if s.running]
                embedded.stop()
        out.print(f"stopped: {', '.join(stopped)}" if stopped else "nothing was running")


def migrate() -> None:
    """Bring the database to this version."""
    with errors_as_sentences():
        applied = migrations.migrate(servers.postgres_dsn(settings()))
        for migration in applied:
            out.print(f"applied {migration.number:04} {migration.name}")
        if not applied:
            out.print("the database is at this version already")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor looked at: what, whether it is well, and a sentence."""

    subject: str
    well: bool
    text: str


def doctor(*, as_json: JsonFlag = False) -> None:
    """Look at servers, queues and work, and say what is wrong. Exit code 4 when something is."""
    with errors_as_sentences():
        findings = examine(settings())
        ill = [f for f in findings if not f.well]
        if as_json:
            listed = [{"subject": f.subject, "well": f.well, "text": f.text} for f in findings]
            print_json({"well": not ill, "findings": listed})
        else:
            rows = [(f"[{_color(f)}]{'✓' if f.well else '✗'}[/]", f.subject, escape(f.text)) for f in findings]
            out.print(table("Doctor", ("", "what", "finding"), rows))
        if ill:
            raise SystemExit(int(Exit.UNHEALTHY))


def _color(finding: Finding) -> str:
    return "green" if finding.well else "red"


def examine(chosen: Settings) -> list[Finding]:
    """Look at everything once. What cannot be asked because a server is away is left out: the server is the finding."""
    faults = servers.check(chosen)
    findings = [Finding("servers", well=False, text=fault.text) for fault in faults]
    if not faults:
        findings.append(Finding("servers", well=True, text="PostgreSQL and Redis answer, fit and are migrated"))
    findings += _processes(chosen)
    try:
        servers.probe(chosen)
        storage.open(chosen)
        findings += _queues() + _work()
    except TransientError as error:
        if not faults:
            findings.append(Finding("work", well=False, text=str(error)))
    return findings


def _processes(chosen: Settings) -> list[Finding]:
    found = Processes(chosen).status()
    return [
        Finding(
            p.name, p.running, f"running, pid {p.pid}" if p.running else f"was started here and has ended; log: {p.log}"
        )
        for p in found
        if p.running or p.name != "flower"
    ]


def _queues() -> list[Finding]:
    with connection() as conn:
        backlog = {b.queue: b for b in operations.backlog(conn)}
    consumers = broker.consumers()
    findings = []
    for queue in stages.Queue:
        listening, work = consumers.get(queue.value, []), backlog.get(queue.value)
        waiting = f"{work.steps} steps wait, the oldest for {span(work.oldest_s)}" if work else "no work waits"
        if queue is stages.Queue.MAINTENANCE:
            waiting = "ticks of beat"
        if not listening:
            needed = work is not None or queue is not stages.Queue.GRAPH
            findings.append(Finding(f"queue {queue.value}", not needed, f"no consumer; {waiting}"))
            continue
        stuck = work is not None and work.oldest_s > _STUCK_S and not work.running
        findings.append(Finding(f"queue {queue.value}", not stuck, f"{len(listening)} consumers; {waiting}"))
    return findings


def _work() -> list[Finding]:
    with connection() as conn:
        messages, oldest = outbox.depth(conn)
        ended = dict.fromkeys(("failed", "dead", "partial"), 0)
        for _, name, count in operations.counts(conn):
            if name in ended:
                ended[name] += count
    late = oldest > _RELAY_LATE_S
    text = f"{messages} messages are due, the oldest for {span(oldest)}" if messages else "nothing is due"
    findings = [Finding("outbox", not late, text + ("; does beat run?" if late else ""))]
    bad = {state: count for state, count in ended.items() if count}
    listed = ", ".join(f"{count} {state}" for state, count in bad.items())
    text = (
        f"{listed}; see `isotherm ops list --state {next(iter(bad))}`" if bad else "none ended failed, dead or partial"
    )
    return [*findings, Finding("operations", not bad, text)]
