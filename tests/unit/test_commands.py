"""What every command has: JSON for programs, and a help that is shown whole on a narrow terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from commanding import isotherm

from isotherm.tasks.cli import app

# A show for people.
_WITHOUT_JSON = {("demo",)}


def _commands(of: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(of, "commands", {})
    if path and (not below or of.invoke_without_command):
        yield path, of
    for name, each in below.items():
        yield from _commands(each, (*path, name))


COMMANDS = dict(_commands(typer.main.get_command(app)))


def test_every_command_that_prints_something_can_print_json() -> None:
    without = {path for path, each in COMMANDS.items() if not any("--json" in p.opts for p in each.params)}
    assert without == _WITHOUT_JSON


def test_no_flag_has_an_opposite_that_means_nothing() -> None:
    assert "--no-version" not in isotherm("--help").stdout
    assert "--no-verbose" not in isotherm("--help").stdout


def test_no_word_of_a_help_is_lost_or_broken_where_the_source_breaks() -> None:
    assert "[ids]" in isotherm("eval", "--help").stdout
    told = isotherm("restore-db", "--help").stdout
    assert "A graph outside PostgreSQL is filled again" in " ".join(told.split())
    assert all(len(line.strip()) > 60 for line in told.splitlines() if line.strip().startswith("Stop workers"))
