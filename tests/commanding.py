"""The command run in the test's own process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from isotherm.tasks.cli import app


@dataclass(frozen=True)
class Done:
    """How a command ended and what it printed."""

    returncode: int
    stdout: str
    stderr: str


def isotherm(*arguments: str, text: str | None = None, columns: int = 120) -> Done:
    ended = CliRunner(env={"COLUMNS": str(columns)}).invoke(app, arguments, input=text)
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return Done(ended.exit_code, ended.stdout, ended.stderr)


def answer(*arguments: str) -> Any:
    """What a command prints for programs."""
    done = isotherm(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
