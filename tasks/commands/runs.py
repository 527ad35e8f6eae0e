"""`runs`: how far the reading of sessions is, stage by stage, what it cost, what failed, and how it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from time import sleep
from typing import Annotated, Any, TypeVar
from uuid import UUID

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.interest.budget import Budget, Spent
from isotherm.storage.postgres.interest_runs import FailedUnit, Run, StageRow
from isotherm.storage.postgres.interest_steps import ORDER
from isotherm.tasks import produce_interest, producers
from isotherm.tasks.commands.interest_changes import ListsByDefault
from isotherm.tasks.commands.ops import tell_retried
from isotherm.tasks.commands.output import (
    JsonFlag,
    age,
    clip,
    errors_as_sentences,
    out,
    print_json,
    ready,
    span,
    state,
    table,
)

T = TypeVar("T")

app = typer.Typer(cls=ListsByDefault, help="Show how far the reading of sessions is, and what it cost.")

RunId = Annotated[UUID, typer.Argument(metavar="ID", help="As `runs` lists it; the id of its operation.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until it ends or Ctrl-C.")]
Every = Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")]

_COST = frozenset({"model_calls", "input_tokens", "output_tokens", "model_ms"})


@app.command("list")
def list_runs(
    *,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Only this agent.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="The customer it belongs to.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="How many, newest first.")] = 20,
    watch: Watch = False,
    every: Every = 1.0,
    as_json: JsonFlag = False,
) -> None:
    """List runs, newest first: how far each is, and what it cost."""
    with errors_as_sentences():
        _check(watch, as_json)
        storage.open(ready())

        def look() -> tuple[list[Run], bool]:
            return produce_interest.runs(agent=agent, tenant=tenant, limit=limit), False

        if watch:
            _watch(look, runs_table, every)
        elif as_json:
            print_json([run_json(run) for run in look()[0]])
        else:
            out.print(runs_table(look()[0]))


@app.command("show")
def show_run(run_id: RunId, *, watch: Watch = False, every: Every = 1.0, as_json: JsonFlag = False) -> None:
    """Show one run: stages, units, tokens, cost and time, and the units that failed."""
    with errors_as_sentences():
        _check(watch, as_json)
        storage.open(ready())

        def look() -> tuple[tuple[Run, list[FailedUnit]], bool]:
            run, failed = produce_interest.run_of(run_id)
            return (run, failed), run.finished_at is not None

        if watch:
            _watch(look, lambda found: run_view(*found), every)
        elif as_json:
            (run, failed), _ = look()
            print_json({**run_json(run), "failed_units": [asdict(one) for one in failed]})
        else:
            out.print(run_view(*look()[0]))


@app.command("retry")
def retry_run(
    run_id: RunId,
    *,
    tokens: Annotated[int | None, typer.Option(min=0, help="Most tokens of the whole run, from now on.")] = None,
    money: Annotated[float | None, typer.Option(min=0, help="Most that it may cost as a whole, from now on.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run what failed of a run again, with a larger budget if one is named; what was answered is not asked again."""
    with errors_as_sentences():
        ready()
        if tokens is not None or money is not None:
            produce_interest.grant_budget(run_id, Budget(tokens, money))
        tell_retried(run_id, producers.retry(run_id), f"isotherm runs show {run_id}", as_json=as_json)


def _check(watch: bool, as_json: bool) -> None:  # noqa: FBT001 - flags of a command
    if watch and as_json:
        raise RejectedError("--watch is for people: leave out --json")


def _watch(look: Callable[[], tuple[T, bool]], view: Callable[[T], RenderableType], every: float) -> None:
    """Look until what is looked at has ended, or Ctrl-C."""
    with Live(console=out, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            found, ended = look()
            moment = Text(f"{datetime.now(UTC):%H:%M:%S} UTC" + ("" if ended else ", Ctrl-C ends"), style="dim")
            live.update(Group(view(found), moment), refresh=True)
            if ended:
                return
            try:
                sleep(every)
            except KeyboardInterrupt:
                return


def runs_table(runs: list[Run]) -> RenderableType:
    """Runs as a table with a mark for each stage."""
    if not runs:
        return "no runs are known; `isotherm ingest` reads sessions"
    rows = [
        (
            # Its id is for copying and never broken, so what else is told stands below it: both fit a narrow terminal.
            f"{run.id}\n[dim]{clip(f'{run.agent} {run.session or str()}', 36)}[/dim]",
            f"{state(run.state)}\n{_marks(run)}",
            *_cost_cells(run.spent),
            _took(run),
        )
        for run in runs
    ]
    columns = ("run", "stages", "calls", "tokens", "cost", "time")
    return table("Runs", columns, rows, right=(2, 3, 4, 5), whole=range(6))


def run_view(run: Run, failed: list[FailedUnit]) -> RenderableType:
    """One run as people look at it."""
    where = f"{escape(run.agent)} {escape(run.session or '')}".strip()
    parts: list[RenderableType] = [
        f"{run.kind}  {run.id}  {where}  {state(run.state)}  accepted {age(run.created_at)} ago"
    ]
    if run.finished_at is not None:
        parts.append(f"took {_took(run)}" + (f", {escape(run.error)}" if run.error else ""))
    budget = _budget(run)
    if budget != Budget():
        parts.append(f"budget: {_share(run.spent, budget)}")
    rows = [_stage_cells(stage) for stage in run.stages]
    columns = ("stage", "progress", "units", "failed", "found", "calls", "tokens", "cost", "time")
    parts.append(table("Stages", columns, rows, right=(2, 3, 5, 6, 7, 8), whole=(0, 1)))
    if failed:
        cells = [
            (one.stage, one.unit or "-", state(one.state), one.attempts, clip(one.error or one.reason or "", 80))
            for one in failed
        ]
        parts.append(table("Failed units", ("stage", "unit", "state", "attempts", "reason"), cells, right=(3,)))
        parts.append(f"`isotherm runs retry {run.id}` runs these again; --tokens and --money raise its budget")
    return Group(*parts)


def _stage_cells(row: StageRow) -> tuple[str, ...]:
    found = ", ".join(f"{n} {escape(name)}" for name, n in row.found.items() if n and name not in _COST)
    ended = f"{row.done + row.failed}/{row.units}"
    return (row.stage, _bar(row), ended, str(row.failed or ""), found, *_cost_cells(row.spent), span(row.seconds))


_BAR = 10


def _bar(row: StageRow) -> str:
    """Units of a stage, done and failed, as a bar."""
    if not row.units:
        return ""
    done, failed = (round(_BAR * n / row.units) for n in (row.done, row.failed))
    return f"[green]{'█' * done}[/green][red]{'█' * failed}[/red][dim]{'░' * (_BAR - done - failed)}[/dim]"


def _marks(run: Run) -> str:
    """A mark for each stage that a run has, and how much of the one it is in is done."""
    known = {row.stage: row for row in run.stages}
    names = ORDER if known.keys() <= set(ORDER) else tuple(known)
    marks, at = "", ""
    for name in names:
        row = known.get(name)
        mark, is_open = _mark(row)
        marks += mark
        if is_open and row is not None and not at:
            at = f" {name.removeprefix('interest.')} {row.done + row.failed}/{row.units}"
    return marks + ("" if run.finished_at else at)


def _mark(row: StageRow | None) -> tuple[str, bool]:
    if row is None or not row.units:
        return "[dim]·[/dim]", False
    if row.done + row.failed < row.units:
        return ("[cyan]▶[/cyan]" if row.running else "[dim]○[/dim]"), True
    return ("[yellow]●[/yellow]" if row.failed else "[green]●[/green]"), False


def _cost_cells(spent: Spent) -> tuple[str, str, str]:
    if not spent.calls and not spent.failures:
        return "", "", ""
    about = "~" if spent.estimated_tokens else ""
    return str(spent.calls), f"{about}{spent.tokens:,}", f"{spent.cost:.4f}" if spent.cost else ""


def _budget(run: Run) -> Budget:
    chosen = storage.open().settings
    return run.budget or Budget(chosen.run_tokens, chosen.run_money)


def _share(spent: Spent, budget: Budget) -> str:
    parts = [] if budget.tokens is None else [f"{spent.tokens:,} of {budget.tokens:,} tokens"]
    parts += [] if budget.money is None else [f"{spent.cost:.4f} of {budget.money:.4f}"]
    return ", ".join(parts)


def _took(run: Run) -> str:
    return span(((run.finished_at or datetime.now(UTC)) - run.created_at).total_seconds())


def run_json(run: Run) -> dict[str, Any]:
    """A run for programs."""
    budget = _budget(run)
    named = ("id", "kind", "state", "tenant", "agent", "session", "error", "created_at", "started_at", "finished_at")
    return {
        **{name: getattr(run, name) for name in named},
        "budget": {"tokens": budget.tokens, "money": budget.money},
        "spent": _spent_json(run.spent),
        "stages": [{**asdict(row), "spent": _spent_json(row.spent)} for row in run.stages],
    }


def _spent_json(spent: Spent) -> dict[str, Any]:
    return {**asdict(spent), "tokens": spent.tokens}
