"""`remember`, `recall`, `reconcile`, `restore`: tiered memory from the command line."""

from __future__ import annotations

import sys
import time as clock
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.markup import escape
from rich.padding import Padding

from isotherm import storage
from isotherm.pipeline.clean import aware
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.answers import Recall
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.learned import LearnedPoint
from isotherm.pipeline.tier.packing import Packed
from isotherm.pipeline.tier.ranking import ScoreParts
from isotherm.pipeline.tier.records import Tier
from isotherm.storage.postgres import namespaces
from isotherm.storage.postgres.operations import Operation
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import system
from isotherm.storage.redis.tail import TailRecord
from isotherm.tasks import producers
from isotherm.tasks.commands.inputs import text_or_input
from isotherm.tasks.commands.output import (
    Exit,
    JsonFlag,
    age,
    clip,
    counted,
    err,
    errors_as_sentences,
    out,
    print_json,
    ready,
    size,
    state,
    table,
)

Agent = Annotated[str, typer.Option("--agent", "-a", help="Whose memory.")]
Session = Annotated[str | None, typer.Option("--session", "-s", help="One session of it.")]
Tenant = Annotated[str | None, typer.Option("--tenant", "-t", help="The customer it belongs to.")]
ScopeName = Annotated[
    str | None, typer.Option("--scope", help="Its kind: session, long_term, audit or another.", show_default="session")
]
Run = Annotated[str | None, typer.Option("--run", help="One run of it.")]

_WAIT_S = 60.0
TIER_COLORS = {Tier.HOT: "red", Tier.WARM: "yellow", Tier.COLD: "blue"}
_AWAY = {
    "touches": "Redis is away",
    "vectors": "the embedder did not answer",
    "rerank": "the reranker did not answer",
    "interests": "interests are out of reach",
}


def named(agent: str, session: str | None, scope: str | None, run: str | None, tenant: str | None) -> Namespace:
    """The namespace that options name. Raises: RejectedError for a part that is blank."""
    return Namespace.of(agent, session, "session" if scope is None else scope, run=run, tenant=tenant)


def names_json(namespace: Namespace) -> dict[str, str | None]:
    """The names of a namespace for programs, under its tenant."""
    return {name: getattr(namespace, name) for name in ("agent", "session", "scope", "run")}


def wanted(agent: str, session: str | None, scope: str | None, run: str | None, tenant: str | None) -> list[Namespace]:
    """The namespace that options name, or all of the agent when they name none of its parts."""
    if names_one(session, scope, run):
        return [named(agent, session, scope, run, tenant)]
    with system(), connection() as conn:
        return [row.namespace for row in namespaces.listed(conn, tenant=tenant, agent=agent)]


def names_one(session: str | None, scope: str | None, run: str | None) -> bool:
    """Whether options name one namespace, and not all that an agent has."""
    return any(part is not None for part in (session, scope, run))


def remember(  # noqa: PLR0913 - one option for each choice of a caller
    content: Annotated[str, typer.Argument(help="The text; - reads standard input.")],
    *,
    agent: Agent = "default",
    session: Session = None,
    scope: ScopeName = None,
    run: Run = None,
    tenant: Tenant = None,
    role: Annotated[str | None, typer.Option(help="Who said it: user, assistant, tool.")] = None,
    key: Annotated[str | None, typer.Option(help="Makes the call safe to repeat.")] = None,
    time: Annotated[str | None, typer.Option(help="When it was said, ISO 8601 with an offset; default now.")] = None,
    importance: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    pin: Annotated[bool, typer.Option("--pin", help="Keep it out of cold.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Remember one text. It is durable when the command returns."""
    with errors_as_sentences():
        ready()
        accepted = producers.remember(
            named(agent, session, scope, run, tenant),
            text_or_input(content),
            role=role,
            key=key,
            time=_moment(time),
            importance=importance,
            pinned=pin,
        )
        if as_json:
            print_json({"operation": accepted.operation_id, "id": accepted.ids[0], "new": accepted.new})
        else:
            out.print(f"{'remembered' if accepted.new else 'known already'}: {escape(accepted.ids[0])}")


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        return aware(datetime.fromisoformat(text), "time")
    except ValueError:
        raise RejectedError("time: ISO 8601 with an offset is needed, such as 2026-10-12T09:30:00+02:00") from None


def recall(  # noqa: PLR0913 - one option for each choice of a caller
    query: Annotated[str, typer.Argument(help="What to look for; without it, the newest records in order.")] = "",
    *,
    agent: Agent = "default",
    session: Session = None,
    scope: ScopeName = None,
    run: Run = None,
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="How many records.")] = 10,
    touch: Annotated[bool, typer.Option(help="Count this as an access of what it finds.")] = True,
    context: Annotated[
        int | None, typer.Option("--context", min=1, help="One text for a prompt instead, of so many tokens at most.")
    ] = None,
    window: Annotated[
        int, typer.Option("--window", min=0, max=20, help="Turns before and after each hit in that text.")
    ] = 1,
    graph: Annotated[
        bool, typer.Option("--graph", help="Walk from what is found, over names and what was learned.")
    ] = False,
    learned: Annotated[
        bool | None,
        typer.Option("--learned/--no-learned", help="Points that match bring their records; --context does so anyway."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Recall what matters for a query, over all that an agent remembers or one namespace; the answer is in order of time."""
    with errors_as_sentences():
        opened = storage.open(ready())
        namespace = named(agent, session, scope, run, tenant)
        one = names_one(session, scope, run)
        if not query.strip() and one:
            newest = opened.tier.tail(namespace, limit)
            print_json([_tail_json(r) for r in newest]) if as_json else out.print(_tail_table(newest))
            return
        asked = namespace if one else namespace.bank
        if context is not None:
            packed = producers.recall_context(
                asked,
                query,
                tokens=context,
                window=window,
                limit=limit,
                touch=touch,
                graph=graph,
                learned=learned is not False,
            )
            print_json(_packed_json(packed)) if as_json else show_packed(packed)
            return
        answer = producers.recall(
            asked, query, budget=RecallBudget(total=limit), touch=touch, graph=graph, learned=learned is True
        )
        if as_json:
            print_json(recall_json(answer))
        else:
            show_recall(query, answer)


def recall_json(answer: Recall) -> dict[str, Any]:
    """An answer for programs: whole texts, and every part of each score."""
    return {
        "degraded": list(answer.degraded),
        "truncated": answer.truncated,
        "walked": None if answer.walked is None else asdict(answer.walked),
        "records": [
            {
                "id": item.record.id,
                "session": item.record.namespace.session,
                "role": item.record.metadata.get("role") or (item.record.categories or (None,))[0],
                "tier": item.record.tier.value,
                "created_at": item.record.created_at,
                "text": item.record.text,
                "whole": item.record.content is not None,
                "score": {
                    "total": item.score.total,
                    "semantic": item.score.semantic,
                    "words": item.score.overlap,
                    "cosine": item.score.cosine,
                    "recency": item.score.recency,
                    "importance": item.score.importance,
                    "shares": item.score.shares,
                    "renewal": item.score.renewal,
                    "relevance": item.score.relevance,
                },
                "renewed_by": item.renewed_by,
                "found_by": item.legs,
            }
            for item in answer.items
        ],
        "learned": _points_json(answer.learned),
    }


def _points_json(points: Sequence[LearnedPoint]) -> list[dict[str, Any]]:
    return [
        {"id": p.id, "name": p.name, "summary": p.summary, "likeness": p.likeness, "records": list(p.records)}
        for p in points
    ]


def _packed_json(packed: Packed) -> dict[str, Any]:
    return {
        "text": packed.text,
        "tokens": packed.tokens,
        "records": [
            {"id": r.id, "session": r.namespace.session, "created_at": r.created_at, "found": r.id in packed.hits}
            for r in packed.records
        ],
        "learned": _points_json(packed.learned),
        "left_out": packed.left_out,
        "degraded": packed.degraded,
        "truncated": packed.truncated,
    }


def show_packed(packed: Packed) -> None:
    """Print a text for a prompt as it is; what it lacks goes to standard error."""
    if packed.text:
        sys.stdout.write(f"{packed.text}\n")
    if packed.left_out:
        err.print(f"[yellow]{packed.left_out} more had no room[/yellow]")
    for part in packed.degraded:
        err.print(f"[yellow]without {part}: {_AWAY[part]}[/yellow]")


def show_recall(query: str, answer: Recall, *, width: int = 240) -> None:
    """Print an answer in order of time, each record with its score and the parts of it, the best one marked.

    Args: width: characters shown of each record.
    """
    out.print(f"\n[bold]{clip(query, 120)}[/bold]")
    best = max((item.score.total for item in answer.items), default=0.0)
    for item in answer.items:
        parts = item.score
        mark = "[bold green]►[/bold green]" if parts.total == best else " "
        out.print(
            f"{mark} {item.record.created_at:%Y-%m-%d %H:%M}  {tier_name(item.record.tier):<4}  "
            f"{clip(item.record.namespace.session or '-', 30)}  [bold]{parts.total:.3f}[/bold]  "
            f"[dim]{_likeness(parts)}, recency {parts.recency:.2f}, importance {parts.importance:.2f}[/dim]",
            soft_wrap=True,
            highlight=False,
        )
        out.print(Padding(clip(item.record.text, width), (0, 0, 0, 4)), highlight=False)
        if item.renewed_by is not None:
            out.print(f"    [dim]said anew in {clip(item.renewed_by, 60)}[/dim]", highlight=False)
    for point in answer.learned:
        out.print(f"  [dim]learned: {clip(point.name, 100)}[/dim]", highlight=False)
    if not answer.items:
        out.print("  nothing is remembered here")
    if answer.walked is not None:
        told = answer.walked
        more = ", as far as a limit let it" if told.truncated else ""
        out.print(f"  [dim]walked over {told.edges} edges of names and what was learned{more}[/dim]")
    for part in answer.degraded:
        err.print(f"[yellow]without {part}: {_AWAY[part]}[/yellow]")
    if answer.truncated:
        err.print("[yellow]truncated: many records are not indexed yet, some may be missing[/yellow]")


def _likeness(parts: ScoreParts) -> str:
    """How a record is like the query, by its words and by what it is about."""
    meaning = "" if parts.cosine is None else f", meaning {parts.cosine:.2f}"
    return f"words {parts.overlap:.2f}{meaning}"


def tier_name(tier: Tier) -> str:
    """A tier in its color."""
    return f"[{TIER_COLORS[tier]}]{tier.value}[/{TIER_COLORS[tier]}]"


def _tail_json(record: TailRecord) -> dict[str, Any]:
    return {"id": record.id, "role": record.role, "created_at": record.created_at, "text": record.content}


def _tail_table(newest: list[TailRecord]) -> Any:  # noqa: ANN401 - a rich table
    rows = [(r.created_at.strftime("%Y-%m-%d %H:%M"), escape(r.role or "-"), clip(r.content or "")) for r in newest]
    return table("Newest", ("when", "role", "text"), rows)


def reconcile(
    *,
    agent: Agent = "default",
    session: Session = None,
    scope: ScopeName = None,
    run: Run = None,
    tenant: Tenant = None,
    as_json: JsonFlag = False,
) -> None:
    """Run one migration pass over all that an agent remembers, or over one namespace, and report what moved."""
    with errors_as_sentences():
        storage.open(ready())
        ended = [wait_for(producers.reconcile(n).operation_id) for n in wanted(agent, session, scope, run, tenant)]
        moved = {
            name: sum(int((o.result or {}).get(name, 0)) for o in ended)
            for name in ("promoted", "demoted", "evicted", "set_aside", "unfinished")
        }
        if as_json:
            print_json({"namespaces": len(ended), **moved})
        else:
            out.print(
                f"{counted(len(ended), 'namespace')}: "
                + ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in moved.items())
            )
        end_with(ended)


def restore(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of records.")],
    *,
    agent: Agent = "default",
    session: Session = None,
    scope: ScopeName = None,
    run: Run = None,
    tenant: Tenant = None,
    as_json: JsonFlag = False,
) -> None:
    """Bring cold records back to warm, byte for byte."""
    with errors_as_sentences():
        opened = storage.open(ready())
        namespace = named(agent, session, scope, run, tenant)
        accepted = producers.restore(namespace, ids)
        ended = wait_for(accepted.operation_id)
        records = [opened.tier.get(namespace, record_id) for record_id in accepted.ids]
        if as_json:
            print_json(
                {
                    "operation": ended.id,
                    "state": ended.state,
                    "records": [{"id": r.id, "tier": r.tier.value, "bytes": r.size_bytes} for r in records],
                }
            )
        else:
            rows = [
                (escape(r.id), tier_name(r.tier), size(r.size_bytes), age(r.moved_at), clip(r.text)) for r in records
            ]
            out.print(
                table(f"Restore: {state(ended.state)}", ("id", "tier", "size", "moved", "text"), rows, right=(2,))
            )
        end_with([ended])


def wait_for(operation_id: UUID, seconds: float = _WAIT_S) -> Operation:
    """Wait until an operation is final, or until `seconds` are over; returns it as it is then."""
    until = clock.monotonic() + seconds
    while not (found := producers.operation(operation_id)).final and clock.monotonic() < until:
        clock.sleep(0.05)
    return found


def end_with(ended: list[Operation]) -> None:
    """End with the exit code of operations that were waited for, when one of them is not done."""
    if unfinished := [o for o in ended if not o.final]:
        err.print(
            f"[yellow]{counted(len(unfinished), 'operation')} still not ended: does a worker run? see `isotherm doctor`[/yellow]"
        )
        raise SystemExit(int(Exit.UNAVAILABLE))
    if bad := [o for o in ended if o.state != "done"]:
        err.print(
            f"[red]operation {bad[0].id} ended {bad[0].state}[/red]: {escape(bad[0].error or '')}", soft_wrap=True
        )
        raise SystemExit(int(Exit.UNHEALTHY))
