"""`get`, `update`, `pin`, `unpin`, `explain`: single records from the command line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.tier.records import Record
from isotherm.storage.explain import Explanation, Rating
from isotherm.storage.postgres.tier_edit import Pinned
from isotherm.tasks import producers
from isotherm.tasks.commands.inputs import json_of, text_or_input
from isotherm.tasks.commands.memory import (
    Agent,
    Run,
    ScopeName,
    Session,
    Tenant,
    end_with,
    named,
    names_json,
    tier_name,
    wait_for,
)
from isotherm.tasks.commands.output import (
    JsonFlag,
    age,
    clip,
    counted,
    errors_as_sentences,
    out,
    print_json,
    ready,
    size,
    table,
)

RecordId = Annotated[str, typer.Argument(metavar="ID", help="Id of a record.")]
RecordIds = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of records.")]
Wait = Annotated[bool, typer.Option(help="Wait until the background work is done.")]


def get(
    record_id: RecordId,
    *,
    agent: Agent = "default",
    session: Session = None,
    scope: ScopeName = None,
    run: Run = None,
    tenant: Tenant = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one record with its whole text, also of a cold one, which stays where it is."""
    with errors_as_sentences():
        storage.open(ready())
        record = producers.get(named(agent, session, scope, run, tenant), record_id, whole=True)
        if as_json:
            print_json(record_json(record))
            return
        pinned = ", pinned" if record.pinned else ""
        out.print(
            f"{tier_name(record.tier)}{pinned}, version {record.version}, {size(record.size_bytes)}, importance "
            f"{record.importance:.2f}, {counted(record.access_count, 'access', 'accesses')}, {record.created_at:%Y-%m-%d %H:%M} UTC"
        )
        out.print(escape(record.text), soft_wrap=True, highlight=False)


def record_json(record: Record) -> dict[str, Any]:
    """A record for programs."""
    return {
        "id": record.id,
        **names_json(record.namespace),
        "text": record.content,
        "summary": record.summary,
        "tier": record.tier.value,
        "pinned": record.pinned,
        "version": record.version,
        "importance": record.importance,
        "accesses": record.access_count,
        "heat": record.heat,
        "created_at": record.created_at,
        "last_access_at": record.last_access_at,
        "moved_at": record.moved_at,
        "bytes": record.size_bytes,
        "categories": record.categories,
        "metadata": record.metadata,
        "sha256": record.content_sha256,
    }


def update(  # noqa: PLR0913 - one option for each choice of a caller
    record_id: RecordId,
    content: Annotated[str | None, typer.Argument(help="Another text; - reads standard input.")] = None,
    *,
    agent: Agent = "default",
    session: Session = None,
    scope: ScopeName = None,
    run: Run = None,
    tenant: Tenant = None,
    version: Annotated[int | None, typer.Option(help="Only if the record has this version.")] = None,
    importance: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    metadata: Annotated[str | None, typer.Option(help="A JSON object that replaces the old one.")] = None,
    key: Annotated[str | None, typer.Option(help="Makes the call safe to repeat.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Change a record. It is found by its new text at once; a cold one with another text is warm afterwards."""
    with errors_as_sentences():
        ready()
        done = producers.update(
            named(agent, session, scope, run, tenant),
            record_id,
            content=None if content is None else text_or_input(content),
            importance=importance,
            metadata=None if metadata is None else _object(metadata),
            expected_version=version,
            key=key,
        )
        if as_json:
            told = {"operation": done.operation_id, "new": done.new, "version": done.version, "written": done.written}
            print_json(told)
        elif done.new:
            out.print(f"{'version' if done.written else 'unchanged: version'} {done.version}")
        else:
            out.print("done already")


def _object(text: str) -> dict[str, Any]:
    found = json_of(text, "metadata")
    if not isinstance(found, dict):
        raise RejectedError("metadata: a JSON object is needed")
    return found


def pin(
    ids: RecordIds,
    *,
    agent: Agent = "default",
    session: Session = None,
    scope: ScopeName = None,
    run: Run = None,
    tenant: Tenant = None,
    wait: Wait = True,
    as_json: JsonFlag = False,
) -> None:
    """Keep records at warm or hotter; cold ones come back byte for byte."""
    with errors_as_sentences():
        ready()
        done = producers.pin(named(agent, session, scope, run, tenant), ids)
        _tell_pinned("pinned", done, wait=wait, as_json=as_json)


def unpin(
    ids: RecordIds,
    *,
    agent: Agent = "default",
    session: Session = None,
    scope: ScopeName = None,
    run: Run = None,
    tenant: Tenant = None,
    wait: Wait = True,
    as_json: JsonFlag = False,
) -> None:
    """Let passes move records again."""
    with errors_as_sentences():
        ready()
        done = producers.unpin(named(agent, session, scope, run, tenant), ids)
        _tell_pinned("unpinned", done, wait=wait, as_json=as_json)


def _tell_pinned(verb: str, done: Pinned, *, wait: bool, as_json: bool) -> None:
    """Say what changed; only what must come back from cold is waited for."""
    ended = [wait_for(done.operation_id)] if wait and done.restoring else []
    if as_json:
        print_json({"operation": done.operation_id, verb: done.records, "restored_from_cold": done.restoring})
    else:
        more = f", {done.restoring} of them back from cold" if done.restoring else ""
        out.print(f"{counted(done.records, 'record')} {verb}{more}")
    end_with(ended)


def explain(
    record_id: RecordId,
    *,
    agent: Agent = "default",
    session: Session = None,
    scope: ScopeName = None,
    run: Run = None,
    tenant: Tenant = None,
    query: Annotated[str | None, typer.Option("--query", "-q", help="Also rate it for this text.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show why a record is where it is, what the next pass would do, and how a query rates it."""
    with errors_as_sentences():
        storage.open(ready())
        told = producers.explain(named(agent, session, scope, run, tenant), record_id, query=query)
        if as_json:
            print_json(_explained_json(told))
        else:
            _show_explained(told)


def _explained_json(told: Explanation) -> dict[str, Any]:
    move, rating = told.next_move, told.rating
    return {
        "record": {**record_json(told.record), "text": None},
        "moves": [
            {"at": m.at, "from": m.source.value, "to": m.target.value, "reason": m.reason, "operation": m.operation_id}
            for m in told.moves
        ],
        "weaker": told.weaker,
        "capacity": told.capacity,
        "leaves_at": told.leaves_at,
        "needs_heat": told.needs_heat,
        "held_until": told.held_until,
        "set_aside": told.set_aside,
        "next_move": move and {"to": move.target.value if move.target else "evicted", "reason": move.reason.value},
        "rating": rating and {"place": rating.place, "of": rating.of, "found_by": rating.legs, **_parts(rating)},
    }


def _parts(rating: Rating) -> dict[str, Any]:
    parts = rating.score
    names = ("total", "semantic", "overlap", "cosine", "recency", "importance")
    return {"score": None if parts is None else {name: getattr(parts, name) for name in names}}


def _show_explained(told: Explanation) -> None:
    record = told.record
    out.print(
        f"{tier_name(record.tier)}  {escape(record.id)}  [dim]{clip(record.text, 80)}[/dim]",
        highlight=False,
        soft_wrap=True,
    )
    for line in _sentences(told):
        out.print(f"  {line}", soft_wrap=True)
    if told.moves:
        rows = [(age(m.at), tier_name(m.source), tier_name(m.target), m.reason) for m in told.moves]
        out.print(table("Moves", ("ago", "from", "to", "reason"), rows))


def _sentences(told: Explanation) -> list[str]:
    record, move = told.record, told.next_move
    capacity = "no limit" if told.capacity is None else f"a limit of {told.capacity}"
    lines = [
        f"{counted(told.weaker, 'record')} of its tier would leave before it; the tier has {capacity}",
        f"{_accesses(record)}; heat {record.heat:.2f}"
        + (f", lifted from {told.needs_heat}" if told.needs_heat else ""),
    ]
    lines += ["pinned: passes leave it alone"] if record.pinned else []
    lines += [_leaving(told.leaves_at)] if told.leaves_at else []
    lines += [f"no pass moves it back before {told.held_until:%Y-%m-%d %H:%M} UTC"] if told.held_until else []
    lines += [f"set aside: {escape(told.set_aside)}"] if told.set_aside else []
    if move is None:
        lines.append("the next pass leaves it where it is")
    else:
        target = tier_name(move.target) if move.target else "out: evicted"
        lines.append(f"the next pass moves it to {target}, because of {move.reason.value}")
    return lines + _rated(told.rating)


def _accesses(record: Record) -> str:
    if not record.access_count:
        return f"not accessed since {record.last_access_at:%Y-%m-%d %H:%M} UTC"
    return f"accessed {counted(record.access_count, 'time')}, last {age(record.last_access_at)} ago"


def _leaving(moment: datetime) -> str:
    if moment <= datetime.now(UTC):
        return f"old enough to leave its tier since {moment:%Y-%m-%d %H:%M} UTC"
    return f"leaves its tier at {moment:%Y-%m-%d %H:%M} UTC unless accessed"


def _rated(rating: Rating | None) -> list[str]:
    if rating is None:
        return []
    if rating.score is None:
        return [f"not among the {rating.of} records that an index proposes for this query"]
    parts = rating.score
    meaning = "" if parts.cosine is None else f", meaning {parts.cosine:.2f}"
    found_by = ", ".join(sorted(rating.legs))
    shares = f"words {parts.overlap:.2f}{meaning}, recency {parts.recency:.2f}, importance {parts.importance:.2f}"
    return [f"place {rating.place} of {rating.of}: {parts.total:.3f} ({shares}), found by {found_by}"]
