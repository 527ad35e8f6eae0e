"""Stages of an import: each file becomes an object with parts in a step of its own, and a last step sums up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from isotherm import storage
from isotherm.pipeline import stages
from isotherm.pipeline.brain.documents import objects_of
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.events import FilesImported, ObjectsStored
from isotherm.pipeline.work import StepState
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_imports, brain_write, operations
from isotherm.storage.postgres.brain_write import Put
from isotherm.storage.postgres.operations import NewOperation
from isotherm.storage.postgres.pool import connection
from isotherm.tasks.publish import publish_after_commit
from isotherm.tasks.stage import claimed, stage_task, tell

KIND: Final = "brain.import"
# A document of more parts is a data set; it is given as JSON Lines.
MOST_PARTS: Final = 10_000
_NAMED = 100
_SUPERSEDED: Final = {"parts": 0, "written": 0, "removed": 0, "superseded": 1}


@stage_task(stages.BRAIN_IMPORT)
def import_file(payload: dict[str, Any]) -> dict[str, Any]:
    """Store one file as an object with parts; parts of an earlier version that are no longer there are taken out.

    Where a newer text of the same object was stored meanwhile, that one stays.
    """
    with claimed(payload) as step:
        opened = storage.open()
        with connection() as conn:
            waiting = brain_imports.get(conn, int(step.input["file"]))
            if waiting is None:
                step.settle(conn, _SUPERSEDED)
                return step.receipt
        objects = objects_of(waiting.namespace, waiting.document)
        if len(objects) > MOST_PARTS:
            raise RejectedError(f"more than {MOST_PARTS} parts; split the file")
        checked = [opened.brain.catalog.validate(each.cleaned()) for each in objects]
        embeds = factory.embedder(opened.settings) is not None
        wanted = Put(waiting.place, checked, replace_parts=True, embeds=embeds, now=datetime.now(UTC), keep_times=True)
        under = NewOperation(step.operation_id, KIND, step.trace_id)
        with connection() as conn:
            if not brain_imports.take(conn, int(step.input["file"]), waiting):
                step.settle(conn, _SUPERSEDED)
                return step.receipt
            done = brain_write.store(conn, under, wanted, opened.patience, unit=step.unit)
            step.settle(conn, {"parts": len(objects) - 1, "written": done.written, "removed": done.removed})
        publish_after_commit(list(done.messages))
        tell(step, ObjectsStored(done.written, done.removed))
    return step.receipt


@stage_task(stages.BRAIN_IMPORT_REPORT)
def report(payload: dict[str, Any]) -> dict[str, Any]:
    """Sum up an import from its steps, and name the files that could not be stored."""
    with claimed(payload) as step:
        with connection() as conn:
            files = [row for row in operations.steps_of(conn, step.operation_id) if row.stage == stages.BRAIN_IMPORT]
            done = [row.receipt or {} for row in files if row.state == StepState.DONE]
            failed = [row.unit for row in files if row.state != StepState.DONE]
            totals = {name: sum(int(r.get(name, 0)) for r in done) for name in ("parts", "written", "removed")}
            receipt = {"files": len(done), "failed": len(failed), "failed_files": failed[:_NAMED], **totals}
            step.settle(conn, receipt, is_result=True)
        tell(step, FilesImported(len(done), len(failed)))
    return step.receipt
