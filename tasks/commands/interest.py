"""`interests`, `contradictions`: what an agent's users care about, and what of it cannot both hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.markup import escape
from rich.table import Table

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.interest.candidates import Status
from isotherm.pipeline.interest.ranking import Score, Span
from isotherm.storage.interest import Contradiction, Side
from isotherm.storage.postgres.interest_read import Evidence, Interest
from isotherm.tasks import produce_interest
from isotherm.tasks.commands.output import JsonFlag, clip, err, errors_as_sentences, out, print_json, ready, table

Agent = Annotated[str, typer.Option("--agent", "-a", help="Whose interests.")]
Tenant = Annotated[str | None, typer.Option("--tenant", "-t", help="The customer it belongs to.")]
After = Annotated[datetime | None, typer.Option(help="Only what was said from then on.")]
Before = Annotated[datetime | None, typer.Option(help="Only what was said before then.")]
Days = Annotated[float | None, typer.Option(help="Only what was said in so many days until now.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="How many.")]

_SHOWN_EVIDENCE = 4
_GONE = "[dim]the message is gone[/dim]"


def interests(
    query: Annotated[str, typer.Argument(help="What to look for; without it, all, by sessions and importance.")] = "",
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    limit: Limit = 50,
    after: After = None,
    before: Before = None,
    days: Days = None,
    evidence: Annotated[bool, typer.Option(help="Show what was said for each.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Show what the users of an agent care about, each with what was said for it, in which session and when.

    A span of time goes with a question.
    """
    with errors_as_sentences():
        opened = storage.open(ready())
        bank = bank_of(agent, tenant)
        found, scores = _found(bank, query, limit, span_of(after, before, days))
        said = opened.interest.evidence(bank, [one.id for one in found]) if evidence or as_json else {}
        if as_json:
            print_json([interest_json(one, said.get(one.id, []), scores.get(one.id)) for one in found])
        else:
            show_interests(agent, found, said, scores)


def bank_of(agent: str, tenant: str | None) -> Bank:
    """The bank of an agent."""
    return Namespace.of(agent, tenant=tenant).bank


def span_of(after: datetime | None, before: datetime | None, days: float | None) -> Span:
    """The span that options name; times without a zone are UTC."""
    first, end = (at if at is None or at.tzinfo else at.replace(tzinfo=UTC) for at in (after, before))
    return Span(first, end, days)


def _found(bank: Bank, query: str, limit: int, span: Span) -> tuple[list[Interest], dict[UUID, Score]]:
    if not query.strip():
        if span != Span():
            raise RejectedError("--after, --before, --days: they go with a question")
        return produce_interest.interests(bank, limit=limit), {}
    answer = produce_interest.recall_interests(bank, query, limit=limit, span=span)
    if answer.degraded:
        err.print("[yellow]the embedder did not answer: found by words alone[/yellow]")
    return [item.interest for item in answer.items], {item.interest.id: item.score for item in answer.items}


def show_interests(
    agent: str, found: Sequence[Interest], said: Mapping[UUID, Sequence[Evidence]], scores: Mapping[UUID, Score]
) -> None:
    """Print interests as a table, below each what was said for it."""
    if found:
        out.print(_interest_table(agent, found, said, scores))
    else:
        out.print(f"no interests of {escape(agent)} are known; `isotherm ingest` reads sessions for them")


def _interest_table(
    agent: str, found: Sequence[Interest], said: Mapping[UUID, Sequence[Evidence]], scores: Mapping[UUID, Score]
) -> Table:
    now = datetime.now(UTC)
    rows: list[tuple[Any, ...]] = []
    for one in found:
        marks = ", ".join(filter(None, [_status(one), one.freshness(now).value]))
        score = f"{scores[one.id].total:.2f}" if one.id in scores else ""
        rows.append((one.sessions, f"[bold]{clip(one.name, 80)}[/bold]", one.kind.value, marks, score))
        quotes = list(said.get(one.id, ()))
        rows += [("", f"  {quote(e)}", "", "", "") for e in quotes[-_SHOWN_EVIDENCE:]]
        if len(quotes) > _SHOWN_EVIDENCE:
            rows.append(("", f"  [dim]and {len(quotes) - _SHOWN_EVIDENCE} earlier[/dim]", "", "", ""))
    columns = ("sessions", "interest, and what was said for it", "kind", "state", "score")
    shown = len(columns) if scores else len(columns) - 1
    rows = [row[:shown] for row in rows]
    return table(f"What users of {escape(agent)} care about", columns[:shown], rows, right=(0, 4))


def _status(one: Interest) -> str:
    if one.status is Status.PENDING_REVIEW:
        return "[yellow]waits for review[/yellow]"
    return "[yellow]no longer current[/yellow]" if one.contested else ""


def quote(said: Evidence) -> str:
    """A statement as it is shown, with its session and day."""
    words = _GONE if said.quote is None else f"\u201c{clip(said.quote, 100)}\u201d"
    return f"{words} [dim]{escape(said.session or '')} {said.at:%Y-%m-%d}[/dim]"


def contradictions(
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    limit: Limit = 50,
    resolved: Annotated[bool, typer.Option("--resolved", help="Also those that are resolved.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show what cannot both hold, with both sides as they were said, and the side that counts now."""
    with errors_as_sentences():
        storage.open(ready())
        found = produce_interest.contradictions(bank_of(agent, tenant), resolved=resolved, limit=limit)
        if as_json:
            print_json([contradiction_json(one) for one in found])
        else:
            show_contradictions(agent, found)


def show_contradictions(agent: str, found: Sequence[Contradiction]) -> None:
    """Print contradictions as a table, the older side first."""
    if found:
        out.print(_contradiction_table(agent, found))
    else:
        out.print(f"no contradictions of {escape(agent)} are known")


def _contradiction_table(agent: str, found: Sequence[Contradiction]) -> Table:
    rows: list[tuple[str, ...]] = []
    for one in found:
        sides = sorted((one.left, one.right), key=lambda side: side.interest.last_seen_at)
        for n, side in enumerate(sides):
            now = f"[green]current[/green], {one.because}" if side is one.current else ""
            state = now or ("[dim]undecided[/dim]" if one.current is None else "")
            words = _GONE if side.evidence is None else quote(side.evidence)
            rows.append((clip(side.interest.name, 50), words, state, one.rule if n == 0 else ""))
        rows.append(("", "", "", ""))
    columns = ("interest", "said", "which counts", "rule")
    return table(f"What cannot both hold for {escape(agent)}", columns, rows[:-1], whole=())


def contradiction_json(one: Contradiction) -> dict[str, Any]:
    """A contradiction for programs."""
    current = one.current
    return {
        "id": one.id,
        "rule": one.rule,
        "description": one.description,
        "status": one.status,
        "found_at": one.found_at,
        "left": _side_json(one.left),
        "right": _side_json(one.right),
        "current": None if current is None else current.interest.id,
        "because": one.because,
    }


def _side_json(side: Side) -> dict[str, Any]:
    said = None if side.evidence is None else _evidence_json(side.evidence)
    return {"id": side.interest.id, "name": side.interest.name, "words": side.words, "said": said}


def interest_json(one: Interest, said: Sequence[Evidence], score: Score | None = None) -> dict[str, Any]:
    """An interest for programs."""
    parts = ("similarity", "freshness", "sessions", "reliability", "total")
    return {
        "id": one.id,
        "name": one.name,
        "summary": one.summary,
        "keywords": list(one.keywords),
        "kind": one.kind,
        "status": one.status,
        "subjective": one.subjective,
        "importance": one.importance,
        "confidence": one.confidence,
        "reliability": one.reliability,
        "contested": one.contested,
        "freshness": one.freshness(datetime.now(UTC)),
        "sessions": one.sessions,
        "first_seen_at": one.first_seen_at,
        "last_seen_at": one.last_seen_at,
        "score": None if score is None else {part: round(getattr(score, part), 4) for part in parts},
        "evidence": [_evidence_json(e) for e in said],
    }


def _evidence_json(said: Evidence) -> dict[str, Any]:
    return {
        "session": said.session,
        "record": said.record_id,
        "turn": said.turn,
        "at": said.at,
        "quote": said.quote,
    }
