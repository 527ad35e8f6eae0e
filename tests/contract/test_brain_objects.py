"""The knowledge base in this process and the one in PostgreSQL: one suite, and the same scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4

import pytest
from brain_kit import new, settle, titles, uid
from hash_embedder import HashEmbedder

from isotherm.pipeline.brain.catalog import KindCatalog
from isotherm.pipeline.brain.errors import (
    CatalogFrozenError,
    FilterError,
    KindError,
    ObjectNotFoundError,
    QueryRequiredError,
    RevisionConflictError,
)
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.kinds import FieldSpec, FieldType, KindSpec
from isotherm.pipeline.brain.memory_store import MemoryObjects
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.pipeline.fusion import Fusion
from isotherm.storage.models import factory
from isotherm.tasks import produce_brain
from isotherm.tasks.produce_brain import knowledge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isotherm.pipeline.brain.answers import Answer
    from isotherm.pipeline.brain.objects import NewObject, Object
    from isotherm.pipeline.identity import Namespace
    from isotherm.storage.opened import Storage


class Shelf:
    """One namespace of one of the two, new and empty."""

    catalog: KindCatalog

    def __init__(self) -> None:
        self.here, self.there = (knowledge(f"shelf-{uuid4()}") for _ in range(2))

    def put(self, objects: Sequence[NewObject], namespace: Namespace | None = None, **more: Any) -> Any:
        raise NotImplementedError

    def embed(self) -> None:
        raise NotImplementedError


@dataclass
class InProcess(Shelf):
    store: MemoryObjects = field(default_factory=lambda: MemoryObjects(embedder=HashEmbedder()))

    def __post_init__(self) -> None:
        super().__init__()
        self.catalog = self.store.catalog

    def put(self, objects: Sequence[NewObject], namespace: Namespace | None = None, **more: Any) -> Any:
        return self.store.put(namespace or self.here, objects, **more)

    def embed(self) -> None:
        self.store.embed_pending(self.here)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class InDatabase(Shelf):
    def __init__(self, storage: Storage) -> None:
        super().__init__()
        self.catalog = storage.brain.catalog = KindCatalog()  # an earlier test may have frozen it
        factory.use_embedder(storage.settings, HashEmbedder())

    def put(self, objects: Sequence[NewObject], namespace: Namespace | None = None, **more: Any) -> Any:
        return produce_brain.put_many(namespace or self.here, objects, strict=True, **more)

    def embed(self) -> None:
        settle()

    def soft_delete(self, namespace: Namespace, object_id: UUID, **more: Any) -> int:
        return produce_brain.soft_delete(namespace, object_id, **more).removed

    def __getattr__(self, name: str) -> Any:
        return getattr(produce_brain, name)


@pytest.fixture(params=["memory", "postgres"])
def shelf(request: pytest.FixtureRequest) -> Shelf:
    if request.param == "memory":
        return InProcess()
    storage: Storage = request.getfixturevalue("kept_storage")
    return InDatabase(storage)


def found(shelf: Any, query: str, **filters: Any) -> list[str]:
    return titles(shelf.search(shelf.here, query, filters=Filters.parse(filters), limit=50))


def test_brain_s01_s02_s03_a_part_stands_for_its_document_in_its_own_namespace(shelf: Any) -> None:
    shelf.put([new(1, "OAuth guide"), new(2, "", "oauth pkce implementation details", parent=1)])
    shelf.put([new(3, "Another guide"), new(4, "", "oauth pkce implementation details", parent=3)], shelf.there)
    answer: Answer = shelf.search(shelf.here, "oauth pkce implementation")
    [result] = answer.results
    assert (result.object.title, result.object.content) == ("OAuth guide", None)
    assert [(e.part_id, e.snippet) for e in result.evidence] == [(uid(2), "oauth pkce implementation details")]
    assert titles(shelf.search(shelf.there, "oauth pkce implementation")) == ["Another guide"]


def test_brain_w01_w10_an_object_is_put_read_and_deleted_where_it_is(shelf: Any) -> None:
    stored = shelf.put([new(1, "Kelp", "grows fast", properties={"depth": 12.0})])
    assert (stored.ids, stored.written) == ((uid(1),), 1)
    read: Object = shelf.read(shelf.here, uid(1))
    assert (read.title, read.content, read.properties, read.revision) == ("Kelp", "grows fast", {"depth": 12.0}, 1)
    assert read.vector_state == "done"
    for verb in (shelf.read, shelf.soft_delete):
        with pytest.raises(ObjectNotFoundError):
            verb(shelf.there, uid(1))
    assert shelf.soft_delete(shelf.here, uid(1)) == 1
    with pytest.raises(ObjectNotFoundError):
        shelf.read(shelf.here, uid(1))
    with pytest.raises(ObjectNotFoundError):
        shelf.soft_delete(shelf.here, uid(1))


def test_brain_weak_07_weak_10_revisions_are_expected_and_parts_belong_to_whole_objects(shelf: Any) -> None:
    shelf.put([new(1, "one", expected_revision=0), new(2, "", "part", parent=1)])
    with pytest.raises(RevisionConflictError):
        shelf.put([new(1, "two", expected_revision=0)])
    for wrong in (new(3, "", "x", parent=9), new(3, "", "x", parent=2), new(2, "now whole")):
        with pytest.raises(RejectedError):
            shelf.put([new(5, "goes with it"), wrong])
    with pytest.raises(ObjectNotFoundError):
        shelf.read(shelf.here, uid(5))
    with pytest.raises(RevisionConflictError):
        shelf.soft_delete(shelf.here, uid(1), expected_revision=7)
    assert shelf.put([new(1, "one")]).written == 0, "unchanged"
    assert shelf.read(shelf.here, uid(1)).revision == 1


def test_brain_weak_09_p02_deleting_takes_parts_along_and_putting_again_brings_back(shelf: Any) -> None:
    shelf.put([new(1, "Kelp"), new(2, "", "twelve meters", parent=1), new(3, "Moss", "twelve")])
    assert shelf.soft_delete(shelf.here, uid(1)) == 2
    assert found(shelf, "twelve") == ["Moss"]
    shelf.put([new(1, "Kelp")])
    assert shelf.read(shelf.here, uid(1)).revision == 3
    assert shelf.list_children(shelf.here, uid(1)) == []


def test_brain_e01_weak_26_parts_are_listed_in_order_and_replaced(shelf: Any) -> None:
    parts = [new(n, f"P{n}", "text", parent=1, position=at) for n, at in ((2, 5), (3, None), (4, 1))]
    shelf.put([new(1, "Doc"), *parts])
    listed: list[Object] = shelf.list_children(shelf.here, uid(1))
    assert [(each.title, each.content) for each in listed] == [("P4", None), ("P2", None), ("P3", None)]
    assert [each.title for each in shelf.list_children(shelf.here, uid(1), limit=1)] == ["P4"]
    for wrong in (0, -1, 1.0, True, 10**9):
        with pytest.raises(RejectedError, match="limit"):
            shelf.list_children(shelf.here, uid(1), limit=wrong)
    done = shelf.put([new(1, "Doc"), parts[0]], replace_parts=True)
    assert (done.written, done.removed) == (0, 2)
    assert [each.title for each in shelf.list_children(shelf.here, uid(1))] == ["P2"]


def test_brain_weak_11_parts_are_found_by_another_title_of_their_document(shelf: Any) -> None:
    shelf.put([new(1, "Old"), new(2, "", "text of the part", parent=1)])
    shelf.put([new(1, "Fresh")])
    shelf.embed()
    [result] = shelf.search(shelf.here, "fresh part").results
    assert result.evidence[0].part_id == uid(2)
    assert not [r for r in shelf.search(shelf.here, "old").results if "lexical" in r.shares]


PROPERTIES = [10.0, 3, "nope", True, 1_200_000.0, 1e22, "true", 1, None, "3", False, 0.1, "2026-06-01T10:00:00+02:00"]


def test_brain_s04_v01_weak_18_filters_mean_one_thing(shelf: Any) -> None:
    shelf.put([
        new(n + 1, f"{n}", "kelp", properties={} if value is None else {"p": value}) for n, value in enumerate(PROPERTIES)
    ])  # fmt: skip
    for wanted, matching in (
        ([10, 20], [0]), (3.0, [1]), ("nope", [2]), (True, [3]), (1_200_000, [4]), (1e22, [5]), ("true", [6]), (1, [7]),
        ("3", [9]), (False, [10]), (0.1, [11]), ([True, "nope"], [2, 3]), (0, []), ({"gte": 3, "lt": 11}, [0, 1]),
        ({"lte": "2026-06-01T08:00:00Z"}, [12]), ({"gt": "2026-06-01T08:00:00Z"}, []),
    ):  # fmt: skip
        assert sorted(map(int, found(shelf, "kelp", p=wanted))) == matching, wanted


def test_brain_s06_s10_v02_scopes_kinds_and_times_limit_parts_and_documents(shelf: Any) -> None:
    shelf.put([
        new(1, "Doc", kind="document", properties={"owner": "ann"}), new(2, "", "same", parent=1, kind="chunk"),
        new(3, "Note", "same", kind="note"),
    ])  # fmt: skip
    soon = datetime.now(UTC) + timedelta(hours=1)
    for filters, expected in (
        ({"kind": "chunk"}, ["Doc"]), ({"kind": "document"}, ["Doc"]), ({"kind": ["note", "chunk"]}, ["Doc", "Note"]),
        ({"kind": "other"}, []), ({"owner": "ann"}, ["Doc"]), ({"title": "Note"}, ["Note"]),
        ({"created_before": soon}, ["Doc", "Note"]), ({"updated_after": soon}, []),
    ):  # fmt: skip
        assert sorted(found(shelf, "same", **filters)) == expected, filters
    for ids, expected in (([uid(1)], ["Doc"]), ([uid(2)], ["Doc"]), ([], []), ([UUID(int=0)], [])):
        within = Filters.parse({}, scope_ids=ids)
        assert titles(shelf.search(shelf.here, "same", filters=within)) == expected


def test_brain_s07_s09_k02_what_makes_no_sense_is_refused_and_a_search_freezes_the_kinds(shelf: Any) -> None:
    for verb in (shelf.search, shelf.find_exact):
        with pytest.raises(QueryRequiredError):
            verb(shelf.here, " ")
        with pytest.raises(RejectedError):
            verb(shelf.here, "kelp", limit=0)
    shelf.put([new(1, "Doc", kind="Document"), new(2, "", "kelp", parent=1, kind="Orphan")])
    shelf.catalog.register([KindSpec("Document", is_parent=True, fields=(FieldSpec("code", FieldType.STRING),))])
    with pytest.raises(KindError):
        shelf.put([new(3, "x", kind="Other")])
    answer = shelf.search(shelf.here, "kelp")  # the document is like the word by its vector, the part is not searched
    assert [r.evidence for r in answer.results] == [()]
    with pytest.raises(CatalogFrozenError):
        shelf.catalog.register([KindSpec("Late")])
    with pytest.raises(FilterError):
        found(shelf, "kelp", kind="Other")


def test_brain_x01_x02_x03_x05_names_are_equal_first_then_alike_and_an_id_answers_alone(shelf: Any) -> None:
    shelf.put(
        [new(1, "Code"), new(2, "exact-filename.go", "package main", parent=1), new(3, "Other", "exact filename")]
    )
    [whole] = shelf.find_exact(shelf.here, str(uid(1))).results
    assert (whole.object.title, whole.evidence) == ("Code", ())
    [part] = shelf.find_exact(shelf.here, str(uid(2))).results
    assert (part.object.title, [e.part_id for e in part.evidence]) == ("Code", [uid(2)])
    best = shelf.find_exact(shelf.here, "EXACT-filename.go").results[0]
    assert best.object.title == "Code"
    assert best.score > 10
    assert titles(shelf.find_exact(shelf.here, "exact-filenam.go"))[0] == "Code"
    assert titles(shelf.find_exact(shelf.here, "zebra")) == []


def words(chooser: Random) -> str:
    return " ".join(chooser.choices([f"w{n}" for n in range(8)], k=chooser.randint(1, 10)))


@pytest.mark.parametrize("seed", range(4))
def test_both_find_the_same_with_the_same_scores(kept_storage: Storage, seed: int) -> None:
    chooser = Random(seed)
    objects = [new(n, words(chooser)) for n in range(1, 7)]
    objects += [
        new(10 * n + at, "", words(chooser), parent=n) for n in range(1, 7) for at in range(chooser.randint(0, 3))
    ]
    retitled, queries = words(chooser), [words(chooser) for _ in range(6)]
    shelves: list[Any] = [InDatabase(kept_storage), InProcess()]
    for shelf in shelves:
        shelf.put([*objects, new(99, "gone " + words(Random(seed)))])
        shelf.put([new(1, retitled)])
        shelf.soft_delete(shelf.here, uid(99))
        shelf.embed()
    for query in queries:
        for fusion in Fusion:
            database, process = (_scores(shelf, query, fusion) for shelf in shelves)
            assert database.keys() == process.keys()
            if (
                fusion is Fusion.SCORES
            ):  # vectors are stored as 16 bits, so hits that are nearly equal may change places
                assert database == pytest.approx(process, abs=2e-3)


def _scores(shelf: Any, query: str, fusion: Fusion) -> dict[UUID, float]:
    """Scores of what was found by anything; the least one only keeps a place."""
    answer = shelf.search(shelf.here, query, fusion=fusion, limit=50)
    return {r.object.id: r.score for r in answer.results if r.score > 1e-6}


def test_a_model_that_is_away_leaves_words_and_comes_back() -> None:
    class Away(HashEmbedder):
        away = True

        def embed(self, texts: Sequence[str]) -> Any:
            if self.away:
                raise TransientError("away")
            return super().embed(texts)

    embedder = Away()
    shelf = InProcess(MemoryObjects(embedder=embedder))
    shelf.put([new(1, "Kelp")])
    answer = shelf.search(shelf.here, "kelp")
    assert (titles(answer), answer.degraded) == (["Kelp"], ("vector",))
    assert shelf.read(shelf.here, uid(1)).vector_state == "pending"
    embedder.away = False
    assert shelf.store.embed_pending(shelf.here) == 1
    assert set(shelf.search(shelf.here, "kelp").results[0].shares) == {"lexical", "vector"}
    assert shelf.store.embed_pending(shelf.here) == 0
