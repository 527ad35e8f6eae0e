"""`settings`: every setting with its default and meaning, for people, for programs and for the README."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo
from rich.markup import escape

from isotherm.storage.settings import Settings, settings
from isotherm.tasks.commands.output import JsonFlag, errors_as_sentences, out, print_json, table

_UNSET, _BUILT_IN = "unset", "built in"


def show_settings(
    *,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a table for a document, without values.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show every setting: its environment variable, its value here, its default and its meaning. Secrets stay hidden."""
    with errors_as_sentences():
        if markdown:
            print(as_markdown())  # noqa: T201 - a document, not styled output
            return
        chosen = settings()
        fields = Settings.model_fields.items()
        if as_json:
            print_json([_json(name, field, getattr(chosen, name)) for name, field in fields])
            return
        rows = [_row(name, field, getattr(chosen, name)) for name, field in fields]
        out.print(table("Settings", ("variable", "value", "default", "meaning"), rows, whole=(0,)))


def as_markdown() -> str:
    """The table of the README."""
    lines = ["| variable | default | meaning |", "| --- | --- | --- |"]
    plain = (_UNSET, _BUILT_IN)
    for name, field in Settings.model_fields.items():
        shown = _text(field.default)
        default = shown if shown in plain else f"`{shown}`"
        lines.append(f"| `{_variable(name)}` | {default} | {(field.description or '').replace('|', chr(92) + '|')} |")
    return "\n".join(lines)


def _variable(name: str) -> str:
    return f"ISOTHERM_{name.upper()}"


def _row(name: str, field: FieldInfo, value: object) -> tuple[str, ...]:
    now, default = _text(value), _text(field.default)
    marked = f"[green]{escape(now)}[/green]" if now != default else escape(now)
    return _variable(name), marked, f"[dim]{escape(default)}[/dim]", escape(field.description or "")


def _json(name: str, field: FieldInfo, value: object) -> dict[str, Any]:
    return {
        "variable": _variable(name),
        "value": _text(value),
        "default": _text(field.default),
        "meaning": field.description,
    }


def _text(value: object) -> str:
    """As it is written in the environment; a secret is only said to be there."""
    if value is None:
        return _UNSET
    if isinstance(value, SecretStr):
        return "set"
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return str(int(seconds) if seconds.is_integer() else seconds)
    if isinstance(value, BaseModel):
        return value.model_dump_json(exclude_defaults=True) if value != type(value)() else _BUILT_IN
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
