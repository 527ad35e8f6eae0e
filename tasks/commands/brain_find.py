"""`kinds`, `get`, `find`, `links`: the knowledge base looked up by name, id, property and note."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.markup import escape
from rich.padding import Padding

from isotherm import storage
from isotherm.pipeline.brain.answers import LinkHit
from isotherm.pipeline.brain.errors import InvalidError, KindError
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.kinds import KindSpec
from isotherm.pipeline.brain.objects import Object, namespace_uuid
from isotherm.tasks import produce_brain
from isotherm.tasks.commands.brain import Agent, Tenant, answer_json, show_answer
from isotherm.tasks.commands.inputs import bytes_of, json_of
from isotherm.tasks.commands.output import JsonFlag, clip, err, errors_as_sentences, out, print_json, ready, table

_OPERATORS = ("<=", ">=", "<", ">", "=")
_NAMES = {"<=": "lte", ">=": "gte", "<": "lt", ">": "gt"}

Where = Annotated[
    list[str] | None,
    typer.Option("--where", "-w", help="Property, such as stage=open or 'amount>=10'; may be repeated."),
]
Kind = Annotated[list[str] | None, typer.Option("--kind", "-k", help="Only of this kind; may be repeated.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="How many.")]


def kinds(
    *,
    apply: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="JSON list of kinds that replace the stored ones.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the kinds of objects and their properties, or store others."""
    with errors_as_sentences():
        engine = storage.open(ready()).brain
        if apply is not None:
            engine.apply_kinds(_kinds_of(apply))
        found = engine.schema().kinds
        if as_json:
            print_json({"kinds": [spec.to_json() for spec in found]})
            return
        rows = [(escape(s.kind), _place(s), _fields(s), clip(s.description, 60)) for s in found]
        out.print(table("Kinds", ("kind", "objects are", "properties", "what for"), rows))


def read(
    object_id: Annotated[str, typer.Argument(metavar="ID", help="An object or a part.")],
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    as_json: JsonFlag = False,
) -> None:
    """Show one object with its whole text and the names of its parts."""
    with errors_as_sentences():
        storage.open(ready())
        namespace = produce_brain.knowledge(agent, tenant=tenant)
        found = produce_brain.read(namespace, _uuid(object_id))
        parts = [] if found.is_part else produce_brain.list_children(namespace, found.id)
        if as_json:
            print_json({**_object_json(found), "content": found.content, "parts": [part.id for part in parts]})
            return
        out.print(f"[bold]{escape(found.title or '-')}[/bold]  [dim]{escape(found.kind)} {found.id}[/dim]")
        for name, value in sorted(found.properties.items()):
            out.print(f"  {escape(name)}: {escape(json.dumps(value, ensure_ascii=False))}", highlight=False)
        for text in (found.summary, found.content):
            if text:
                out.print(Padding(escape(text), (1, 0, 0, 2)), highlight=False)
        if parts:
            rows = [(part.id, part.position, clip(part.title or "-", 80)) for part in parts]
            out.print(table("Parts", ("id", "position", "title"), rows, right=(1,)))


def find(
    query: Annotated[str, typer.Argument(help="A title, an id, or the value of a declared property.")],
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    limit: Limit = 10,
    kind: Kind = None,
    where: Where = None,
    objects: Annotated[bool, typer.Option("--objects", help="Whole objects by what they say, not by name.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Find objects by name: what is called just so first, then what is called nearly so."""
    with errors_as_sentences():
        engine = storage.open(ready()).brain
        if not engine.catalog.frozen:
            engine.load_kinds()
        namespace = produce_brain.knowledge(agent, tenant=tenant)
        filters = Filters.of(kind or (), _properties(where or ()))
        verb = produce_brain.find_objects if objects else produce_brain.find_exact
        answer = verb(namespace, query, limit=limit, filters=filters)
        if as_json:
            print_json({"namespace": namespace_uuid(namespace), **answer_json(answer)})
        else:
            show_answer(query, answer)


def links(
    label: Annotated[str, typer.Argument(help="Label of the edges.")],
    query: Annotated[str, typer.Argument(help="What their notes are about.")],
    *,
    agent: Agent = "default",
    tenant: Tenant = None,
    limit: Limit = 10,
    as_json: JsonFlag = False,
) -> None:
    """Find edges between objects by what their notes say."""
    with errors_as_sentences():
        storage.open(ready())
        found = produce_brain.find_links(produce_brain.knowledge(agent, tenant=tenant), label, query, limit=limit)
        if as_json:
            print_json({"truncated": found.truncated, "links": [_link_json(hit) for hit in found.links]})
            return
        rows = [
            (clip(hit.source.title or "-", 40), escape(hit.edge.key.label), clip(hit.target.title or "-", 40),
             clip(hit.edge.meta.note, 80)) for hit in found.links
        ]  # fmt: skip
        if not rows:
            out.print("no such links are found")
            return
        out.print(table("Links", ("from", "label", "to", "note"), rows))
        if found.truncated:
            err.print("[yellow]truncated: there are more, see --limit[/yellow]")


def _kinds_of(file: Path) -> list[KindSpec]:
    read = json_of(bytes_of(file), file.name)
    if not isinstance(read, list) or not all(isinstance(each, dict) for each in read):
        raise KindError(f"{file.name}: a list of kinds is needed")
    return [KindSpec.of_json(each) for each in read]


def _place(spec: KindSpec) -> str:
    if spec.is_parent == spec.is_part:
        return "any"
    return "whole" if spec.is_parent else "parts"


def _fields(spec: KindSpec) -> str:
    return ", ".join(f"{each.name}: {each.type}{'!' if each.required else ''}" for each in spec.fields)


def _properties(where: Sequence[str]) -> dict[str, Any]:
    """Properties as typed on a command line: values are JSON where they can be, else text."""
    found: dict[str, Any] = {}
    for each in where:
        sign = min((s for s in _OPERATORS if s in each), key=lambda s: (each.index(s), -len(s)), default=None)
        if sign is None:
            raise InvalidError("--where: name=value, name<value or name>=value is needed")
        name, _, value = each.partition(sign)
        if sign == "=":
            found[name.strip()] = _typed(value)
        else:
            found.setdefault(name.strip(), {})[_NAMES[sign]] = _typed(value)
    return found


def _typed(value: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(value)
    except ValueError:
        return value
    except RecursionError:
        raise InvalidError("--where: a value is nested too deeply") from None


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise InvalidError("id: a UUID is needed, as `search` shows it") from None


def _object_json(found: Object) -> dict[str, Any]:
    names = ("id", "kind", "title", "summary", "content_type", "properties", "parent_id", "position", "revision",
             "vector_state", "created_at", "updated_at", "source_time")  # fmt: skip
    return {name: getattr(found, name) for name in names}


def _link_json(hit: LinkHit) -> dict[str, Any]:
    meta = hit.edge.meta
    return {
        "source": _object_json(hit.source),
        "target": _object_json(hit.target),
        "label": hit.edge.key.label,
        "note": meta.note,
        "status": meta.status,
        "role": meta.role,
        "confidence": meta.confidence,
        "evidence_id": meta.evidence_id,
        "score": hit.score,
    }
