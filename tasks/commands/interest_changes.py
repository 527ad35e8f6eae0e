"""`interests` and `contradictions` with what can be done about them: show, log, undo; show, resolve, reopen.

Without the name of one of these they list, so that `isotherm interests "sports on water"` asks a question.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.markup import escape
from typer.core import TyperGroup

from isotherm import storage
from isotherm.tasks import produce_interest
from isotherm.tasks.commands import interest
from isotherm.tasks.commands.interest import After, Agent, Before, Days, Limit, Tenant, bank_of, span_of
from isotherm.tasks.commands.output import JsonFlag, clip, errors_as_sentences, out, print_json, ready, table

_LIST = "list"
_NO_OPERATION = "by hand"


class ListsByDefault(TyperGroup):
    """Commands of which `list` is meant when none is named."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # noqa: ANN401 - of a private module of typer's
        """Put the name of the command in front where it is missing."""
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        parsed: list[str] = super().parse_args(ctx, args if named else [_LIST, *args])
        return parsed


interests = typer.Typer(cls=ListsByDefault, help="Show what the users of an agent care about; a question may follow.")
contradictions = typer.Typer(cls=ListsByDefault, help="Show what cannot both hold, and settle it.")
interests.command(_LIST)(interest.interests)
contradictions.command(_LIST)(interest.contradictions)

Offset = Annotated[int, typer.Option("--offset", min=0, help="How many of the newest to pass over.")]


@interests.command("show")
def show_interest(
    interest_id: Annotated[UUID, typer.Argument(metavar="ID", help="As `interests --json` says.")],
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one interest with all that was said for it, and how it came to be what it is."""
    with errors_as_sentences():
        opened, bank = storage.open(ready()), bank_of(agent, tenant)
        found = opened.interest.point(bank, interest_id)
        said = opened.interest.evidence(bank, [interest_id])[interest_id]
        changes = opened.interest.log(bank, point=interest_id, limit=100)
        if as_json:
            print_json({**interest.interest_json(found, said), "log": [_entry_json(one) for one in changes]})
            return
        out.print(f"[bold]{escape(found.name)}[/bold]  {found.kind.value}, {found.status.value}", soft_wrap=True)
        out.print(escape(found.summary), soft_wrap=True)
        for one in said:
            out.print(f"  {interest.quote(one)}", soft_wrap=True)
        _print_log(f"How {clip(found.name, 40)} changed", changes)


@interests.command("log")
def show_log(
    *, agent: Agent = "default", tenant: Tenant = None, limit: Limit = 50, offset: Offset = 0, as_json: JsonFlag = False
) -> None:
    """Show every change of an agent's interests, newest first; `undo` takes a merge or an archiving back."""
    with errors_as_sentences():
        changes = storage.open(ready()).interest.log(bank_of(agent, tenant), limit=limit, offset=offset)
        if as_json:
            print_json([_entry_json(one) for one in changes])
        elif changes:
            _print_log(f"Changes of the interests of {escape(agent)}", changes)
        else:
            out.print(f"no changes of the interests of {escape(agent)} are known")


@interests.command("themes")
def show_themes(
    *, agent: Agent = "default", tenant: Tenant = None, limit: Limit = 50, as_json: JsonFlag = False
) -> None:
    """Show what an agent's interests are about, grouped."""
    with errors_as_sentences():
        found = storage.open(ready()).interest.themes(bank_of(agent, tenant), limit=limit)
        if as_json:
            print_json(
                [
                    {"id": one.id, "name": one.name, "points": one.points, "said": one.said, "names": list(one.names)}
                    for one in found
                ]
            )
        elif found:
            rows = [
                (str(one.points), str(one.said), clip(one.name, 40), clip(", ".join(one.names), 80)) for one in found
            ]
            columns = ("points", "said", "theme", "foremost")
            out.print(table(f"Themes of {escape(agent)}", columns, rows, right=(0, 1)))
        else:
            out.print(f"no themes of {escape(agent)} yet; they are found in the background")


@interests.command("undo")
def undo(
    entry: Annotated[int, typer.Argument(help="Number of the entry in `interests log`.")],
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    as_json: JsonFlag = False,
) -> None:
    """Take back a merge or an archiving: what was said becomes an interest of its own again."""
    with errors_as_sentences():
        ready()
        done = produce_interest.undo_change(bank_of(agent, tenant), entry)
        if as_json:
            print_json({"interest": done.point, "made": done.made})
        else:
            out.print(f"undone: {done.point}" + (f" and {done.made} are two again" if done.made else " is as before"))


@interests.command("context")
def show_context(
    query: Annotated[str, typer.Argument(help="What the agent is about to answer.")],
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    budget: Annotated[int, typer.Option(min=0, help="Tokens that the block may take.")] = 400,
    limit: Limit = 8,
    after: After = None,
    before: Before = None,
    days: Days = None,
    as_json: JsonFlag = False,
) -> None:
    """Print what is known of a question as a block for an agent's prompt."""
    with errors_as_sentences():
        ready()
        span = span_of(after, before, days)
        found = produce_interest.interest_context(bank_of(agent, tenant), query, budget=budget, limit=limit, span=span)
        if as_json:
            print_json(asdict(found))
        else:
            typer.echo(found.text)


@contradictions.command("show")
def show_contradiction(
    contradiction_id: Annotated[UUID, typer.Argument(metavar="ID", help="As `contradictions --json` says.")],
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one contradiction with both sides."""
    with errors_as_sentences():
        found = storage.open(ready()).interest.contradiction(bank_of(agent, tenant), contradiction_id)
        if as_json:
            print_json(interest.contradiction_json(found))
        else:
            interest.show_contradictions(agent, [found])
            out.print(f"{found.status}; found {found.found_at:%Y-%m-%d}. {escape(found.description)}")


@contradictions.command("resolve")
def resolve(
    contradiction_id: Annotated[UUID, typer.Argument(metavar="ID", help="As `contradictions --json` says.")],
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    keep: Annotated[
        UUID | None, typer.Option(help="The interest that counts from now on; without it the one that counts now.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Settle a contradiction; both interests stay."""
    with errors_as_sentences():
        bank = bank_of(agent, tenant)
        found = storage.open(ready()).interest.contradiction(bank, contradiction_id)
        sides = {found.left.interest.id: "left", found.right.interest.id: "right"}
        if keep is not None and keep not in sides:
            raise typer.BadParameter(f"{keep} is no side of it", param_hint="--keep")
        side = None if keep is None else sides[keep]
        fresh = produce_interest.resolve_contradiction(bank, contradiction_id, side=side)
        _tell_settled(contradiction_id, "resolved", "resolved" if fresh else "resolved before", as_json=as_json)


@contradictions.command("reopen")
def reopen(
    contradiction_id: Annotated[UUID, typer.Argument(metavar="ID", help="As `contradictions --resolved --json` says.")],
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    as_json: JsonFlag = False,
) -> None:
    """Open a settled contradiction again."""
    with errors_as_sentences():
        ready()
        fresh = produce_interest.reopen_contradiction(bank_of(agent, tenant), contradiction_id)
        _tell_settled(contradiction_id, "open", "open again" if fresh else "open already", as_json=as_json)


def _tell_settled(contradiction_id: UUID, status: str, words: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"contradiction": contradiction_id, "status": status})
    else:
        out.print(words)


def _print_log(title: str, changes: list[produce_interest.LogEntry]) -> None:
    rows = [
        (
            str(one.id),
            f"{one.at:%Y-%m-%d %H:%M}",
            one.action,
            clip(one.name, 50),
            str(one.detail.get("rule") or one.detail.get("level") or ""),
            "yes" if one.undoable else "",
        )
        for one in changes
    ]
    out.print(table(title, ("entry", "when", "change", "interest", "why", "can be undone"), rows, right=(0,)))


def _entry_json(one: produce_interest.LogEntry) -> dict[str, Any]:
    return {
        "id": one.id,
        "at": one.at,
        "interest": one.point_id,
        "name": one.name,
        "action": one.action,
        "operation": one.operation_id or _NO_OPERATION,
        "detail": one.detail,
        "undoable": one.undoable,
    }
