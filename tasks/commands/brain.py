"""`put`, `search`, `expand`: the knowledge base from the command line."""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.markup import escape
from rich.padding import Padding

from isotherm import storage
from isotherm.pipeline.brain import object_lines
from isotherm.pipeline.brain.answers import Answer, Result
from isotherm.pipeline.brain.documents import Document, content_type_of, document_id, objects_of
from isotherm.pipeline.brain.graph_port import Direction
from isotherm.pipeline.brain.links import NewLink
from isotherm.pipeline.brain.object_lines import BadLine
from isotherm.pipeline.brain.objects import NewObject, Object, namespace_uuid
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.storage.brain_expand import Expanded, Related
from isotherm.tasks import produce_brain, producers
from isotherm.tasks.commands import inputs
from isotherm.tasks.commands.output import (
    Exit,
    JsonFlag,
    clip,
    counted,
    err,
    errors_as_sentences,
    out,
    print_json,
    ready,
    table,
)

Agent = Annotated[str, typer.Option("--agent", "-a", help="Whose knowledge.")]
Tenant = Annotated[str | None, typer.Option("--tenant", "-t", help="The customer it belongs to.")]

_LINES = {".jsonl", ".ndjson"}
_BATCH = 500
_WAIT_S = 120.0
_SHOWN_BAD = 20


@dataclass(slots=True)
class Done:
    """What a `put` did."""

    documents: list[UUID] = field(default_factory=list)
    operations: list[UUID] = field(default_factory=list)
    parts: int = 0
    written: int = 0
    removed: int = 0
    links: int = 0
    bad: list[tuple[str, int, str]] = field(default_factory=list)


def put(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...", exists=True, dir_okay=False, readable=True, help="Text, Markdown, JSON Lines."
        ),
    ],
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    kind: Annotated[str, typer.Option("--kind", "-k", help="Kind of the documents.")] = "document",
    title: Annotated[str | None, typer.Option(help="Title; default: the first heading, or the file's name.")] = None,
    wait: Annotated[bool, typer.Option(help="Wait until vectors and graph have followed.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Put files into the knowledge base. A document is found by its words when the command returns.

    Text and Markdown become one object with parts of about 1,000 characters; putting a changed file again replaces them.
    A line of JSON Lines is an object (kind, title, content, ...) or a link (source, target, label, ...).
    """
    with errors_as_sentences():
        storage.open(ready())
        if title is not None and len(files) > 1:
            raise RejectedError("--title: only with a single file")
        namespace, done = produce_brain.knowledge(agent, tenant=tenant), Done()
        for file in files:
            if file.suffix.lower() in _LINES:
                put_lines(namespace, file, kind, done)
            else:
                _put_document(namespace, file, kind, title, done)
        left = wait_for_all(done.operations) if wait else 0
        tell_put(done, left, as_json=as_json)


def _put_document(namespace: Namespace, file: Path, kind: str, title: str | None, done: Done) -> None:
    objects = objects_of(namespace, read_document(namespace, file, inputs.bytes_of(file), kind, title))
    if len(objects) > produce_brain.MAX_BATCH:
        raise RejectedError(
            f"{file.name}: {len(objects)} parts, the limit is {produce_brain.MAX_BATCH}; split the file"
        )
    _count(done, produce_brain.put_many(namespace, objects, replace_parts=True, keep_times=True))
    done.documents.append(objects[0].id)
    done.parts += len(objects) - 1


def read_document(namespace: Namespace, file: Path, raw: bytes, kind: str, title: str | None = None) -> Document:
    """A file as a document; the same path always means the same object, and its time is that of the file."""
    return Document(
        document_id(namespace, str(file.absolute())),
        file.name,
        raw.decode("utf-8-sig", "replace"),
        kind,
        title,
        content_type_of(file.name),
        datetime.fromtimestamp(file.stat().st_mtime, UTC),
    )


def put_lines(namespace: Namespace, file: Path, kind: str, done: Done) -> None:
    """Whole objects first, then parts, then links: each may stand in the file before what it needs."""
    objects: list[NewObject] = []
    links: list[NewLink] = []
    with file.open("rb") as source:
        for line in object_lines.parse(inputs.lines(source, object_lines.LINE_LIMIT), namespace, kind):
            if isinstance(line, BadLine):
                done.bad.append((file.name, line.number, line.reason))
            elif isinstance(line.value, NewLink):
                links.append(line.value)
            else:
                objects.append(line.value)
    objects.sort(key=lambda new: new.parent_id is not None)
    for at in range(0, len(objects), _BATCH):
        _count(done, produce_brain.put_many(namespace, objects[at : at + _BATCH]))
    done.documents += [new.id for new in objects if new.parent_id is None]
    done.parts += sum(new.parent_id is not None for new in objects)
    for link in links:
        _put_link(namespace, link, done)


def _put_link(namespace: Namespace, link: NewLink, done: Done) -> None:
    key, meta = link.key, link.meta
    stored = produce_brain.link(
        namespace,
        key.source,
        key.target,
        key.label,
        note=meta.note,
        status=meta.status,
        role=meta.role,
        confidence=meta.confidence,
        evidence_id=meta.evidence_id,
    )
    done.operations.append(stored.operation_id)
    done.links += 1


def _count(done: Done, stored: produce_brain.Stored) -> None:
    done.operations.append(stored.operation_id)
    done.written += stored.written
    done.removed += stored.removed


def wait_for_all(operation_ids: Sequence[UUID]) -> int:
    """Wait until operations are final; returns how many are not when the time is over."""
    until = clock.monotonic() + _WAIT_S
    left = list(operation_ids)
    while left and clock.monotonic() < until:
        left = [i for i in left if not producers.operation(i).final]
        if left:
            clock.sleep(0.05)
    return len(left)


def tell_put(done: Done, left: int, *, as_json: bool) -> None:
    """Say what a `put` did."""
    if as_json:
        print_json(
            {
                "objects": done.documents,
                "parts": done.parts,
                "written": done.written,
                "removed": done.removed,
                "links": done.links,
                "operations": done.operations,
                "unfinished": left,
                "bad_lines": [{"file": file, "line": n, "reason": why} for file, n, why in done.bad],
            }
        )
    else:
        out.print(
            f"{counted(len(done.documents), 'object')} with {counted(done.parts, 'part')}, {counted(done.links, 'link')}: "
            f"{done.written} new or changed, {done.removed} taken out"
        )
        for document_id in done.documents[:_SHOWN_BAD]:
            out.print(f"  {document_id}", highlight=False)
        if done.bad:
            rows = [(escape(file), n, escape(why)) for file, n, why in done.bad[:_SHOWN_BAD]]
            out.print(table("Lines left out", ("file", "line", "reason"), rows, right=(1,)))
    if left:
        err.print(
            f"[yellow]{counted(left, 'operation')} still not ended: does a worker run? see `isotherm doctor`[/yellow]"
        )
        raise SystemExit(int(Exit.UNAVAILABLE))
    if done.bad:
        raise SystemExit(int(Exit.REFUSED))


def search(
    query: Annotated[str, typer.Argument(help="What to look for.")],
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="How many objects.")] = 10,
    kind: Annotated[list[str] | None, typer.Option("--kind", "-k", help="Only of this kind; may be repeated.")] = None,
    graph: Annotated[
        bool | None, typer.Option("--graph/--no-graph", help="Walk over edges from what is found and named, too.")
    ] = None,
    newest: Annotated[
        bool, typer.Option("--newest/--no-newest", help="What is newer comes before what it renews.")
    ] = True,
    as_json: JsonFlag = False,
) -> None:
    """Search the knowledge base by words and by meaning; a part stands for its document and is shown as evidence."""
    with errors_as_sentences():
        storage.open(ready())
        namespace = produce_brain.knowledge(agent, tenant=tenant)
        answer = produce_brain.search(namespace, query, limit=limit, kinds=kind or (), graph=graph, newest_first=newest)
        if as_json:
            print_json({"namespace": namespace_uuid(namespace), **answer_json(answer)})
        else:
            show_answer(query, answer)


def answer_json(answer: Answer) -> dict[str, Any]:
    """An answer for programs, with what each leg added to each score."""
    return {
        "degraded": list(answer.degraded),
        "truncated": answer.truncated,
        "walked": None if answer.walked is None else asdict(answer.walked),
        "objects": [_result_json(result) for result in answer.results],
    }


def _result_json(result: Result) -> dict[str, Any]:
    found = result.object
    return {
        "id": found.id,
        "kind": found.kind,
        "title": found.title,
        "summary": found.summary,
        "properties": found.properties,
        "revision": found.revision,
        "updated_at": found.updated_at,
        "score": result.score,
        "renewed_by": result.renewed_by,
        "legs": {
            name: {"score": share.score, "rank": share.rank, "added": share.added}
            for name, share in result.shares.items()
        },
        "evidence": [
            {"id": e.part_id, "title": e.title, "snippet": e.snippet, "score": e.score, "position": e.position}
            for e in result.evidence
        ],
    }


def show_answer(query: str, answer: Answer) -> None:
    """Print an answer, best first, each object with what each leg added and the parts that speak for it."""
    out.print(f"\n[bold]{clip(query, 120)}[/bold]")
    for result in answer.results:
        legs = ", ".join(f"{name} {share.added:.2f}" for name, share in sorted(result.shares.items()))
        out.print(
            f"  [bold]{result.score:.3f}[/bold]  {clip(result.object.title or '-', 80)}  "
            f"[dim]{escape(result.object.kind)} {result.object.id} · {legs}[/dim]",
            soft_wrap=True,
            highlight=False,
        )
        for each in result.evidence:
            head = f"[dim]{clip(each.title, 60)}:[/dim] " if each.title else ""
            out.print(Padding(head + clip(each.snippet, 200), (0, 0, 0, 9)), highlight=False)
        if result.renewed_by is not None:
            out.print(f"         [dim]newer: {result.renewed_by}[/dim]", highlight=False)
    if answer.walked is not None:
        told = answer.walked
        more = ", cut short" if told.truncated else ""
        out.print(f"  [dim]walked over {counted(told.edges, 'edge')} of {counted(told.expanded, 'object')}{more}[/dim]")
    if not answer.results:
        out.print("  nothing found")
    _warn(answer.degraded, truncated=answer.truncated)


def _warn(degraded: Iterable[str], *, truncated: bool) -> None:
    for part in degraded:
        err.print(f"[yellow]without {part}: it is out of reach[/yellow]")
    if truncated:
        err.print("[yellow]truncated: a limit may have hidden some[/yellow]")


def expand(
    object_id: Annotated[str, typer.Argument(metavar="ID", help="An object or a part.")],
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="Only these edges; may be repeated.")] = None,
    direction: Annotated[Direction, typer.Option(help="Which way edges are followed.")] = Direction.BOTH,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="Most parts, and most neighbors.")] = 50,
    as_json: JsonFlag = False,
) -> None:
    """Show what is around an object: its parts, or its place among them, and the objects it is linked to."""
    with errors_as_sentences():
        storage.open(ready())
        namespace = produce_brain.knowledge(agent, tenant=tenant)
        anchor = _uuid(object_id)
        found = produce_brain.expand(
            namespace, anchor, label, direction=direction, containment=label is None, limit=limit
        )
        if as_json:
            print_json(_expanded_json(found))
            return
        show_expanded(object_id, anchor, found)


def show_expanded(name: str, anchor: UUID, found: Expanded) -> None:
    """Print what is around an object as a table."""
    rows = [_related_row(item, anchor) for item in found.items]
    out.print(table(f"Around {escape(name)}", ("id", "kind", "title", "related by"), rows))
    _warn(found.degraded, truncated=found.truncated)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise RejectedError("id: a UUID is needed, as `search` shows it") from None


def _related_row(item: Related, anchor: UUID) -> tuple[str, ...]:
    arrows = {Direction.OUT: "→", Direction.IN: "←"}
    edges = [f"{arrows[r.direction]} {escape(r.edge.key.label)}" for r in item.relations]
    by = ", ".join(edges) or _held(item.object, anchor)
    return str(item.object.id), escape(item.object.kind), clip(item.object.title or "-", 60), by


def _held(found: Object, anchor: UUID) -> str:
    if found.parent_id == anchor:
        return "part of it"
    return "part of the same" if found.is_part else "holds it"


def _expanded_json(found: Expanded) -> dict[str, Any]:
    return {
        "mode": found.mode.value,
        "degraded": list(found.degraded),
        "truncated": found.truncated,
        "objects": [
            {
                "id": item.object.id,
                "kind": item.object.kind,
                "title": item.object.title,
                "parent_id": item.object.parent_id,
                "position": item.object.position,
                "relations": [
                    {
                        "label": r.edge.key.label,
                        "direction": r.direction.value,
                        "note": r.edge.meta.note,
                        "status": r.edge.meta.status,
                        "role": r.edge.meta.role,
                        "confidence": r.edge.meta.confidence,
                        "evidence_id": r.edge.meta.evidence_id,
                    }
                    for r in item.relations
                ],
            }
            for item in found.items
        ],
    }
