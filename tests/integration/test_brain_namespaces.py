"""No verb of the knowledge base crosses a namespace, and a small one beside a large one gets its full answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import psycopg
import pytest
from brain_kit import KNOWLEDGE, OTHER, check_brain, new, settle, uid
from hash_embedder import HashEmbedder
from pgvector import HalfVector

from isotherm import storage
from isotherm.pipeline.brain.config import EngineConfig
from isotherm.pipeline.brain.errors import ObjectNotFoundError, ResultSetNotFoundError
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.recipes import ExpandRecipe
from isotherm.pipeline.brain.result_sets import SearchContext
from isotherm.pipeline.errors import RejectedError
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_search, namespaces
from isotherm.storage.postgres.brain_search import Near
from isotherm.storage.postgres.pool import connection
from isotherm.tasks.produce_brain import (
    continue_,
    expand,
    find_exact,
    find_links,
    find_objects,
    knowledge,
    link,
    list_children,
    put_many,
    read,
    search,
    soft_delete,
    unlink,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from isotherm.pipeline.identity import Namespace
    from isotherm.storage.opened import Storage

MISSING = knowledge("nobody")
EMPTIED = knowledge("emptied")


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture(autouse=True)
def embedder(memory: Storage) -> Iterator[HashEmbedder]:
    own = HashEmbedder()
    factory.use_embedder(memory.settings, own)
    yield own
    factory._made.forget()


def fill() -> None:
    """Ours has ids 1 to 3, theirs 1 and 4 to 6, all with the same words; nothing is left of the third."""
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "", "kelp part", parent=1), new(3, "Kelp moss")])
    put_many(OTHER, [new(1, "Kelp"), new(4, "Kelp"), new(5, "", "kelp part", parent=4), new(6, "Kelp moss")])
    put_many(EMPTIED, [new(1, "Kelp"), new(3, "Kelp moss")])
    for ns, source, target in ((KNOWLEDGE, 1, 3), (OTHER, 4, 6), (EMPTIED, 1, 3)):
        link(ns, uid(source), uid(target), "near", note="kelp bay")
    for each in (1, 3):
        soft_delete(EMPTIED, uid(each))
    settle()


def found(answer: Any) -> set[UUID]:
    return {r.object.id for r in answer.results} | {e.part_id for r in answer.results for e in r.evidence}


def continued(ns: Namespace) -> set[UUID]:
    context = SearchContext()
    first = search(KNOWLEDGE, "kelp", limit=1, context=context)
    assert first.cursor is not None
    return found(continue_(ns, first.cursor, context))


def links_of(ns: Namespace) -> set[UUID]:
    return {end.id for hit in find_links(ns, "near", "kelp").links for end in (hit.source, hit.target)}


def around(answer: Any) -> set[UUID]:
    return {item.object.id for item in answer.items}


def by_recipe(ns: Namespace) -> Any:
    engine = storage.open().brain
    engine.register_expand_recipe(ExpandRecipe("all", ("near",), containment=True))
    return engine.expand_by_recipe(ns, uid(3), "all")


def expanded_in_pages(ns: Namespace) -> set[UUID]:
    engine, context = storage.open().brain, SearchContext()
    engine.config = EngineConfig(expand_inline_max=1)
    first = engine.expand(KNOWLEDGE, uid(1), None, containment=True, limit=1, context=context)
    assert first.cursor is not None
    return found(continue_(ns, first.cursor, context))


VERBS: dict[str, Callable[[Namespace], set[UUID]]] = {
    "search": lambda ns: found(search(ns, "kelp")),
    "search in ids": lambda ns: found(search(ns, "kelp", scope_ids=[uid(1), uid(2), uid(3)])),
    "search by kind": lambda ns: found(search(ns, "kelp", kinds=["note"])),
    "find_exact": lambda ns: found(find_exact(ns, "kelp")),
    "find_exact by id": lambda ns: found(find_exact(ns, str(uid(3)))),
    "find_objects": lambda ns: found(find_objects(ns, "kelp")),
    "find_links": links_of,
    "continue": continued,
    "read": lambda ns: {read(ns, uid(3)).id},
    "list_children": lambda ns: {each.id for each in list_children(ns, uid(1))} | {uid(1)},
    "expand_many": lambda ns: around(storage.open().brain.expand_many(ns, [uid(1), uid(3)], None, containment=True)),
    "expand by a recipe": lambda ns: around(by_recipe(ns)),
    "expand in pages": expanded_in_pages,
    "search with the graph": lambda ns: found(storage.open().brain.search(ns, "kelp", graph=True)),
    "parts": lambda ns: {each.id for each in storage.open().brain.parts(ns, uid(1))},
    "expand": lambda ns: {item.object.id for item in expand(ns, uid(3), None, containment=True).items},
}
OURS = {uid(1), uid(2), uid(3)}


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_reads_what_another_namespace_has(verb: str) -> None:
    fill()
    call = VERBS[verb]
    ours = call(KNOWLEDGE)
    assert ours
    assert ours <= OURS
    for ns in (OTHER, MISSING, EMPTIED):
        try:
            theirs = call(ns)
        except (ObjectNotFoundError, ResultSetNotFoundError):
            continue
        assert not theirs & {uid(2), uid(3)}, ns
        assert theirs == set() or ns == OTHER
    check_brain()


def test_no_verb_writes_what_another_namespace_has() -> None:
    fill()
    for ns in (OTHER, MISSING, EMPTIED):
        for refused in (
            lambda ns=ns: soft_delete(ns, uid(3)),
            lambda ns=ns: link(ns, uid(1), uid(3), "near"),
            lambda ns=ns: unlink(ns, uid(1), uid(3), "near") if ns != EMPTIED else soft_delete(ns, uid(1)),
            lambda ns=ns: put_many(ns, [new(9, "", "kelp", parent=3)]),
        ):
            with pytest.raises(RejectedError):
                refused()
    put_many(OTHER, [new(3, "Theirs now")])
    assert read(KNOWLEDGE, uid(3)).title == "Kelp moss"
    settle()
    check_brain()


# A small set beside a large one


DIMENSION = 384
_ROWS = """
INSERT INTO brain_objects (namespace_id, bank_id, id, kind, title, summary, content, content_type, properties, revision,
                           index_sha256, terms, length, vector, vector_model, vector_dim, vector_state, created_at, updated_at)
SELECT %(ns)s, %(bank)s, ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid,
       CASE WHEN n %% 70 = 0 THEN 'rare' ELSE 'note' END, 'row ' || n, '', '', '', '{}', 1, sha256(n::text::bytea), '{}', 0, v,
       %(model)s, 384, 'done', now(), now() FROM made"""


def cluster(rng: np.random.Generator, count: int, around: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    raw = around + 0.03 * rng.standard_normal((count, DIMENSION))
    return (raw / np.linalg.norm(raw, axis=1, keepdims=True)).astype(np.float32)


def fill_vectors(ns: Namespace, vectors: np.ndarray[Any, Any], model: str) -> None:
    place = namespaces.resolve(ns)
    with connection() as conn:
        conn.execute("CREATE TEMPORARY TABLE made (n bigint, v halfvec) ON COMMIT DROP")
        with conn.cursor().copy("COPY made FROM STDIN (FORMAT binary)") as copy:
            copy.set_types(["int8", "halfvec"])
            for n, row in enumerate(vectors, 1):
                copy.write_row((n, HalfVector(row)))
        conn.execute(_ROWS, {"ns": place.namespace_id, "bank": place.bank_id, "model": model})


def test_brain_weak_15_weak_16_small_and_limited_sets_among_20000_get_all_they_ask_for(
    memory: Storage, dsn: str
) -> None:
    """Clustered away from the query, where a scan of the index would meet the large set's rows first.

    None of these searches may use the index, so it is not made here; tests/integration/test_brain_explain.py is about it.
    """
    rng, model = np.random.default_rng(7), HashEmbedder().model
    query_side = np.eye(DIMENSION)[0]
    far_side = 0.3 * query_side + np.eye(DIMENSION)[1]
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute("DROP INDEX brain_objects_vector_384")
        sets = {"big": (20_100, query_side), "s50": (50, far_side), "s2000": (2_000, far_side)}
        vectors = {name: cluster(rng, count, around) for name, (count, around) in sets.items()}
        for name, rows in vectors.items():
            fill_vectors(knowledge(name), rows, model)
        conn.execute("ANALYZE brain_objects")
    near = Near(model, cluster(rng, 1, query_side)[0])
    for name, filters, kept in (
        ("s50", Filters(), slice(None)),
        ("s2000", Filters(), slice(None)),
        ("s2000", Filters.of(kinds=["rare"]), slice(69, None, 70)),
        ("big", Filters.of(kinds=["rare"]), slice(69, None, 70)),
    ):
        place = namespaces.find(knowledge(name))
        assert place is not None
        with connection() as conn:
            leg = brain_search.vectors(conn, place.namespace_id, near, filters, 20)
        scores = vectors[name][kept] @ near.vector
        floor = float(np.sort(scores)[-20])
        assert len(leg.found) == 20, name
        assert sum(row.score >= floor - 2e-3 for row in leg.found) >= 19, name
        assert not leg.truncated
    assert storage.open() is memory
