"""What the README says about settings, tasks and commands is what the code has."""

from __future__ import annotations

from pathlib import Path

import typer

from isotherm.pipeline import stages
from isotherm.tasks.cli import app
from isotherm.tasks.commands import config

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_table_of_settings_is_the_one_that_the_command_writes() -> None:
    _, _, rest = README.partition("<!-- settings -->\n")
    table, _, _ = rest.partition("\n<!-- /settings -->")
    assert table == config.as_markdown()


def test_every_task_stands_in_the_table_with_its_queue() -> None:
    rows = [line for line in README.splitlines() if line.startswith("| `")]
    for task, queue in stages.ROUTES.items():
        assert any(f"`{task}`" in row and f"| `{queue}` |" in row for row in rows), task


def test_every_command_is_mentioned() -> None:
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f"isotherm {name}" in README or f"make {name}" in README, name
