"""`graph`: how the graph of knowledge and of interests compares with its truth, and the two ways to make them agree."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.progress import Progress

from isotherm import storage
from isotherm.pipeline.brain.drift import BUCKETS
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.stages import Queue
from isotherm.storage import brain_mirror, interest_mirror
from isotherm.storage.brain_mirror import Drift
from isotherm.storage.graph import helix_client
from isotherm.storage.postgres import brain_drift, namespaces, operations
from isotherm.storage.postgres import interest_mirror as mirror_rows
from isotherm.storage.postgres.brain_drift import Checked
from isotherm.storage.postgres.interest_mirror import Place
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import over_all
from isotherm.tasks import produce_brain
from isotherm.tasks.commands.ingest import progress
from isotherm.tasks.commands.output import (
    Exit,
    JsonFlag,
    age,
    counted,
    errors_as_sentences,
    out,
    print_json,
    ready,
    table,
)

app = typer.Typer(help="The graph of knowledge: status, drift, rebuild.", no_args_is_help=True)

Agent = Annotated[str | None, typer.Option("--agent", "-a", help="Only this agent's; without it every agent's.")]
Tenant = Annotated[str | None, typer.Option("--tenant", "-t", help="The customer it belongs to.")]


@dataclass(frozen=True, slots=True)
class _Line:
    """A namespace of knowledge, or the interests of an agent, as the commands show it."""

    agent: str
    tenant: str | None
    objects: int
    edges: int
    different_objects: int
    different_edges: int
    discarded: int
    of: str = "knowledge"


@app.command()
@over_all
def status(*, as_json: JsonFlag = False) -> None:
    """Show which graph is in use, what waits for it, and when each namespace was last compared."""
    with errors_as_sentences():
        chosen = ready()
        storage.open(chosen)
        with connection() as conn:
            waiting = sum(b.steps for b in operations.backlog(conn) if b.queue == Queue.GRAPH)
            places = brain_drift.known(conn)
            sizes = [brain_drift.counts(conn, place.namespace_id) for place in places]
            banks = [(bank, mirror_rows.counts(conn, bank.bank_id)) for bank in mirror_rows.known(conn)]
        if as_json:
            found = [
                {**_names(place), "objects": nodes, "edges": edges, "checked_at": place.checked_at,
                 "repaired_objects": place.nodes, "repaired_edges": place.edges}
                for place, (nodes, edges) in zip(places, sizes, strict=True)
            ]  # fmt: skip
            interests = [
                {"agent": place.bank.agent, "tenant": place.bank.tenant, "points": nodes, "edges": edges,
                 "checked_at": place.compared_at, "repaired_points": place.nodes, "repaired_edges": place.edges}
                for place, (nodes, edges) in banks
            ]  # fmt: skip
            print_json({"graph": chosen.graph, "waiting": waiting, "namespaces": found, "interests": interests})
            return
        out.print(f"graph: {chosen.graph}; {counted(waiting, 'write')} {'waits' if waiting == 1 else 'wait'} for it")
        rows = [
            (place.name.agent, place.name.tenant or "-", nodes, edges,
             "never" if place.checked_at is None else age(place.checked_at), place.nodes + place.edges, "knowledge")
            for place, (nodes, edges) in zip(places, sizes, strict=True)
        ]  # fmt: skip
        rows += [
            (place.bank.agent, place.bank.tenant or "-", nodes, edges,
             "never" if place.compared_at is None else age(place.compared_at), place.nodes + place.edges, "interests")
            for place, (nodes, edges) in banks
        ]  # fmt: skip
        columns = ("agent", "tenant", "objects", "edges", "compared", "repaired then", "of")
        out.print(table("Graphs", columns, rows, right=(2, 3, 5)))


@app.command()
def drift(
    *,
    agent: Agent = None,
    tenant: Tenant = None,
    repair: Annotated[bool, typer.Option(help="Write again what differs.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Compare the graph with its truth and repair it. Exit code 4 when something differs and stays so."""
    with errors_as_sentences():
        lines = _each(agent, tenant, "comparing", _repaired if repair else _compared)
        _show(lines, as_json=as_json)
        if not repair and any(line.different_objects or line.different_edges for line in lines):
            raise SystemExit(int(Exit.UNHEALTHY))


@app.command()
def rebuild(*, agent: Agent = None, tenant: Tenant = None, as_json: JsonFlag = False) -> None:
    """Drop the graph and fill it again from the database; what is written meanwhile is in it too."""
    with errors_as_sentences():
        _show(_each(agent, tenant, "rebuilding", _rebuilt), as_json=as_json, what="written")


class _Bar:
    """The bar of one namespace."""

    def __init__(self, bars: Progress, what: str, agent: str) -> None:
        self._bars = bars
        self._id = bars.add_task(f"{what} {agent}", total=BUCKETS, unit="buckets")

    def __call__(self, done: int) -> None:
        self._bars.update(self._id, completed=done)


_Action = Callable[[Checked | Place, _Bar], Drift]


def _compared(place: Checked | Place, bar: _Bar) -> Drift:
    graph = storage.open().brain.graph
    if isinstance(place, Place):
        found = interest_mirror.compare(graph, place.bank_id)
    else:
        found = brain_mirror.compare(graph, place.namespace_id, place.graph)
    bar(BUCKETS)
    return found


def _repaired(place: Checked | Place, bar: _Bar) -> Drift:
    if isinstance(place, Place):
        return interest_mirror.repair(storage.open().brain.graph, place.bank_id, told=bar)
    return brain_mirror.repair(storage.open().brain.graph, place.namespace_id, place.graph, told=bar)


def _rebuilt(place: Checked | Place, bar: _Bar) -> Drift:
    if isinstance(place, Place):
        return interest_mirror.rebuild(storage.open().brain.graph, place.bank_id, told=bar)
    return brain_mirror.rebuild(storage.open().brain.graph, place.namespace_id, place.graph, told=bar)


@over_all
def _each(agent: str | None, tenant: str | None, what: str, action: _Action) -> list[_Line]:
    storage.open(ready())
    helix_client.own_embedded()  # unless the graph worker has it open, which is then said
    lines = []
    with progress() as bars:
        for place in _places(agent, tenant):
            found = action(place, _Bar(bars, what, place.name.agent))
            with connection() as conn:
                objects, edges = brain_drift.counts(conn, place.namespace_id)
            lines.append(
                _Line(place.name.agent, place.name.tenant, objects, edges, found.nodes, found.edges, found.discarded)
            )
        for bank in _banks(agent, tenant):
            found = action(bank, _Bar(bars, f"{what} interests of", bank.bank.agent))
            with connection() as conn:
                points, edges = mirror_rows.counts(conn, bank.bank_id)
            differed = (found.nodes, found.edges, found.discarded)
            lines.append(_Line(bank.bank.agent, bank.bank.tenant, points, edges, *differed, "interests"))
    if agent is not None and not lines:
        raise RejectedError("this agent has neither knowledge nor interests")
    return lines


def _places(agent: str | None, tenant: str | None) -> list[Checked]:
    only = None
    if agent is not None:
        place = namespaces.find(produce_brain.knowledge(agent, tenant=tenant))
        if place is None:
            return []
        only = place.namespace_id
    with connection() as conn:
        found = brain_drift.known(conn, only)
    return [place for place in found if tenant is None or place.name.tenant == tenant]


def _banks(agent: str | None, tenant: str | None) -> list[Place]:
    with connection() as conn:
        found = mirror_rows.known(conn)
    return [
        place
        for place in found
        if (agent is None or place.bank.agent == agent) and (tenant is None or place.bank.tenant == tenant)
    ]


def _show(lines: list[_Line], *, as_json: bool, what: str = "differed") -> None:
    if as_json:
        print_json([asdict(line) for line in lines])
        return
    rows = [
        (line.agent, line.tenant or "-", line.objects, line.edges, line.different_objects, line.different_edges,
         line.discarded, line.of)
        for line in lines
    ]  # fmt: skip
    columns = ("agent", "tenant", "objects", "edges", f"objects {what}", f"edges {what}", "discarded", "of")
    out.print(table("Graphs", columns, rows, right=(2, 3, 4, 5, 6)))


def _names(place: Checked) -> dict[str, str | None]:
    return {"agent": place.name.agent, "tenant": place.name.tenant}
