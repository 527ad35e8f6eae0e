"""Rows of the specification about stores that outlive a process."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tier_stores import NS, T0, Opened, record

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.tier import heat, portable
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.lines import write_line
from isotherm.pipeline.tier.manager import Manager
from isotherm.pipeline.tier.memory_store import MemoryStore
from isotherm.pipeline.tier.messages import ChatMessage, message_of, message_record
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.s3 import Bucket
from isotherm.storage.tier_stores.folder import FolderStore
from isotherm.storage.tier_stores.postgres import PostgresStore
from isotherm.tasks import produce_records, producers

if TYPE_CHECKING:
    from isotherm.pipeline.tier.store import Store


def keeps_counts_and_deletes(store: Store) -> None:
    store.put(NS, record("cold-1", "kept whole", tier=Tier.COLD))
    found = store.get(NS, "cold-1")
    assert found is not None
    assert found.content == "kept whole"
    assert [r.id for r in store.list(NS, Tier.COLD)] == ["cold-1"]
    assert store.delete(NS, "cold-1")
    assert (store.get(NS, "cold-1"), store.count(NS, Tier.COLD)) == (None, 0)
    store.put(NS, record("cold-1", "kept whole", tier=Tier.COLD))
    assert store.count(NS, Tier.COLD) == 1


def test_tier_t45_a_message_remembered_in_one_process_is_recalled_in_another(opened: Opened) -> None:
    message = ChatMessage(role="user", content="the tide table is wrong", time=T0 - timedelta(hours=1))
    first = Manager(opened.postgres(Tier.WARM), Policy.single_level(), clock=lambda: T0)
    first.remember(NS, message_record(NS, message, 0))
    held = opened.request.getfixturevalue("kept_storage")
    store = PostgresStore(held.tier, held.patience, held.blobs, level=Tier.WARM)
    (item,) = Manager(store, Policy.single_level(), clock=lambda: T0).recall(NS, "", RecallBudget(total=10)).items
    assert (item.record.tier, message_of(item.record)) == (Tier.WARM, message)


def test_tier_t46_a_store_of_one_level_keeps_everything_there(opened: Opened) -> None:
    store = opened.postgres(Tier.WARM)
    store.put(NS, record("r1", tier=Tier.HOT))
    for other in (Tier.HOT, Tier.COLD):
        assert (list(store.list(NS, other)), store.count(NS, other)) == ([], 0)
    assert ([r.tier for r in store.list(NS, Tier.WARM)], store.count(NS, Tier.WARM)) == ([Tier.WARM], 1)


def test_tier_t49_a_cold_folder_keeps_counts_and_deletes(opened: Opened) -> None:
    keeps_counts_and_deletes(opened.cold_folder())
    for blank in ("", " "):
        with pytest.raises(RejectedError, match="name"):
            FolderStore(Path(blank))


def test_tier_t50_a_cold_bucket_keeps_counts_and_deletes(opened: Opened) -> None:
    """Its index lies in the bucket too, so that what must have a name is the bucket."""
    keeps_counts_and_deletes(opened.s3())
    for blank in ("", " "):
        with pytest.raises(RejectedError, match="name"):
            Bucket(blank)


def test_tier_t62_a_message_is_the_same_record_whoever_makes_it(opened: Opened) -> None:
    opened.request.getfixturevalue("kept_storage")
    line = TranscriptLine(1, "atlas", "s1", None, "user", "hello world", T0)
    said = ChatMessage(role="user", content="hello world", time=T0)
    by_pipeline = produce_records.message_record(NS, line).cleaned()
    assert by_pipeline == message_record(NS, said, 0)
    assert message_of(by_pipeline) == said


def test_what_the_library_exports_the_pipeline_takes_in_and_the_other_way_round(opened: Opened) -> None:
    opened.postgres()
    rows = [
        record("hot", age=3, role="user", metadata={"b": 1, "a": [None]}),
        record("used", age=2, tier=Tier.WARM, access_count=1, heat_log=heat.heat_log_of(T0), moved_at=T0),
        record("cold", "kelp forest " * 900, age=1, tier=Tier.COLD, summary="kelp", moved_from=Tier.WARM, moved_at=T0),
    ]
    library = Manager(MemoryStore(), clock=lambda: T0)
    lines = [write_line(NS, row) for row in rows]
    assert library.import_lines(lines) == 3
    assert list(library.export(NS)) == lines
    assert producers.import_records([portable.read_line(line.encode()) for line in lines]).written == 3
    assert list(producers.export(NS)) == lines


@pytest.mark.parametrize("kind", ["folder", "s3"])
def test_tier_x21_weak_06_names_that_look_alike_never_share_a_file(opened: Opened, kind: str) -> None:
    store = opened.open(kind)
    names = ["a:b", "a_b", "a/b", "a%3Ab", "äöü", "日本語", "é", "e\u0301", "x" * 512]
    for name in names:
        store.put(NS, record(name, f"text of {name}", tier=Tier.COLD))
    assert store.count(NS, Tier.COLD) == len(names)
    for name in names:
        found = store.get(NS, name)
        assert found is not None
        assert found.content == f"text of {name}"
