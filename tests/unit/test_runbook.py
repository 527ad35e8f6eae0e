"""The runbook knows every state, and every event and log line that an operator may be woken by."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isotherm.pipeline import events

_TOP = Path(__file__).parents[2]
RUNBOOK = (_TOP / "docs" / "runbook.md").read_text()
_LINE = re.compile(r"\blog\.(?:warning|error)\(\s*\"([a-z_.]+)\"")


def loud_events() -> list[str]:
    found = [e for e in vars(events).values() if isinstance(e, type) and issubclass(e, events.Event)]
    return sorted({e.name for e in found if e.name and e.level != "info"})


def loud_lines() -> list[str]:
    files = [f for folder in ("storage", "tasks") for f in sorted((_TOP / folder).rglob("*.py"))]
    return sorted({name for file in files for name in _LINE.findall(file.read_text())})


def states() -> list[str]:
    sql = "".join(f.read_text() for f in sorted((_TOP / "storage/postgres/migrations").glob("0001*.sql")))
    return sorted(set(re.findall(r"'([a-z]+)'", sql[sql.index("state IN (") :].split(")")[0])))


@pytest.mark.parametrize("name", [*loud_events(), *loud_lines()])
def test_runbook_has_a_row_for_every_event_above_info(name: str) -> None:
    assert f"| `{name}` |" in RUNBOOK


def test_runbook_has_a_row_for_every_final_state() -> None:
    assert len(loud_events()) > 5
    assert len(loud_lines()) > 8
    for state in {*states(), "partial", "accepted"} - {"pending"}:
        assert f"| `{state}` |" in RUNBOOK, state
