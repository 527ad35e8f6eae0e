"""`forget` and `forgotten`: erase memory, and look whether anything of it is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.markup import escape

from isotherm import storage
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Bank
from isotherm.storage.forget import Receipt, Rewritten
from isotherm.tasks import produce_brain, producers
from isotherm.tasks.accepted import Accepted
from isotherm.tasks.commands.memory import Run, ScopeName, Session, Tenant, end_with, named, names_one, wait_for
from isotherm.tasks.commands.ops import OperationId, parse_id
from isotherm.tasks.commands.output import (
    Exit,
    JsonFlag,
    counted,
    err,
    errors_as_sentences,
    fail,
    out,
    print_json,
    ready,
    table,
)

_WAIT_S = 600.0

Wanted = tuple[str, Callable[[], Accepted]]


def forget(  # noqa: PLR0913 - one option for each choice of a caller
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids of records of one namespace.")] = None,
    *,
    agent: Annotated[str | None, typer.Option("--agent", "-a", help="Whose memory.")] = None,
    session: Session = None,
    scope: ScopeName = None,
    run: Run = None,
    tenant: Tenant = None,
    objects: Annotated[
        list[str] | None,
        typer.Option("--object", "-o", metavar="ID", help="An object of its knowledge, with its parts."),
    ] = None,
    interests: Annotated[
        list[str] | None, typer.Option("--interest", "-i", metavar="ID", help="An interest of this agent.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait until a look everywhere finds nothing more.")] = True,
    vacuum: Annotated[
        bool, typer.Option("--vacuum", help="Then have the servers write their files anew; locks tables meanwhile.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Forget records, objects or interests by id, a session (--agent --session), an agent (--agent) or a tenant, for good.

    A tenant is named by --tenant alone. A session goes with all its scopes and runs; --scope or --run name one namespace.

    There is no way back. The receipt holds ids and counts; exit code 4 when something is left.
    """
    with errors_as_sentences():
        if vacuum and not wait:
            raise RejectedError("--vacuum needs the end of the erasure: leave out --no-wait")
        if objects or interests:
            what, call = _single(
                ids or [], objects or [], interests or [], agent, tenant, inner=names_one(session, scope, run)
            )
        else:
            what, call = _wanted(ids or [], agent, session, scope, run, tenant)
        storage.open(ready())
        if not yes and not typer.confirm(f"Forget {what}, for good?", err=True):
            fail("nothing was forgotten", Exit.REFUSED)
        accepted = call()
        ended = [wait_for(accepted.operation_id, _WAIT_S)] if wait else []
        receipt = producers.forget_receipt(accepted.operation_id)
        _tell(receipt, as_json=as_json)
        end_with(ended)
        if vacuum:
            _tell_files(producers.rewrite_files())


def _single(
    ids: list[str], objects: list[str], interests: list[str], agent: str | None, tenant: str | None, *, inner: bool
) -> Wanted:
    """Objects or interests, which belong to an agent and to no session, scope or run of it."""
    if agent is None or inner or bool(ids) + bool(objects) + bool(interests) > 1:
        raise RejectedError("name the agent with --agent, no session, and either records, objects or interests")
    of = f"of agent {agent}" + (f" of tenant {tenant}" if tenant else "")
    wanted = [_uuid(one) for one in objects or interests]
    if objects:
        namespace = produce_brain.knowledge(agent, tenant=tenant)
        return f"{len(wanted)} objects {of}", lambda: producers.forget_objects(namespace, wanted)
    bank = Bank(tenant, agent)
    return f"{len(wanted)} interests {of}", lambda: producers.forget_interests(bank, wanted)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise RejectedError("an id of an object or an interest is a UUID") from None


def _wanted(
    ids: list[str], agent: str | None, session: str | None, scope: str | None, run: str | None, tenant: str | None
) -> Wanted:
    """What is to be forgotten, in words, and the call that does it. Nothing is taken for granted but the tenant."""
    if agent is None and (ids or names_one(session, scope, run) or tenant is None):
        raise RejectedError("name the agent with --agent, or a tenant alone with --tenant")
    of = f" of tenant {tenant}" if tenant else ""
    if agent is None:
        owner = str(tenant)
        return f"all agents{of}", lambda: producers.forget_tenant(owner)
    namespace = named(agent, session, scope, run, tenant)
    if ids:
        return f"{counted(len(ids), 'record')} of agent {agent}{of}", lambda: producers.forget(namespace, ids)
    if scope is not None or run is not None:
        return f"namespace {namespace.label}{of}", lambda: producers.forget(namespace)
    bank = Bank(tenant, agent)
    if session is not None:
        return f"session {session} of agent {agent}{of}", lambda: producers.forget_session(bank, session)
    return f"everything of agent {agent}{of}", lambda: producers.forget_agent(bank)


def forgotten(operation_id: OperationId, *, as_json: JsonFlag = False) -> None:
    """Show the receipt of a `forget`, and look everywhere for what is left now. Exit code 4 when something is."""
    with errors_as_sentences():
        wanted = parse_id(operation_id)
        storage.open(ready())
        receipt = producers.forget_receipt(wanted)
        _tell(receipt, as_json=as_json)
        if receipt.left:
            raise SystemExit(int(Exit.UNHEALTHY))


def _tell_files(written: Rewritten) -> None:
    if not written.statistics:
        err.print(
            "samples of the planner may hold erased values: run --vacuum as a superuser, or as the database's owner"
        )
    if not written.log:
        err.print("the write-ahead log was left as it is: the role may not switch it, or something keeps writing to it")
    if not (written.statistics and written.log):
        raise SystemExit(int(Exit.UNHEALTHY))


def _tell(receipt: Receipt, *, as_json: bool) -> None:
    if as_json:
        print_json(_json(receipt))
        return
    rows = [(escape(kind.replace("_", " ")), str(n)) for kind, n in receipt.counts.items()]
    if rows:
        out.print(table(f"Forgotten: {receipt.level.value}", ("what", "how many"), rows, right=(1,), whole=(0, 1)))
    else:
        out.print("nothing was there")
    out.print(f"scope {receipt.scope_sha256[:16]}…, operation {receipt.operation_id}")
    if receipt.left:
        found = ", ".join(f"{n} in {escape(where)}" for where, n in sorted(receipt.left.items()))
        out.print(f"[yellow]left: {found}[/yellow]", soft_wrap=True)
    else:
        out.print("[green]nothing is left[/green]")
    out.print(f"[dim]outside of this: {', '.join(receipt.outside)}[/dim]", soft_wrap=True)


def _json(receipt: Receipt) -> dict[str, Any]:
    return {
        "operation": receipt.operation_id,
        "level": receipt.level.value,
        "scope_sha256": receipt.scope_sha256,
        "counts": receipt.counts,
        "ids": receipt.ids,
        "left": receipt.left,
        "requested_at": receipt.requested_at,
        "finished_at": receipt.finished_at,
        "outside": list(receipt.outside),
    }
