"""`tiers aside`: records that passes leave alone, why and until when; and how to have them tried again."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape

from isotherm import storage
from isotherm.storage.postgres.tier_held import SetAside
from isotherm.tasks import producers
from isotherm.tasks.commands.memory import Tenant, names_json, tier_name
from isotherm.tasks.commands.output import (
    JsonFlag,
    clip,
    counted,
    errors_as_sentences,
    out,
    print_json,
    ready,
    span,
    table,
)


def aside(
    *,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Only this agent.")] = None,
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, the longest waiting first.")] = 100,
    again: Annotated[
        bool, typer.Option("--again", help="Let the next pass try them all now, but for those whose body is lost.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show the records that passes leave alone: why, how often they failed, and until when."""
    with errors_as_sentences():
        storage.open(ready())
        if again:
            freed = producers.release(tenant, agent)
            if as_json:
                print_json({"again": freed})
            else:
                out.print(f"{counted(freed, 'record')} will be tried again")
            return
        found = producers.set_aside(tenant, agent, limit)
        if as_json:
            print_json([_json(each) for each in found])
        else:
            _show(found, limit)


def _json(one: SetAside) -> dict[str, Any]:
    return {
        "tenant": one.namespace.tenant,
        **names_json(one.namespace),
        "id": one.id,
        "tier": one.tier.value,
        "reason": one.reason,
        "attempts": one.attempts,
        "since": one.since,
        "held_until": one.held_until,
        "quarantined": one.quarantined,
    }


def _show(found: list[SetAside], limit: int) -> None:
    if not found:
        out.print("nothing is set aside")
        return
    rows = [
        (
            escape(one.id),
            escape(one.namespace.agent),
            escape(one.namespace.session or "-"),
            escape(one.namespace.scope + (f" {one.namespace.run}" if one.namespace.run else "")),
            tier_name(one.tier),
            clip(one.reason),
            one.attempts,
            _until(one.held_until),
        )
        for one in found
    ]
    columns = ("id", "agent", "session", "scope", "tier", "reason", "tries", "held")
    out.print(table("Records set aside", columns, rows, right=(6,), whole=(4,)))
    if len(found) == limit:
        out.print(f"these are the first {limit}; --limit shows more")


def _until(moment: datetime | None) -> str:
    if moment is None:
        return "until it is restored"
    left = (moment - datetime.now(UTC)).total_seconds()
    return "no longer" if left <= 0 else f"for {span(left)}"
