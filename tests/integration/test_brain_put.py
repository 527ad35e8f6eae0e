from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from brain_kit import KNOWLEDGE, OTHER, check_brain, new, settle, titles, uid
from hash_embedder import HashEmbedder
from inprocess import drive

from isotherm.pipeline import stages
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_write
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import brain, producers
from isotherm.tasks.produce_brain import link, put, put_many, read, search, soft_delete, unlink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.storage.opened import Storage


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture
def embedder(memory: Storage) -> Iterator[HashEmbedder]:
    own = HashEmbedder()
    factory.use_embedder(memory.settings, own)
    yield own
    factory._made.forget()
    check_brain()


pytestmark = pytest.mark.usefixtures("embedder")


def states() -> dict[int, str]:
    rows = fetch_all("SELECT id, vector_state FROM brain_objects ORDER BY id")
    return {int(row[0]) - (1 << 100): row[1] for row in rows}


def test_brain_w01_an_object_is_put_read_and_deleted() -> None:
    """Deleted, it is not there; the original said ErrNotFound."""
    stored = put(KNOWLEDGE, "note", title="Kelp", content="grows fast", properties={"depth": 12.0})
    found = read(KNOWLEDGE, stored.ids[0])
    assert (found.title, found.content, found.properties, found.revision) == ("Kelp", "grows fast", {"depth": 12.0}, 1)
    assert found.vector_state == "pending"
    soft_delete(KNOWLEDGE, stored.ids[0])
    with pytest.raises(RejectedError, match=str(stored.ids[0])):
        read(KNOWLEDGE, stored.ids[0])
    with pytest.raises(RejectedError, match="no object"):
        soft_delete(KNOWLEDGE, stored.ids[0])


def test_brain_weak_14_an_object_is_found_by_its_words_before_any_worker_ran() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp", "grows at twelve meters"), new(2, "Moss", "grows on stone")])
    assert titles(search(KNOWLEDGE, "twelve meters"))[0] == "Kelp"
    assert states() == {1: "pending", 2: "pending"}


def test_brain_w04_objects_and_parts_get_vectors_and_promote_to_the_object(embedder: HashEmbedder) -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "Depth", "twelve meters", parent=1)])
    assert sorted(drive()) == [stages.BRAIN_EMBED, stages.BRAIN_MENTION, stages.BRAIN_MIRROR]
    assert states() == {1: "done", 2: "done"}
    assert embedder.asked == ["Kelp", "Kelp\nDepth\ntwelve meters"]
    [result] = search(KNOWLEDGE, "meters").results
    assert (result.object.title, [e.part_id for e in result.evidence]) == ("Kelp", [uid(2)])
    assert {"lexical", "vector"} == set(result.best.shares)


def test_text_that_did_not_change_is_not_embedded_again(embedder: HashEmbedder) -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp", "grows"), new(2, "Moss", "waits")])
    settle()
    embedder.asked.clear()
    again = put_many(KNOWLEDGE, [new(1, "Kelp", "grows", kind="plant"), new(2, "Moss", "waits")])
    assert again.written == 1
    assert settle() == [stages.BRAIN_MIRROR, stages.BRAIN_MENTION]
    assert embedder.asked == []
    assert states() == {1: "done", 2: "done"}
    assert [read(KNOWLEDGE, uid(n)).revision for n in (1, 2)] == [2, 1]
    put_many(KNOWLEDGE, [new(1, "Kelp", "grows slowly", kind="plant")])
    assert states() == {1: "pending", 2: "done"}
    settle()
    assert embedder.asked == ["Kelp\ngrows slowly"]


def test_an_object_put_again_unchanged_keeps_its_revision_and_time() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp", "grows")])
    before = read(KNOWLEDGE, uid(1))
    assert put_many(KNOWLEDGE, [new(1, "Kelp", "grows")]).written == 0
    assert read(KNOWLEDGE, uid(1)) == before


def test_brain_w08_weak_11_a_new_title_of_an_object_reaches_the_words_and_vectors_of_its_parts(
    embedder: HashEmbedder,
) -> None:
    put_many(KNOWLEDGE, [new(1, "Old"), new(2, "", "text of the part", parent=1), new(3, "", "more text", parent=1)])
    settle()
    before = read(KNOWLEDGE, uid(2))
    put_many(KNOWLEDGE, [new(1, "Fresh Name")])
    assert search(KNOWLEDGE, "old").results == () or all(
        not r.best.shares.get("lexical") for r in search(KNOWLEDGE, "old").results
    )
    [result] = search(KNOWLEDGE, "fresh part").results
    assert result.evidence[0].part_id == uid(2)
    assert states() == {1: "pending", 2: "pending", 3: "pending"}
    embedder.asked.clear()
    settle()
    assert sorted(embedder.asked) == ["Fresh Name", "Fresh Name\nmore text", "Fresh Name\ntext of the part"]
    after = read(KNOWLEDGE, uid(2))
    assert (after.revision, after.updated_at, after.vector_state) == (before.revision, before.updated_at, "done")


def test_brain_w09_weak_09_deleting_an_object_deletes_its_parts_and_putting_it_again_brings_it_back() -> None:
    """The original left the parts live."""
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "", "twelve meters", parent=1), new(3, "Moss", "twelve")])
    settle()
    deleted = soft_delete(KNOWLEDGE, uid(1))
    assert deleted.removed == 2
    assert titles(search(KNOWLEDGE, "twelve")) == ["Moss"]
    put_many(KNOWLEDGE, [new(1, "Kelp")])
    assert read(KNOWLEDGE, uid(1)).revision == 3
    with pytest.raises(RejectedError, match="no object"):
        read(KNOWLEDGE, uid(2))
    put_many(KNOWLEDGE, [new(2, "", "twelve meters", parent=1)])
    assert sorted(titles(search(KNOWLEDGE, "twelve"))) == ["Kelp", "Moss"]


def test_brain_w10_weak_05_an_id_of_another_namespace_is_not_there_and_is_not_taken_over() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp", "ours")])
    put_many(OTHER, [new(7, "Other", "theirs")])
    for attempt in (
        lambda: soft_delete(OTHER, uid(1)),
        lambda: read(OTHER, uid(1)),
        lambda: put_many(OTHER, [new(2, "", "a part", parent=1)]),
        lambda: link(OTHER, uid(7), uid(1), "about"),
    ):
        with pytest.raises(RejectedError):
            attempt()
    put_many(OTHER, [new(1, "Moss", "theirs")])
    assert read(KNOWLEDGE, uid(1)).content == "ours"
    assert read(OTHER, uid(1)).content == "theirs"


PLACES: list[tuple[list[Any], str]] = [
    ([new(2, "", "x", parent=9)], "parent"),
    ([new(3, "", "x", parent=2)], "parent"),
    ([new(1, "", "x", parent=4)], "become a part"),
    ([new(2, "now whole")], "become a part"),
]


@pytest.mark.parametrize(("objects", "reason"), PLACES)
def test_brain_weak_10_parts_belong_to_live_whole_objects_and_stay_parts(objects: list[Any], reason: str) -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "", "part", parent=1), new(4, "Moss")])
    before = fetch_all("SELECT * FROM brain_objects ORDER BY id")
    with pytest.raises(RejectedError, match=reason):
        put_many(KNOWLEDGE, objects)
    assert fetch_all("SELECT * FROM brain_objects ORDER BY id") == before


def test_replacing_parts_takes_out_those_that_are_not_given_again() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp"), *[new(n, "", f"part {n}", parent=1) for n in (2, 3, 4)]])
    done = put_many(
        KNOWLEDGE, [new(1, "Kelp"), new(2, "", "part 2", parent=1), new(3, "", "other", parent=1)], replace_parts=True
    )
    assert (done.written, done.removed) == (1, 1)
    rows = fetch_all("SELECT content FROM brain_objects WHERE deleted_at IS NULL ORDER BY id")
    assert rows == [("",), ("part 2",), ("other",)]


def test_brain_weak_07_expected_revisions_guard_against_lost_updates() -> None:
    put_many(KNOWLEDGE, [new(1, "one", expected_revision=0)])
    with pytest.raises(RejectedError, match="has revision 1, not 0"):
        put_many(KNOWLEDGE, [new(1, "two", expected_revision=0)])
    put_many(KNOWLEDGE, [new(1, "two", expected_revision=1)])
    with pytest.raises(RejectedError, match="has revision 2, not 1"):
        soft_delete(KNOWLEDGE, uid(1), expected_revision=1)
    soft_delete(KNOWLEDGE, uid(1), expected_revision=2)
    put_many(KNOWLEDGE, [new(1, "three", expected_revision=0)])
    assert read(KNOWLEDGE, uid(1)).revision == 4


def test_brain_weak_02_a_key_makes_a_put_safe_to_repeat_and_is_refused_with_another_body() -> None:
    first = put(KNOWLEDGE, "note", title="Kelp", key="k1")
    again = put(KNOWLEDGE, "note", title="Kelp", key="k1")
    assert (again.operation_id, again.ids, again.new, again.written) == (first.operation_id, first.ids, False, 0)
    with pytest.raises(RejectedError, match="another body"):
        put(KNOWLEDGE, "note", title="Moss", key="k1")
    elsewhere = put(OTHER, "note", title="Moss", key="k1")
    assert elsewhere.new
    assert elsewhere.ids != first.ids


def test_writers_that_meet_on_new_and_known_objects_all_get_through() -> None:
    def write(n: int) -> int:
        done = put_many(
            KNOWLEDGE, [new(i, f"title {n}", f"text {n}") for i in (range(1, 6) if n % 2 else range(5, 0, -1))]
        )
        return done.written

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(write, range(12))) == [5] * 12
    assert {read(KNOWLEDGE, uid(i)).revision for i in range(1, 6)} == {12}
    settle()


def test_a_writer_that_finds_itself_overtaken_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, tries = brain_write.writing.plan_put, []

    def overtaken(*args: Any, **more: Any) -> Any:
        plan = plain(*args, **more)
        tries.append(1)
        if len(tries) == 1:
            put_many(KNOWLEDGE, [new(1, "faster")])
        return plan

    monkeypatch.setattr(brain_write.writing, "plan_put", overtaken)
    put_many(KNOWLEDGE, [new(1, "slower")])
    assert len(tries) == 3
    assert (read(KNOWLEDGE, uid(1)).title, read(KNOWLEDGE, uid(1)).revision) == ("slower", 2)


def test_one_text_that_the_model_refuses_does_not_keep_the_others_from_their_vectors(
    embedder: HashEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = embedder.embed

    def picky(texts: list[str]) -> Any:
        if any("unspeakable" in one for one in texts):
            raise RejectedError("a text was refused")
        return plain(texts)

    monkeypatch.setattr(embedder, "embed", picky)
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "unspeakable"), new(3, "Moss")])
    drive()
    assert states() == {1: "done", 2: "failed", 3: "done"}


def test_an_answer_that_was_stored_is_not_asked_for_again(
    embedder: HashEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = put_many(KNOWLEDGE, [new(1, "Kelp")])

    def fails(*_: object) -> None:
        raise TransientError("a lock is busy")

    with monkeypatch.context() as patched:
        patched.setattr(brain.brain_vectors, "write", fails)
        [(step, trace)] = fetch_all(
            "SELECT s.id, o.trace_id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id WHERE stage = 'brain.embed'"
        )
        job = {"step_id": step, "operation_id": str(stored.operation_id), "trace_id": str(trace)}
        assert brain.embed(job)["state"] == "postponed"
    with connection() as conn:
        conn.execute("UPDATE operation_steps SET not_before = now()")
    settle()
    assert embedder.asked == ["Kelp"]
    assert states() == {1: "done"}


def test_a_text_that_changed_while_it_was_embedded_keeps_waiting_for_its_own_vector(
    embedder: HashEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp")])
    plain = embedder.embed

    def slow(texts: list[str]) -> Any:
        if texts == ["Kelp"]:
            put_many(KNOWLEDGE, [new(1, "Moss")])
        return plain(texts)

    monkeypatch.setattr(embedder, "embed", slow)
    settle()
    assert states() == {1: "done"}
    [(vector,)] = fetch_all("SELECT vector FROM brain_objects")
    assert vector.to_list() == pytest.approx(plain(["Moss"])[0].tolist(), abs=1e-3)


def test_a_parent_that_is_deleted_while_its_part_is_embedded_takes_the_part_along(
    embedder: HashEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "", "twelve meters", parent=1)])
    plain = embedder.embed
    deleted: list[int] = []

    def slow(texts: list[str]) -> Any:
        if not deleted:
            deleted.append(soft_delete(KNOWLEDGE, uid(1)).removed)
        return plain(texts)

    monkeypatch.setattr(embedder, "embed", slow)
    settle()
    assert deleted == [2]
    assert fetch_all("SELECT count(*) FROM brain_objects WHERE deleted_at IS NULL OR vector IS NOT NULL") == [(0,)]
    assert titles(search(KNOWLEDGE, "twelve meters")) == []
    assert not fetch_all("SELECT 1 FROM operations WHERE finished_at IS NULL OR state <> 'done'")


# A longer form: ISOTHERM_ROUNDS=200.
WRITERS, ROUNDS, OBJECTS = 8, int(os.environ.get("ISOTHERM_ROUNDS", "12")), 6
_DANGLING = """
SELECT count(*) FROM graph_edges AS e WHERE NOT EXISTS (
    SELECT 1 FROM graph_nodes AS n WHERE n.namespace = e.namespace AND n.id = e.{end})"""


def test_writers_and_deleters_that_overlap_meet_no_deadlock_and_leave_no_dangling_edge(memory: Storage) -> None:
    assert memory

    def write(seed: int) -> int:
        drawn = Random(seed)
        for _ in range(ROUNDS):
            some = drawn.sample(range(1, OBJECTS + 1), 3)
            with suppress(RejectedError):  # the object is not there just now
                if drawn.random() < 0.3:
                    soft_delete(KNOWLEDGE, uid(some[0]))
                elif drawn.random() < 0.5:
                    link(KNOWLEDGE, uid(some[0]), uid(some[1]), "about")
                else:
                    parts = [new(10 * n, "", f"part {drawn.random()}", parent=n) for n in some]
                    put_many(KNOWLEDGE, [*(new(n, f"title {drawn.random()}") for n in some), *parts])
        return seed

    with ThreadPoolExecutor(WRITERS) as pool:
        assert sorted(pool.map(write, range(WRITERS))) == list(range(WRITERS))
    settle()
    for end in ("source", "target"):
        assert fetch_all(_DANGLING.format(end=end)) == [(0,)]
    live = {row[0] for row in fetch_all("SELECT id FROM brain_objects WHERE deleted_at IS NULL AND parent_id IS NULL")}
    assert {row[0] for row in fetch_all("SELECT id FROM graph_nodes WHERE NOT deleted")} == live
    assert not fetch_all("SELECT 1 FROM operations WHERE state <> 'done'")


def test_without_a_model_objects_are_found_by_their_words_and_say_so(memory: Storage) -> None:
    factory.use_embedder(memory.settings, None)
    put_many(KNOWLEDGE, [new(1, "Kelp")])
    assert settle() == [stages.BRAIN_MIRROR, stages.BRAIN_MENTION]
    assert states() == {1: "none"}
    assert titles(search(KNOWLEDGE, "kelp")) == ["Kelp"]


def test_links_are_written_changed_and_taken_out() -> None:
    put_many(KNOWLEDGE, [new(1, "A"), new(2, "B"), new(3, "", "part", parent=1)])
    link(KNOWLEDGE, uid(1), uid(2), " about ", note="first", confidence=0.5)
    link(KNOWLEDGE, uid(1), uid(2), "about", note="second")
    rows = "SELECT label, note, confidence, revision, deleted_at IS NULL FROM brain_edges"
    assert fetch_all(rows) == [("about", "second", None, 2, True)]
    unlink(KNOWLEDGE, uid(1), uid(2), "about")
    assert fetch_all(rows) == [("about", "second", None, 3, False)]
    with pytest.raises(RejectedError, match="no such edge"):
        unlink(KNOWLEDGE, uid(1), uid(2), "about")
    link(KNOWLEDGE, uid(1), uid(2), "about")
    assert fetch_all(rows) == [("about", "", None, 4, True)]
    settle()


@pytest.mark.parametrize(
    ("source", "target", "label", "reason"),
    [
        (1, 1, "about", "linked to itself"),
        (1, 2, " ", "blank"),
        (1, 2, "Part_Of", "parent_id"),
        (3, 2, "about", "source: object .* is a part"),
        (1, 3, "about", "target: object .* is a part"),
        (1, 9, "about", "target: no object"),
    ],
)
def test_brain_w12_links_that_make_no_sense_are_refused(source: int, target: int, label: str, reason: str) -> None:
    put_many(KNOWLEDGE, [new(1, "A"), new(2, "B"), new(3, "", "part", parent=1)])
    with pytest.raises(RejectedError, match=reason):
        link(KNOWLEDGE, uid(source), uid(target), label)
    assert fetch_all("SELECT count(*) FROM brain_edges") == [(0,)]
    assert fetch_all("SELECT count(*) FROM operations WHERE kind = 'brain.link'") == [(0,)]


def test_the_mirror_waits_without_end_and_vectors_do_not() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp")])
    rows = fetch_all("SELECT stage, retry_until > now() + interval '10 years' FROM operation_steps ORDER BY stage")
    assert rows == [(stages.BRAIN_EMBED, False), (stages.BRAIN_MENTION, False), (stages.BRAIN_MIRROR, True)]
    settle()
    assert fetch_all("SELECT DISTINCT state FROM operations") == [("done",)]


def test_operations_say_what_the_graph_got() -> None:
    stored = put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "", "part", parent=1)])
    settle()
    assert producers.operation(stored.operation_id).result == {"nodes": 1, "edges": 0}


@pytest.mark.parametrize("count", [0, 1_001])
def test_batches_have_from_1_to_1000_objects(count: int) -> None:
    with pytest.raises(RejectedError, match="1000 objects"):
        put_many(KNOWLEDGE, [new(n) for n in range(1, count + 1)])
