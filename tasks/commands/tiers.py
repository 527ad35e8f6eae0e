"""`tiers`: how much is hot, warm and cold, watched while it changes; what the next pass would move, and what not."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from time import sleep
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.plan import MigrationPlan, Move
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import namespaces, tier_plan, tier_recall
from isotherm.storage.postgres.namespaces import Scope
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import reaching, system
from isotherm.tasks import producers
from isotherm.tasks.commands.aside import aside
from isotherm.tasks.commands.memory import (
    TIER_COLORS,
    Agent,
    Run,
    ScopeName,
    Session,
    Tenant,
    names_json,
    tier_name,
    wanted,
)
from isotherm.tasks.commands.output import (
    JsonFlag,
    age,
    counted,
    errors_as_sentences,
    out,
    print_json,
    ready,
    size,
    span,
    table,
)

app = typer.Typer(invoke_without_command=True)
app.command("aside")(aside)

_BAR = range(4, 17)  # cells of a bar, by how wide the terminal is
_BESIDE_BAR = 76
_SHOWN = 40


@app.callback()
def tiers(
    ctx: typer.Context,
    *,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Only this agent.")] = None,
    tenant: Tenant = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C.")] = False,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    as_json: JsonFlag = False,
) -> None:
    """Show how much is hot, warm and cold, by agent and session, and when the next pass is due."""
    if ctx.invoked_subcommand is not None:
        return
    with errors_as_sentences():
        if watch and as_json:
            raise RejectedError("--watch is for people: leave out --json")
        storage.open(ready())
        if watch:
            _watch(agent, tenant, every)
        elif as_json:
            print_json(depth(agent, tenant))
        else:
            show_depth("Tiers", depth(agent, tenant))


def _watch(agent: str | None, tenant: str | None, every: float) -> None:
    with Live(console=out, auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            moment = Text(f"{datetime.now(UTC):%H:%M:%S} UTC, Ctrl-C ends", style="dim")
            live.update(Group(depth_table("Tiers", depth(agent, tenant)), moment), refresh=True)
            try:
                sleep(every)
            except KeyboardInterrupt:
                return


def depth(agent: str | None, tenant: str | None) -> list[dict[str, Any]]:
    """Records and bytes by tier of every namespace of a tenant, or of one of its agents."""
    with system(), connection() as conn:
        listed = {row.place.namespace_id: row for row in namespaces.listed(conn, tenant=tenant, agent=agent)}
        rows = tier_plan.depth(conn, tenant=tenant, agent=agent)
    found: dict[int, dict[str, Any]] = {}
    for namespace_id, tier, records, content_bytes, oldest in rows:
        row = listed.get(namespace_id)
        if row is None:
            continue  # made, or forgotten, between the two looks
        one = found.setdefault(
            namespace_id,
            {**names_json(row.namespace), "due_at": row.due_at, "tiers": {}},
        )
        one["tiers"][tier.value] = {"records": records, "bytes": content_bytes, "oldest_access": oldest}
    return [found[i] for i in listed if i in found]


def show_depth(title: str, depths: list[dict[str, Any]]) -> None:
    """Print depths as a table with a bar for each namespace."""
    out.print(depth_table(title, depths))


def depth_table(title: str, depths: list[dict[str, Any]]) -> Table:
    """Depths as a table: records by tier, bytes of their texts, when a pass is due, the oldest access, and a bar."""
    widest = min(max(out.width - _BESIDE_BAR, _BAR[0]), _BAR[-1])
    most = max((sum(t["records"] for t in d["tiers"].values()) for d in depths), default=1)
    made = table(
        title,
        ("agent", "session", "scope", "hot", "warm", "cold", "text", "due", "oldest", ""),
        [],
        right=(3, 4, 5, 6),
        whole=range(3, 10),
    )
    totals, all_bytes = [0, 0, 0], 0
    for d in depths:
        counts = [d["tiers"].get(tier.value, {}).get("records", 0) for tier in Tier]
        totals = [total + count for total, count in zip(totals, counts, strict=True)]
        text_bytes = sum(t["bytes"] for t in d["tiers"].values())
        all_bytes += text_bytes
        oldest = min(t["oldest_access"] for t in d["tiers"].values())
        cells = (
            escape(d["agent"]),
            _owner(d["session"], d["run"]),
            escape(d["scope"]),
            *map(str, counts),
            size(text_bytes),
            _due(d["due_at"]),
        )
        made.add_row(*cells, age(oldest), _bar(counts, most, widest))
    made.add_section()
    made.add_row("all", "", "", *map(str, totals), size(all_bytes), "", "", _bar(totals, max(sum(totals), 1), widest))
    return made


def _owner(session: str | None, run: str | None) -> str:
    """A session, and the run of it where there is one."""
    return escape(session or "-") + (f" / {escape(run)}" if run is not None else "")


def _due(moment: datetime | None) -> str:
    if moment is None:
        return "-"
    left = (moment - datetime.now(UTC)).total_seconds()
    return "now" if left <= 0 else f"in {span(left)}"


def _bar(counts: list[int], most: int, widest: int) -> Text:
    bar = Text()
    for tier, count in zip(Tier, counts, strict=True):
        cells = round(widest * count / most) or (1 if count else 0)
        bar.append("█" * cells, style=TIER_COLORS[tier])
    return bar


@app.command("plan")
def plan(
    *,
    agent: Agent = "default",
    session: Session = None,
    scope: ScopeName = None,
    run: Run = None,
    tenant: Tenant = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what the next pass over all that an agent remembers, or over one namespace, would move. Nothing is moved."""
    with errors_as_sentences():
        storage.open(ready())
        over = producers.plan_for_quota(tenant)
        found = [_planned(namespace, over) for namespace in wanted(agent, session, scope, run, tenant)]
        if as_json:
            print_json([_plan_json(each) for each in found])
        else:
            _show_plan(found)


@dataclass(frozen=True, slots=True)
class _Planned:
    """What passes would move in a namespace, each record with its id."""

    namespace: Namespace
    moves: list[tuple[Move, str]]
    truncated: bool
    held_until: datetime | None


def _planned(namespace: Namespace, over: MigrationPlan) -> _Planned:
    """The moves of a pass over a namespace, then those of it that only the quota of its tenant asks for.

    Args: over: the plan for that quota. Records that are gone meanwhile are left out.
    """
    own = producers.plan(namespace)
    keys = {move.key for move in own.moves}
    moves = [*own.moves, *(move for move in over.moves if move.key not in keys)]
    with reaching(namespace), connection() as conn:
        records = tier_recall.records(conn, [m.key for m in moves], Scope(namespace=namespace), datetime.now(UTC))
    there = [(move, records[move.key].id) for move in moves if move.key in records]
    return _Planned(namespace, there, own.truncated or over.truncated, own.held_until)


def _target(move: Move) -> str:
    return "evicted" if move.target is None else move.target.value


def _plan_json(found: _Planned) -> dict[str, Any]:
    return {
        **names_json(found.namespace),
        "truncated": found.truncated,
        "held_until": found.held_until,
        "moves": [
            {"id": record_id, "from": m.source.value, "to": _target(m), "reason": m.reason.value}
            for m, record_id in found.moves
        ],
    }


def _show_plan(planned: list[_Planned]) -> None:
    found = [(each.namespace, *move) for each in planned for move in each.moves]
    _show_moves(found) if found else out.print("nothing is due")
    if more := sum(each.truncated for each in planned):
        out.print(f"in {counted(more, 'namespace')} more is due than one pass moves: the next ones do the rest")
    if held := [each.held_until for each in planned if each.held_until is not None]:
        out.print(f"a cool-down holds some back, the first until {min(held):%Y-%m-%d %H:%M} UTC")


def _show_moves(found: list[tuple[Namespace, Move, str]]) -> None:
    rows = [
        (
            escape(record_id),
            _owner(namespace.session, namespace.run),
            escape(namespace.scope),
            tier_name(move.source),
            "evicted" if move.target is None else tier_name(move.target),
            move.reason.value,
        )
        for namespace, move, record_id in found[:_SHOWN]
    ]
    out.print(table("What the next pass moves", ("id", "session", "scope", "from", "to", "reason"), rows))
    sums = Counter(f"{m.source.value} → {_target(m)} ({m.reason.value})" for _, m, _ in found)
    out.print(f"{len(found)} in all: " + ", ".join(f"{n} {kind}" for kind, n in sorted(sums.items())))
