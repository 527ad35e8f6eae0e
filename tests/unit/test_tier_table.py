from __future__ import annotations

from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from rich.console import Console

from isotherm.tasks.commands import tiers

OLDEST = datetime.now(UTC) - timedelta(days=111, hours=16)


@pytest.mark.parametrize("width", [80, 100, 160])
def test_depths_fit_a_terminal_with_whole_agents_and_a_bar(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    shown = Console(width=width, file=StringIO())
    monkeypatch.setattr(tiers, "out", shown)
    depths = [
        {
            "agent": "forge",
            "session": session,
            "run": None,
            "scope": "session",
            "tiers": {
                t: {"records": n, "bytes": 900, "oldest_access": OLDEST} for t, n in (("hot", 6), ("cold", count))
            },
            "due_at": None,
        }
        for session, count in (("salinity-incident", 8), ("s2", 0))
    ]
    shown.print(tiers.depth_table("Tiers", depths))
    lines = shown.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if line.lstrip().startswith("forge")]
    assert len(rows) == 2
    assert all("session" in row and "111 d 16 h" in row and "█" in row for row in rows)
    assert rows[0].count("█") > rows[1].count("█")
