from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from brain_kit import KNOWLEDGE, check_brain, new, titles, uid
from harness import outbox_is_empty, tick_until, wait_until

from isotherm.storage.models import factory
from isotherm.storage.postgres.pool import fetch_all
from isotherm.tasks import producers
from isotherm.tasks.produce_brain import expand, link, put_many, search

if TYPE_CHECKING:
    from harness import Processes

    from isotherm.storage.opened import Storage


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_EMBEDDER": "auto"}


def test_what_is_put_is_found_by_words_then_by_meaning_and_linked(opened: Storage, processes: Processes) -> None:
    if factory.embedder(opened.settings) is None:
        pytest.skip("the offline model is not installed")
    stored = put_many(
        KNOWLEDGE,
        [
            new(1, "Diving log"),
            new(2, "", "The kelp forest begins twelve meters below the surface.", parent=1, position=0),
            new(3, "", "Invoices are paid within thirty days.", parent=1, position=1),
            new(4, "Office manual", "Printers need paper."),
        ],
    )
    assert titles(search(KNOWLEDGE, "kelp"))[0] == "Diving log"
    linked = link(KNOWLEDGE, uid(1), uid(4), "kept_in", note="second shelf")
    processes.worker()
    for done in (stored, linked):
        tick_until(lambda: producers.operation(done.operation_id).final, 60, "the operation")  # noqa: B023
        assert producers.operation(done.operation_id).state == "done"
    assert fetch_all("SELECT DISTINCT vector_state, vector_dim FROM brain_objects") == [("done", 384)]
    # None of these words stands in the text.
    [best, *_] = search(KNOWLEDGE, "seaweed underwater depth").results
    assert best.object.title == "Diving log"
    assert best.evidence[0].part_id == uid(2)
    found = expand(KNOWLEDGE, uid(1), None, containment=True)
    assert [item.object.id for item in found.items] == [uid(2), uid(3), uid(4)]
    assert found.items[2].relations[0].edge.meta.note == "second shelf"
    wait_until(lambda: producers.operation(stored.operation_id).final)
    tick_until(outbox_is_empty)
    check_brain()
