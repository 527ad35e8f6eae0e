"""`demo`: the main job on this machine, from an empty folder to memory, knowledge and interests."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import ExitStack
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.panel import Panel

from isotherm import storage
from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.pipeline.identity import Bank, Namespace
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.policy import Policy
from isotherm.storage.postgres import namespaces, operations, tier_recall
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import system
from isotherm.storage.settings import Settings, settings
from isotherm.tasks import produce_brain, produce_interest, producers
from isotherm.tasks.commands import brain, ingest, interest, memory, ops, servers, tiers
from isotherm.tasks.commands.output import Exit, counted, err, errors_as_sentences, out, size
from isotherm.tasks.processes import Processes

# Small enough that a sample of eight conversations fills all three tiers; ages are off, so that every day shows the same.
# Batches so small that a pass has several of them, side by side.
POLICY = Policy(
    hot_capacity=6, warm_capacity=8, hot_ttl=None, warm_ttl=None, demote_idle=None, cooldown=timedelta(0), batch_size=8
)
_PASSES = 3
# The longest messages of the sample have some 4 KB; here they are summarized.
_MIN_BYTES = 1_024

QUESTIONS = (
    ("atlas", "Where is Mira's flat and what does it cost?"),
    ("atlas", "Does Mira eat fish?"),
    ("atlas", "When is the weekly one-to-one with Ingrid?"),
    ("forge", "Why were there duplicate salinity rows at K7?"),
    ("forge", "Which Postgres version did we choose for tidewater?"),
)
_ANSWERS = 3

READER = "forge"
SEARCHES = ("why does salinity read too low?", "the same cast was loaded twice")
_OBJECTS = 2
_INTERESTS = 8


def demo(
    *,
    workers: Annotated[int, typer.Option(min=1, max=16, help="Workers to run.")] = 2,
    flower: Annotated[bool, typer.Option(help="Also run flower.")] = True,
) -> None:
    """Start everything and run the main job on samples: memory, knowledge, graph, interests, contradictions."""
    with errors_as_sentences():
        begun = time.monotonic()
        # Every process of the demo works by the demo's policy, the sweeper's passes too.
        os.environ.setdefault("ISOTHERM_TIER", POLICY.model_dump_json())
        os.environ.setdefault("ISOTHERM_COLD_MIN_BYTES", str(_MIN_BYTES))
        settings.cache_clear()
        chosen = settings()
        _start(chosen, workers, flower=flower)
        storage.open(chosen)
        _ingest()
        _reconcile(chosen)
        _ask()
        _restore_one()
        _know()
        _distill()
        _account(time.monotonic() - begun)


def _headline(text: str) -> None:
    out.print()
    out.rule(f"[bold]{text}[/bold]", align="left")


def _start(chosen: Settings, workers: int, *, flower: bool) -> None:
    _headline("1  Servers and workers")
    with err.status("starting PostgreSQL and Redis"):
        lines = servers.start_servers(chosen)
    for line in lines:
        out.print(f"[dim]{escape(line)}[/dim]", soft_wrap=True)
    processes = Processes(chosen)
    with err.status("starting workers and beat"):
        processes.start_beat()
        processes.start_workers(workers, 2)
    if flower:
        with err.status("starting flower"):
            try:
                servers.show_flower(processes.start_flower())
            except UnavailableError as error:
                out.print(f"[yellow]flower is left out: {escape(str(error).splitlines()[0])}[/yellow]")
    servers.show_processes(chosen)


def _ingest() -> None:
    _headline("2  Conversations are remembered and read")
    sample = resources.files("isotherm.tasks.samples") / "conversations.jsonl"
    with ExitStack() as stack:
        file = stack.enter_context(resources.as_file(sample))
        progress = stack.enter_context(ingest.progress())
        done = ingest.ingest_file(Path(file), progress)
        left = ingest.wait_for_operations(done.operations, progress)
    ingest.tell(done, left)
    if left:
        raise UnavailableError("the workers do not work; see `isotherm doctor`")


def _sessions() -> list[Namespace]:
    with system(), connection() as conn:
        return [row.namespace for row in namespaces.listed(conn, tenant=None)]


def _reconcile(chosen: Settings) -> None:
    _headline("3  Workers move them between hot, warm and cold")
    before = tiers.depth(None, None)
    tiers.show_depth("Before", before)
    with err.status("passes run"):
        for _ in range(_PASSES):
            wanted = [producers.reconcile(n, chosen.tier).operation_id for n in _sessions()]
            ended = [memory.wait_for(operation_id) for operation_id in wanted]
            if not any(_moved(operation) for operation in ended):
                break
    tiers.show_depth("After", tiers.depth(None, None))


def _moved(operation: operations.Operation) -> int:
    return sum(int((operation.result or {}).get(name, 0)) for name in ("promoted", "demoted", "evicted"))


def _ask() -> None:
    _headline("4  Recall finds them in every tier")
    for agent, question in QUESTIONS:
        # The demo looks without counting, so that a second run shows the same state.
        answer = producers.recall(Bank(None, agent), question, budget=RecallBudget(total=_ANSWERS), touch=False)
        memory.show_recall(f"{agent}: {question}", answer)


def _restore_one() -> None:
    _headline("5  A cold record comes back, byte for byte")
    with system(), connection() as conn:
        found = tier_recall.largest_cold(conn, tenant=None)
    if found is None:
        raise RejectedError("no record went cold with a body: the passes moved nothing")
    tier = storage.open().tier
    cold = tier.get(found.namespace, found.id)
    out.print(
        f"cold: {size(cold.size_bytes)} of text kept in {size(found.stored_bytes)}, found by a summary of "
        f"{len(cold.summary or '')} characters:"
    )
    out.print(Panel(escape(cold.summary or ""), border_style="blue"))
    ended = memory.wait_for(producers.restore(found.namespace, [found.id]).operation_id)
    back = tier.get(found.namespace, found.id)
    same = back.content is not None and hashlib.sha256(back.content.encode()).hexdigest() == cold.content_sha256
    verdict = "[green]the same bytes[/green]" if same else "[red]other bytes[/red]"
    out.print(
        f"restored: operation {ended.state}, tier {back.tier.value}, SHA-256 {cold.content_sha256[:16]}…: {verdict}"
    )
    if not same:
        raise RejectedError(f"operation {ended.id} did not restore the record")


def _know() -> None:
    _headline("6  Documents become a knowledge base and its graph")
    namespace, done = produce_brain.knowledge(READER), brain.Done()
    with resources.as_file(resources.files("isotherm.tasks.samples") / "knowledge.jsonl") as file:
        brain.put_lines(namespace, file, "document", done)
    with err.status("vectors and graph follow"):
        left = brain.wait_for_all(done.operations)
    brain.tell_put(done, left, as_json=False)
    for query in SEARCHES:
        brain.show_answer(f"{READER}: {query}", produce_brain.search(namespace, query, limit=_OBJECTS))
    out.print()
    around = done.documents[0]
    named = produce_brain.read(namespace, around).title
    brain.show_expanded(named, around, produce_brain.expand(namespace, around, None, containment=True))


def _distill() -> None:
    _headline("7  Sessions become interests, and what changed is kept as a contradiction")
    with system(), connection() as conn:
        agents = sorted({row.namespace.agent for row in namespaces.listed(conn, tenant=None)})
    for agent in agents:
        bank = Bank(None, agent)
        found = produce_interest.interests(bank, limit=_INTERESTS)
        if not found:
            continue  # an agent with documents only
        said = storage.open().interest.evidence(bank, [one.id for one in found])
        interest.show_interests(agent, found, said, {})
        interest.show_contradictions(agent, produce_interest.contradictions(bank))


def _account(seconds: float) -> None:
    _headline("8  Every job is accounted for")
    with system(), connection() as conn:
        found, totals = operations.newest(conn, limit=8), operations.counts(conn)
    ops.show_operations(found, totals)
    out.print()
    out.print(
        Panel(
            'isotherm recall "sea kayaking" --agent atlas\nisotherm search "wind" --agent forge\n'
            "isotherm interests kayak --agent atlas\nisotherm contradictions --agent atlas\n"
            "isotherm tiers\nisotherm ops list\nisotherm doctor\nisotherm down",
            title=f"done in {seconds:.0f} s; look further, and stop everything by the last of these",
            title_align="left",
            border_style="green",
        )
    )
    if bad := sum(count for _, state, count in totals if state not in {"done", "accepted", "running"}):
        err.print(f"[red]{counted(bad, 'operation')} did not end done[/red]")
        raise SystemExit(int(Exit.UNHEALTHY))
