"""Rows of the specification of the knowledge base about kinds, and filters that mean one thing everywhere."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from brain_kit import KNOWLEDGE, new, settle, titles, uid
from hash_embedder import HashEmbedder
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from isotherm.pipeline.brain.errors import (
    CatalogFrozenError,
    FilterError,
    KindError,
    UnknownKindError,
    WritesUnsupportedError,
)
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.kinds import FieldSpec, FieldType, KindSpec
from isotherm.pipeline.brain.write_kinds import Saved, WriteKinds
from isotherm.pipeline.errors import RejectedError, TransientError
from isotherm.storage.brain import Engine
from isotherm.storage.brain_kinds import persist_kinds
from isotherm.storage.models import factory
from isotherm.storage.postgres import steps
from isotherm.storage.postgres.brain_kinds import PostgresKinds
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import brain_reembed
from isotherm.tasks.produce_brain import (
    find_exact,
    knowledge,
    put,
    put_many,
    read,
    save_discovery,
    save_fact,
    save_memory,
    search,
    soft_delete,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from isotherm.storage.opened import Storage

DOCUMENT = KindSpec(
    "Document",
    "a document",
    is_parent=True,
    fields=(
        FieldSpec("stage", FieldType.STRING, required=True),
        FieldSpec("amount", FieldType.NUMBER),
        FieldSpec("when", FieldType.DATETIME),
        FieldSpec("hot", FieldType.BOOLEAN),
    ),
)
CHUNK = KindSpec("Chunk", is_part=True)
DEAL = KindSpec("Deal", fields=(FieldSpec("amount", FieldType.NUMBER),))

pytestmark = pytest.mark.usefixtures("words_only")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.mark.parametrize(
    ("object_", "reason"),
    [
        (new(1, kind="Other"), "not registered"),
        (new(1, kind="Document"), "required property"),
        (new(1, kind="Document", properties={"stage": None}), "required property"),
        (new(1, kind="Document", properties={"stage": "x", "color": "red"}), "not defined"),
        (new(1, kind="Document", properties={"stage": 7}), "want string"),
        (new(1, kind="Document", properties={"stage": "x", "amount": True}), "want number"),
        (new(1, kind="Document", properties={"stage": "x", "hot": 1}), "want boolean"),
        (new(1, kind="Document", properties={"stage": "x", "when": "yesterday"}), "RFC3339"),
        (new(1, kind="Document", properties={"stage": "x"}, parent=2), "must not have parent_id"),
        (new(1, kind="Chunk"), "requires parent_id"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_brain_w02_objects_that_do_not_fit_their_kind_are_refused(memory: Storage, object_: Any, reason: str) -> None:
    memory.brain.register_kinds([DOCUMENT, CHUNK])
    with pytest.raises(KindError, match=reason):
        put_many(KNOWLEDGE, [object_])
    assert fetch_all("SELECT count(*) FROM brain_objects") == [(0,)]


def test_brain_w03_objects_that_fit_are_stored_and_moments_have_one_spelling(memory: Storage) -> None:
    memory.brain.register_kinds([DOCUMENT, CHUNK])
    when = datetime(2026, 5, 4, 12, tzinfo=timezone(timedelta(hours=2)))
    given = {"stage": "", "amount": 3, "when": when, "hot": None}
    put_many(KNOWLEDGE, [new(1, "D", kind="Document", properties=given), new(2, "", "kelp", parent=1, kind="Chunk")])
    found = read(KNOWLEDGE, uid(1)).properties
    assert found == {"stage": "", "amount": 3, "when": "2026-05-04T10:00:00.000000Z"}
    within = Filters.of(["Document"], {"when": "2026-05-04T12:00:00+02:00"})
    assert titles(search(KNOWLEDGE, "kelp", filters=within)) == ["D"]


def test_brain_w05_a_strict_put_stores_nothing_without_its_vector(memory: Storage) -> None:
    """By default the object is stored and its vector follows; strict is how the original did it."""

    class Away(HashEmbedder):
        def embed(self, _: Sequence[str]) -> Any:
            raise TransientError("away")

    factory.use_embedder(memory.settings, Away())
    with pytest.raises(TransientError, match="embed"):
        put(KNOWLEDGE, "note", title="Kelp", strict=True)
    assert fetch_all("SELECT count(*) FROM brain_objects") == [(0,)]
    factory.use_embedder(memory.settings, None)
    with pytest.raises(RejectedError, match="embed"):
        put(KNOWLEDGE, "note", title="Kelp", strict=True)
    embedder = HashEmbedder()
    factory.use_embedder(memory.settings, embedder)
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "", "grows", parent=1)], strict=True)
    assert fetch_all("SELECT vector_state, vector_dim FROM brain_objects") == [("done", embedder.dimension)] * 2
    settle()
    made = search(KNOWLEDGE, "kelp").results[0].shares["vector"].score
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "", "grows", parent=1)], strict=True)
    put_many(KNOWLEDGE, [new(3, "", "more", parent=1)], strict=True)
    assert made > 0
    settle()
    assert search(KNOWLEDGE, "kelp").results[0].shares["vector"].score == pytest.approx(made)


def test_brain_k03_kinds_are_applied_as_a_whole_and_loaded_by_others(memory: Storage) -> None:
    engine = memory.brain
    engine.apply_kinds([DOCUMENT, CHUNK])
    changed = KindSpec("Document", "another text", is_parent=True)
    engine.apply_kinds([DEAL, changed, CHUNK])
    assert engine.catalog.names() == ["Chunk", "Deal", "Document"]
    other = Engine(None, lambda: None, memory.patience)
    other.load_kinds()
    assert other.catalog.get("Document") == changed
    other.freeze_kinds()
    for call in (lambda: other.apply_kinds([DEAL]), other.load_kinds, lambda: other.register_kinds([DEAL])):
        with pytest.raises(CatalogFrozenError):
            call()
    assert engine.catalog.names() == ["Chunk", "Deal", "Document"]


def test_brain_k04_a_batch_with_one_bad_kind_changes_nothing(memory: Storage) -> None:
    with pytest.raises(KindError):
        memory.brain.apply_kinds([DOCUMENT, KindSpec(" ")])
    with pytest.raises(KindError, match="twice"):
        memory.brain.register_kinds([DEAL, DEAL])
    assert memory.brain.catalog.empty
    assert PostgresKinds().kinds() == []


def test_brain_k05_the_catalog_speaks_before_the_database(memory: Storage) -> None:
    persist_kinds(PostgresKinds(), [KindSpec("Document", "stored"), DEAL])
    assert [s.kind for s in memory.brain.schema().kinds] == ["Deal", "Document"]
    memory.brain.register_kinds([KindSpec("Document", "known here"), CHUNK])
    found = memory.brain.schema()
    assert [(s.kind, s.description) for s in found.kinds] == [("Chunk", ""), ("Document", "known here")]
    assert "find_objects" in found.filter_usage.tools
    assert [s.kind for s in memory.brain.schema(" Chunk ").kinds] == ["Chunk"]
    with pytest.raises(UnknownKindError):
        memory.brain.schema("Missing")


def test_brain_weak_25_kinds_that_were_taken_out_stay_out_and_validation_is_given_up_only_by_name(
    memory: Storage,
) -> None:
    memory.brain.apply_kinds([DOCUMENT, DEAL])
    memory.brain.apply_kinds([DEAL])
    memory.brain.load_kinds()
    assert memory.brain.catalog.names() == ["Deal"]
    with pytest.raises(KindError):
        memory.brain.apply_kinds([])
    memory.brain.register_kinds([CHUNK])
    memory.brain.sync_kinds()
    assert [s.kind for s in PostgresKinds().kinds()] == ["Chunk", "Deal"]
    memory.brain.allow_all_kinds()
    assert memory.brain.catalog.empty
    assert PostgresKinds().kinds() == []


def test_agents_save_what_the_host_has_kinds_for(memory: Storage) -> None:
    memory.brain.register_kinds([KindSpec("Finding"), KindSpec("Fact")])
    with pytest.raises(UnknownKindError):
        memory.brain.use_write_kinds(WriteKinds(memory="Memory"))
    memory.brain.use_write_kinds(WriteKinds(discovery="Finding", fact="Fact"))
    for save, kind in ((save_discovery, "Finding"), (save_fact, "Fact")):
        stored = save(KNOWLEDGE, Saved(kind, "kelp grows", "fast", {}), key=kind)
        assert save(KNOWLEDGE, Saved(kind, "kelp grows", "fast", {}), key=kind).ids == stored.ids
        found = read(KNOWLEDGE, stored.ids[0])
        assert (found.kind, found.title, found.summary, found.content) == (kind, kind, "kelp grows", "fast")
    with pytest.raises(WritesUnsupportedError):
        save_memory(KNOWLEDGE, Saved("x"))


# Filters


def put_properties(values: Sequence[Any]) -> None:
    put_many(
        KNOWLEDGE, [new(n, f"{n}", "kelp", properties={} if v is None else {"p": v}) for n, v in enumerate(values)]
    )


def found(**properties: Any) -> list[int]:
    return sorted(int(title) for title in titles(search(KNOWLEDGE, "kelp", properties=properties, limit=50)))


def test_brain_v01_weak_18_numbers_texts_and_truth_values_equal_only_their_own_type() -> None:
    put_properties([10.0, 3, "nope", True, 1_200_000.0, 1e22, "true", 1, None, "3", False, 0.1])
    for wanted, matches in (
        ([10, 20], [0]), (3, [1]), (3.0, [1]), ("nope", [2]), (True, [3]), (1_200_000, [4]), (1.2e6, [4]), (1e22, [5]),
        ("true", [6]), (1, [7]), ("3", [9]), (False, [10]), (0.1, [11]), ([True, "nope"], [2, 3]), (0, []),
    ):  # fmt: skip
        assert found(p=wanted) == matches, wanted


def test_ranges_of_numbers_and_moments_pass_over_values_of_other_types() -> None:
    put_properties([1, 2.5, 1e300, "2", True, None, "2026-01-01", "2026-06-01T10:00:00+02:00", "2026-99-99", "now", -3])
    for wanted, matches in (
        ({"gte": 1, "lt": 2.5}, [0]), ({"gt": 1}, [1, 2]), ({"lte": 2.5}, [0, 1, 10]), ({"gte": 1e300}, [2]),
        ({"gte": "2026-01-01", "lt": "2026-06-01T08:00:00Z"}, [6]), ({"lte": "2026-06-01T08:00:00Z"}, [6, 7]),
        ({"gt": datetime(2026, 1, 1, tzinfo=UTC)}, [7]),
    ):  # fmt: skip
        assert found(p=wanted) == matches, wanted


_runs = iter(range(10**6))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(
        st.one_of(st.integers(-5, 5), st.floats(-5, 5), st.booleans(), st.sampled_from(["1", "a"])), max_size=8
    ),
    low=st.floats(-5, 5),
    equal=st.one_of(st.integers(-5, 5), st.booleans(), st.sampled_from(["1", "a"])),
)
def test_filters_in_the_database_mean_what_they_mean_in_python(
    memory: Storage, values: list[Any], low: float, equal: Any
) -> None:
    assert memory
    ns = knowledge(f"filters-{next(_runs)}")
    put_many(
        ns, [new(99, "none", "kelp"), *[new(n, f"{n}", "kelp", properties={"p": v}) for n, v in enumerate(values, 1)]]
    )

    def matching(wanted: Any) -> set[str]:
        return set(titles(search(ns, "kelp", properties={"p": wanted}, limit=50)))

    def is_number(value: Any) -> bool:
        return isinstance(value, int | float) and not isinstance(value, bool)

    assert matching({"gte": low}) == {f"{n}" for n, v in enumerate(values, 1) if is_number(v) and v >= low}
    same = {f"{n}" for n, v in enumerate(values, 1) if v == equal and isinstance(v, bool) == isinstance(equal, bool)}
    assert matching(equal) == same
    assert matching([equal, math.pi]) == same


def test_brain_v02_p01_times_and_lists_limit_a_search() -> None:
    put_many(KNOWLEDGE, [new(1, "Old", "kelp"), new(2, "New", "kelp")])
    with connection() as conn:
        conn.execute(
            "UPDATE brain_objects SET created_at = '2024-06-15', updated_at = '2024-06-15' WHERE title = 'Old'"
        )
    for wanted, names in (
        ({"created_after": "2024-01-01", "created_before": "2025-01-01"}, ["Old"]),
        ({"updated_before": "2024-01-01"}, []),
        ({"updated_after": "2024-06-15"}, ["New", "Old"]),
        ({"updated_before": "2024-06-15"}, []),
        ({"created_after": datetime(2025, 1, 1, tzinfo=UTC)}, ["New"]),
        ({"title": ["Old", "Other"]}, ["Old"]),
        ({"title": "old"}, []),
        ({"kind": "note", "title": "New"}, ["New"]),
        ({"absent": "x"}, []),
    ):
        assert sorted(titles(search(KNOWLEDGE, "kelp", filters=Filters.parse(wanted)))) == names, wanted


def test_brain_p01_p02_what_is_deleted_is_not_found_until_it_is_put_again(memory: Storage) -> None:
    """The rows about the store alone hold of the engine over it; lexical, vector and trigram legs in one search each."""
    factory.use_embedder(memory.settings, HashEmbedder())
    put_many(KNOWLEDGE, [new(1, "Auth"), new(2, "pkce flow", "oauth pkce", parent=1), new(3, "Pasta", "tomato")])
    settle()
    for verb in (search, find_exact):
        assert titles(verb(KNOWLEDGE, "pkce flow"))[0] == "Auth"
    assert titles(find_exact(KNOWLEDGE, "pkcee flow"))[0] == "Auth"
    soft_delete(KNOWLEDGE, uid(2))
    for verb in (search, find_exact):
        assert not any(result.evidence for result in verb(KNOWLEDGE, "pkce flow").results)
    put_many(KNOWLEDGE, [new(1, "Auth guide"), new(2, "pkce flow", "oauth pkce", parent=1)])
    settle()
    for verb in (search, find_exact):
        assert titles(verb(KNOWLEDGE, "pkce flow"))[0] == "Auth guide"


def test_brain_k02_filters_are_checked_against_the_kinds(memory: Storage) -> None:
    memory.brain.register_kinds([DOCUMENT, DEAL])
    for wrong in (
        {"stage": "x"}, {"kind": "Orphan"}, {"kind": "Document", "color": "red"}, {"kind": "Document", "stage": 1},
        {"kind": ["Document", "Deal"], "stage": "x"}, {"kind": []}, {"kind": [1]}, {"kind": ""},
        {"kind": "Document", "hot": [True]}, {"kind": "Document", "stage": {"gt": 1}},
        {"kind": "Document", "amount": {"gt": "2026-01-01"}}, {"kind": "Document", "when": "soon"},
    ):  # fmt: skip
        with pytest.raises(FilterError):
            search(KNOWLEDGE, "kelp", filters=Filters.parse(wrong))
    for right in (
        {"kind": ["Document", "Deal"], "amount": 3}, {"kind": "Document", "hot": True}, {"kind": "Deal"}, {},
        {"kind": "Document", "when": {"gte": "2026-01-01"}},
    ):  # fmt: skip
        assert search(KNOWLEDGE, "kelp", filters=Filters.parse(right)).results == ()


# Vectors follow


def stamps() -> list[tuple[str, int]]:
    rows = fetch_all("SELECT vector_model, count(*) FROM brain_objects WHERE deleted_at IS NULL GROUP BY 1 ORDER BY 1")
    return [(model, int(count)) for model, count in rows]


@pytest.mark.parametrize("dimension", [384, 16])
def test_brain_weak_13_another_model_embeds_everything_again_in_the_background(memory: Storage, dimension: int) -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp")])
    settle()
    assert brain_reembed.reembed() == {"objects": 0}
    factory.use_embedder(memory.settings, HashEmbedder(model="old"))
    assert brain_reembed.reembed() == {"objects": 1}
    put_many(KNOWLEDGE, [new(n, f"Kelp {n}") for n in range(2, 71)])
    settle()
    assert stamps() == [("old", 70)]
    updated = fetch_all("SELECT id, revision, updated_at FROM brain_objects ORDER BY id")
    factory.use_embedder(memory.settings, HashEmbedder(dimension, model="fresh"))
    assert brain_reembed.reembed() == {"objects": 70}
    assert brain_reembed.reembed() == {"objects": 0}
    settle()
    assert stamps() == [("fresh", 70)]
    assert fetch_all("SELECT id, revision, updated_at FROM brain_objects ORDER BY id") == updated
    assert fetch_all("SELECT DISTINCT state FROM operations WHERE kind = 'brain.reembed'") == [("done",)]


def test_embedding_again_waits_while_the_embedders_are_behind(memory: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp")])
    settle()
    factory.use_embedder(memory.settings, HashEmbedder())
    put_many(KNOWLEDGE, [new(2, "Moss")])
    monkeypatch.setattr(brain_reembed, "_WAITING", 1)
    with connection() as conn:
        assert steps.unclaimed(conn, "brain.embed", 5) == 1
    assert brain_reembed.reembed() == {"objects": 0}
    settle()
    assert brain_reembed.reembed() == {"objects": 1}
    settle()
