"""The tick that brings objects of an earlier version their names, and their texts the edges to what they mention."""

from __future__ import annotations

from typing import Any

from isotherm.pipeline import stages
from isotherm.storage.postgres import brain_names, brain_write
from isotherm.tasks.catching_up import catch_up
from isotherm.tasks.ticks import tick

KIND = "brain.mention"
# Few at once: a new write must not wait behind an old library.
_ROWS = 1_000
_WAITING = 8


@tick(stages.BRAIN_UNNAMED)
def unnamed() -> dict[str, Any]:
    """Ask for the mentions of objects that nobody looked at yet, while the stage keeps up."""
    taken = catch_up(
        KIND,
        stages.BRAIN_MENTION,
        _WAITING,
        lambda conn: brain_names.take_unnamed(conn, _ROWS),
        brain_write.begin_mentions,
    )
    return {"objects": sum(map(len, taken.values()))}
