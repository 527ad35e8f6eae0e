from __future__ import annotations

from typing import TYPE_CHECKING

from brain_kit import KNOWLEDGE, check_brain, titles, uid
from harness import outbox_is_empty, tick_until

from isotherm.pipeline.brain.documents import Document
from isotherm.tasks import producers
from isotherm.tasks.graph import wait_mirrored
from isotherm.tasks.produce_brain import search
from isotherm.tasks.produce_import import import_files

if TYPE_CHECKING:
    from harness import Processes

    from isotherm.storage.opened import Storage


def test_files_go_as_a_chord_and_the_one_that_fails_stops_no_other(opened: Storage, processes: Processes) -> None:
    assert opened
    files = [Document(uid(n), f"file {n}", f"# Kelp {n}\n\nTwelve meters.") for n in range(1, 21)]
    files.append(Document(uid(21), "too long", "# a\n\nb\n\n" * 10_100))
    accepted = import_files(KNOWLEDGE, files)
    ready = processes.worker()
    tick_until(lambda: producers.operation(accepted.operation_id).final, 60, "the import")
    done = producers.operation(accepted.operation_id)
    assert done.state == "partial"
    assert done.result is not None
    assert (done.result["files"], done.result["failed_files"]) == (20, ["too long"])
    assert len(titles(search(KNOWLEDGE, "kelp", limit=50))) == 20
    wait_mirrored(accepted.operation_id)
    assert ready.output().count("brain.files_imported") == 1
    tick_until(outbox_is_empty)
    check_brain()
