"""`doctor`: what is well, what is not, and what mends it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.storage import erasure_check, health, refused_lines, servers
from isotherm.storage.models import factory
from isotherm.storage.postgres import operations, outbox, tier_held
from isotherm.storage.postgres.pool import connection
from isotherm.storage.postgres.reach import SYSTEM, TENANT, over_all
from isotherm.storage.postgres.tier_forget import Erasure
from isotherm.storage.redis import client as redis_client
from isotherm.storage.settings import Settings, settings
from isotherm.tasks import broker
from isotherm.tasks.commands.inputs import bytes_of, json_of
from isotherm.tasks.commands.ops import parse_id
from isotherm.tasks.commands.output import (
    Exit,
    JsonFlag,
    counted,
    errors_as_sentences,
    out,
    print_json,
    ready,
    size,
    span,
    table,
)
from isotherm.tasks.processes import Processes

# A due message this old means that no relay runs: beat or every maintenance worker is away.
_RELAY_LATE_S = 60.0
# Work that nobody took for this long is a fault even where a consumer exists.
_STUCK_S = 600.0
# Leases and waits compare moments of PostgreSQL with its own; ids, ticks and times of records are this machine's.
_SKEW_S = 5.0
# Graphs are compared every quarter of an hour; much later means that beat or the graph's worker is away.
_DRIFT_LATE = 4
# Files are removed by a tick of a worker on their machine, or by the next ingest.
_PURGE_LATE_S = 2 * 86_400.0
_ROLES = frozenset({TENANT, SYSTEM})
_NEEDED = ("btree_gin", "pg_trgm", "vector")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing the doctor looked at: what, whether it is well, a sentence, and what mends it where it is not."""

    subject: str
    well: bool
    text: str
    remedy: str = ""


def doctor(
    *,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also compare every object and every vector's stamp; reads them all.")
    ] = False,
    erased: Annotated[
        str | None,
        typer.Option(
            help="Look for what was forgotten instead: the id of a forget, or a file with its receipt as JSON."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Look at servers, queues and work, say what is wrong and what mends it. Exit code 4 when something is."""
    with errors_as_sentences():
        findings = examine(settings(), deep=deep) if erased is None else [_erased(erased)]
        ill = [f for f in findings if not f.well]
        if as_json:
            print_json({"well": not ill, "findings": [asdict(f) for f in findings]})
        else:
            rows = [(f"[{_color(f)}]{'✓' if f.well else '✗'}[/]", f.subject, _told(f)) for f in findings]
            out.print(table("Doctor", ("", "what", "finding"), rows))
        if ill:
            raise SystemExit(int(Exit.UNHEALTHY))


def _told(finding: Finding) -> str:
    return escape(finding.text) + (f"\n→ {escape(finding.remedy)}" if finding.remedy else "")


def _color(finding: Finding) -> str:
    return "green" if finding.well else "red"


@over_all
def examine(chosen: Settings, *, deep: bool = False) -> list[Finding]:
    """Look at everything once. What cannot be asked because a server is away is left out: the server is the finding."""
    refused = broker.faults(chosen)
    faults = servers.check(chosen) + refused
    findings = [Finding("servers", well=False, text=fault.text) for fault in faults]
    if not faults:
        findings.append(Finding("servers", well=True, text="PostgreSQL and Redis answer, fit and are migrated"))
    findings += _processes(chosen)
    findings += _refused(chosen)
    try:
        findings += _row_security(chosen)
        servers.probe(chosen)
        storage.open(chosen)
    except (TransientError, RejectedError) as error:  # of servers at fault it is told already
        return findings if faults else [*findings, _away(error)]
    asked = () if refused else (_broker, _queues)
    for part in (_database, _clocks, *asked, _work, _aside, _graphs, *((_objects, _stamps) if deep else ())):
        try:
            findings += part()
        except (TransientError, RejectedError) as error:
            if not faults:
                findings.append(_away(error))
    return findings


def _away(error: Exception) -> Finding:
    return Finding("work", False, str(error), "isotherm doctor again, once it answers")


def _processes(chosen: Settings) -> Iterator[Finding]:
    for p in Processes(chosen).status():
        if p.running:
            yield Finding(p.name, well=True, text=f"running, pid {p.pid}")
        elif p.name != "flower":
            yield Finding(p.name, False, f"was started here and has ended; log: {p.log}", "isotherm up starts it again")


def _refused(chosen: Settings) -> Iterator[Finding]:
    """Texts that came in and were refused are kept as they came, so nobody should have to find them by chance."""
    folder = refused_lines.folder_of(chosen)
    kept = refused_lines.status(folder)
    if not kept.files:
        return
    late = kept.oldest_s > chosen.keep_refused.total_seconds() + _PURGE_LATE_S
    text = f"{counted(kept.files, 'file')} of {size(kept.bytes)} in {folder}, the oldest from {span(kept.oldest_s)} ago"
    remedy = "no worker removes them: start beat and one with --queues maintenance here, or remove them" if late else ""
    yield Finding("refused lines", not late, text, remedy)


def _database() -> Iterator[Finding]:
    with connection() as conn:
        found = health.server(conn)
    missing = [name for name in _NEEDED if name not in found.extensions]
    extensions = ", ".join(f"{name} {version}" for name, version in found.extensions.items())
    role = f"role {found.role}" + (", a superuser" if found.superuser else "")
    text = f"PostgreSQL {found.version}, migration {found.migration}, {role}; {extensions}"
    if missing:
        yield Finding("database", False, f"{text}; without {', '.join(missing)}", "CREATE EXTENSION as its owner")
    else:
        yield Finding("database", well=True, text=text)


def _row_security(chosen: Settings) -> Iterator[Finding]:
    found = servers.row_security_of(chosen)
    ill = []
    if chosen.rls:
        ill += [f"{role} is missing, or this login may not become it" for role in sorted(_ROLES - found.usable)]
        ill += [f"tables without a policy: {', '.join(found.bare)}"] if found.bare else []
        ill += [f"{TENANT} gets around its policies by {', '.join(found.bypassing)}"] if found.bypassing else []
        ill += [f"tables of nobody known: {', '.join(found.unknown)}"] if found.unknown else []
    elif found.any and not found.owner:
        ill.append("it is on in the database, and this login sees no rows")
    if ill:
        text = f"{'on' if chosen.rls else 'off'} by ISOTHERM_RLS; {'; '.join(ill)}"
        yield Finding("row security", False, text, "isotherm migrate brings the database to the setting")
    elif chosen.rls:
        yield Finding(
            "row security", True, f"on: {TENANT} is bound by policies of {counted(len(found.tables), 'table')}"
        )
    else:
        left = ", and policies are left from before, which bind nobody here" if found.any else ""
        yield Finding("row security", well=True, text=f"off{left}")


def _clocks() -> Iterator[Finding]:
    opened = storage.open()
    with connection() as conn:
        found = health.skews(conn, redis_client.open_client(servers.redis_url(opened.settings)))
    far = {name: skew for name, skew in found.items() if abs(skew) > _SKEW_S}
    text = ", ".join(f"{name} {skew:+.1f} s" for name, skew in (far or found).items())
    remedy = "set the clocks by NTP: times of records and ids come from this machine" if far else ""
    yield Finding("clocks", not far, f"against this machine: {text}", remedy)


def _broker() -> Iterator[Finding]:
    if settings().broker_url is not None:
        yield Finding("broker", well=True, text=f"{broker.kind()} answers and has our queues")


def _waiting(steps: int) -> str:
    return f"{counted(steps, 'step')} {'waits' if steps == 1 else 'wait'}"


def _queues() -> Iterator[Finding]:
    with connection() as conn:
        backlog = {b.queue: b for b in operations.backlog(conn)}
    consumers = broker.consumers()
    for queue in stages.Queue:
        listening, work = consumers.get(queue.value, []), backlog.get(queue.value)
        waiting = f"{_waiting(work.steps)}, the oldest for {span(work.oldest_s)}" if work else "no work waits"
        if queue is stages.Queue.MAINTENANCE:
            waiting = "ticks of beat"
        if not listening:
            needed = work is not None or queue is not stages.Queue.GRAPH
            remedy = f"start a worker with --queues {queue.value}, or isotherm up" if needed else ""
            yield Finding(f"queue {queue.value}", not needed, f"no consumer; {waiting}", remedy)
            continue
        stuck = work is not None and work.oldest_s > _STUCK_S and not work.running
        remedy = "nobody takes it: look at the workers' logs, restart them" if stuck else ""
        yield Finding(f"queue {queue.value}", not stuck, f"{counted(len(listening), 'consumer')}; {waiting}", remedy)


def _work() -> Iterator[Finding]:
    with connection() as conn:
        messages, oldest = outbox.depth(conn)
        partial = sum(count for _, name, count in operations.counts(conn) if name == "partial")
        ended = health.ended_badly(conn)
    late = oldest > _RELAY_LATE_S
    text = f"{counted(messages, 'message')} due, the oldest for {span(oldest)}" if messages else "nothing is due"
    remedy = "start beat and a worker with --queues maintenance, or isotherm up" if late else ""
    yield Finding("outbox", not late, text, remedy)
    if not ended:
        more = f"; {partial} partial" if partial else ""
        yield Finding("operations", not partial, f"none ended failed or dead{more}")
    for e in ended:
        text = f"{counted(e.operations, 'operation')} {e.state} at {e.stage}: {e.reason}"
        yield Finding("operations", False, text, f"isotherm ops show {e.example}; then isotherm ops retry or cancel")


def _aside() -> Iterator[Finding]:
    with connection() as conn:
        found = tier_held.counted(conn)
    if not found:
        yield Finding("set aside", well=True, text="passes can move every record")
    for tenant, records, lost in found:
        of, option = ("no tenant", "") if tenant is None else (f"tenant {tenant}", f" --tenant {tenant}")
        remedies = [f"isotherm tiers aside{option} says why"]
        if records > lost:
            remedies.append(f"once that is mended, isotherm tiers aside --again{option} has them tried at once")
        if lost:
            remedies.append("bring lost bodies back from a backup, then isotherm restore ID; or isotherm forget it")
        text = f"{counted(records, 'record')} of {of}" + (f", the body of {lost} lost or damaged" if lost else "")
        yield Finding("set aside", False, text, "; ".join(remedies))


def _graphs() -> Iterator[Finding]:
    opened = storage.open()
    with connection() as conn:
        found = health.drift(conn)
    if not found.graphs:
        return
    late = (found.oldest_s or 0.0) > _DRIFT_LATE * opened.settings.drift_every.total_seconds()
    text = f"{found.graphs} compared, {found.differing} differed by {found.nodes} nodes and {found.edges} edges"
    remedy = "isotherm graph drift compares and repairs now" if found.differing or late else ""
    when = f", the oldest {span(found.oldest_s or 0.0)} ago"
    yield Finding("graphs", not (found.differing or late), text + when, remedy)


def _erased(wanted: str) -> Finding:
    """Look over every table, key and blob for what a receipt says was erased."""
    opened = storage.open(ready())
    erasure = _receipt(wanted)
    left = erasure_check.left(opened, erasure)
    asked = ", ".join(f"{len(ids)} {kind}" for kind, ids in erasure_check.ids_of(erasure).items())
    subject = f"erasure {erasure.operation_id}"
    if not left:
        return Finding(subject, well=True, text=f"nothing is left; asked for by id: {asked or 'nothing'}")
    found = ", ".join(f"{n} in {where}" for where, n in sorted(left.items()))
    remedy = "after a restore: isotherm forget the same again; else wait for it, see isotherm ops show"
    return Finding(subject, False, f"left: {found}", remedy)


def _receipt(wanted: str) -> Erasure:
    path = Path(wanted)
    if path.is_file():
        return erasure_check.of_receipt(json_of(bytes_of(path), "the receipt"))
    known = erasure_check.known(parse_id(wanted))
    if known is None:
        raise RejectedError("this database knows of no such erasure; give the file of its receipt")
    return known


def _objects() -> Iterator[Finding]:
    found = health.compare_objects(storage.open().blobs)
    text = f"{found.checked} in the blob store"
    if found.missing:
        text += f"; {found.missing} that records need are missing"
    if found.unknown:
        text += f"; {found.unknown} belong to nothing here"
    remedy = ""
    if found.missing:
        remedy = "bring them back from a backup: isotherm restore-db, or copy its blobs"
    elif found.unknown:
        remedy = "another database may use this store; if none does, delete what the store has and the backup has not"
    yield Finding("objects", not (found.missing or found.unknown), text, remedy)


def _stamps() -> Iterator[Finding]:
    embedder = factory.embedder(storage.open().settings)
    with connection() as conn:
        found = health.stamps(conn)
    foreign = [f"{count} {of} by {model}" for of, model, count in found if embedder and model != embedder.model]
    ours = sum(count for _, model, count in found if embedder and model == embedder.model)
    if embedder is None:
        yield Finding("vectors", well=True, text=f"no model here; {sum(count for _, _, count in found)} stored")
    elif foreign:
        text = f"{ours} by {embedder.model}; others, which it cannot compare: {', '.join(foreign)}"
        yield Finding(
            "vectors",
            False,
            text,
            "wait: they are made anew in the background, a few hundred each ten seconds; or go back to the earlier model",
        )
    else:
        yield Finding("vectors", well=True, text=f"{ours}, all by {embedder.model}")
