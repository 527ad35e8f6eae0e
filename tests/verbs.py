"""Every verb of the command, read from the command itself, and a run of one as its own process would do it."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import typer

from isotherm.tasks import cli

_HELP = "--help"


@dataclass(frozen=True)
class Verb:
    """A verb: its words, the arguments it takes, those it demands, its options with a value, its switches."""

    words: tuple[str, ...]
    arguments: tuple[str, ...]
    needed: int
    options: tuple[str, ...]
    switches: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.words)

    def line(self, *options: str, argument: str = "x", **given: str) -> list[str]:
        """The words of a call. Args: argument: for each that is demanded; given: others by name."""
        values = [given.get(name, argument) for name in self.arguments[: max(self.needed, len(given))]]
        # What follows the two hyphens is an argument whatever it begins with.
        return [*self.words, *options, "--", *values]


# To make the command takes longer than to run most of its verbs.
_made = cache(typer.main.get_command)


def verbs() -> list[Verb]:
    """All of them, in the order of their words."""
    return list(_below(_made(cli.app), ()))


def _below(command: Any, words: tuple[str, ...]) -> Iterator[Verb]:
    within = getattr(command, "commands", None) or {}
    if not within or command.invoke_without_command:
        yield _verb(command, words)
    for name, each in sorted(within.items()):
        yield from _below(each, (*words, name))


def _verb(command: Any, words: tuple[str, ...]) -> Verb:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and _HELP not in p.opts]
    return Verb(
        words,
        tuple(str(p.name) for p in arguments),
        sum(bool(p.required) for p in arguments),
        tuple(p.opts[0] for p in options if not p.is_flag),
        tuple(name for p in options if p.is_flag for name in (*p.opts, *p.secondary_opts) if name.startswith("--")),
    )


@dataclass(frozen=True)
class Ended:
    """How a call ended and what it wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def said(self) -> str:
        return self.stdout + self.stderr


def call(*line: str, stdin: bytes = b"") -> Ended:
    """Run the command's main function with streams like those of a process: strict out, escaping err, strict in."""
    out, err = io.BytesIO(), io.BytesIO()
    streams = {
        "stdin": io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"),
        "stdout": io.TextIOWrapper(out, encoding="utf-8", write_through=True),
        "stderr": io.TextIOWrapper(err, encoding="utf-8", errors="backslashreplace", write_through=True),
    }
    code: Any = 0
    with mock.patch.multiple(sys, argv=["isotherm", *line], **streams), mock.patch("typer.main.get_command", _made):
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code
        streams["stdout"].flush()
        told = out.getvalue().decode(), err.getvalue().decode()
    return Ended(int(code or 0), *told)
