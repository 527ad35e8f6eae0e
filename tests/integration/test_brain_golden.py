"""The small corpora of the specification: search alone, and search, expand and links put together."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from brain_kit import KNOWLEDGE, check_brain, new, settle, titles, uid

from isotherm import storage
from isotherm.pipeline.brain.answers import landing_ids_of
from isotherm.pipeline.brain.expand import Mode
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.kinds import FieldSpec, FieldType, KindSpec
from isotherm.pipeline.brain.objects import namespace_uuid
from isotherm.pipeline.brain.recipes import ExpandRecipe
from isotherm.storage.graph import helix_client
from isotherm.storage.graph.memory import MemoryGraph
from isotherm.storage.models import factory
from isotherm.tasks.produce_brain import find_links, find_objects, link, put_many, search

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.pipeline.brain.graph_port import GraphPort
    from isotherm.storage.opened import Storage

DOCUMENTS = {
    "OAuth PKCE Guide": "oauth pkce implementation with code verifier and challenge",
    "Billing Runbook": "invoice retry schedule for failed payments",
    "Vector Search Notes": "hnsw index recall and latency tradeoffs",
}
# Query, and what a person would want to see, best first with its grade.
GRADED = (
    ("oauth pkce", {"OAuth PKCE Guide": 2}),
    ("retry a failed payment", {"Billing Runbook": 2}),
    ("recall of an hnsw index", {"Vector Search Notes": 2}),
)


@pytest.fixture
def dsn(emptied_dsn: str) -> str:
    return emptied_dsn


@pytest.fixture(scope="module")
def helix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GraphPort]:
    """The real engine, embedded, on disk."""
    pytest.importorskip("helixdb_uniffi", reason="needs the extra helix")
    helix_client.own_embedded()
    module = importlib.import_module("isotherm.storage.graph.helix")
    found = module.HelixGraph(helix_client.EmbeddedClient(tmp_path_factory.mktemp("helix")))
    yield found
    found.close()


@pytest.fixture(params=["memory", "postgres", "helix"], autouse=True)
def words_only(request: pytest.FixtureRequest, memory: Storage, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No vectors, and each graph in its turn."""
    factory.use_embedder(memory.settings, None)
    if request.param != "postgres":
        graph = MemoryGraph() if request.param == "memory" else request.getfixturevalue("helix")
        monkeypatch.setattr(memory.brain, "_graph", graph)
    memory.brain.graph.clear(namespace_uuid(KNOWLEDGE))
    yield
    factory._made.forget()
    check_brain()


def test_brain_eval_each_question_has_its_document_first() -> None:
    """The original only asked that it be on the page; its true level was first place, mean reciprocal rank 1."""
    objects = []
    for number, (title, text) in enumerate(DOCUMENTS.items(), 1):
        objects += [new(number, title), new(number + 10, "", text, parent=number)]
    put_many(KNOWLEDGE, objects)
    reciprocal = [
        1 / (1 + titles(search(KNOWLEDGE, query, limit=5)).index(wanted))
        for query, grades in GRADED
        for wanted in grades
    ]
    assert sum(reciprocal) / len(reciprocal) == 1.0


ACME, FACT, BUYER, NOISE, OTHER_DOC, CHUNK, NOISE_CHUNK = range(1, 8)


def deals(memory: Storage) -> None:
    memory.brain.register_kinds(
        [
            KindSpec("Deal", is_parent=True, fields=(FieldSpec("stage", FieldType.STRING),)),
            KindSpec("Fact", is_parent=True),
            KindSpec("Buyer", is_parent=True),
            KindSpec("Chunk", is_part=True),
        ]
    )
    put_many(
        KNOWLEDGE,
        [
            new(ACME, "Acme", "platform deal", kind="Deal", properties={"stage": "negotiation"}),
            new(FACT, "Budget approved", kind="Fact"),
            new(BUYER, "Dana", kind="Buyer"),
            new(NOISE, "Noise", "another deal", kind="Deal", properties={"stage": "closed"}),
            new(CHUNK, "", "security review before signature", parent=ACME, kind="Chunk"),
            new(NOISE_CHUNK, "", "security review before signature", parent=NOISE, kind="Chunk"),
        ],
    )
    link(KNOWLEDGE, uid(FACT), uid(ACME), "about")
    link(KNOWLEDGE, uid(ACME), uid(BUYER), "has_buyer", note="economic buyer", role="primary")
    link(KNOWLEDGE, uid(NOISE), uid(BUYER), "has_buyer", note="technical evaluator")
    settle()


def test_brain_eval_search_landing_expand_and_links_compose(memory: Storage) -> None:
    deals(memory)
    [landed] = find_objects(KNOWLEDGE, "acme", filters=Filters.of(["Deal"], {"stage": "negotiation"})).results
    assert landed.object.id == uid(ACME)
    assert uid(ACME) in landing_ids_of(search(KNOWLEDGE, "security review"))
    around = memory.brain.expand_many(KNOWLEDGE, [uid(ACME)], ["about", "has_buyer"])
    assert {(item.object.title, item.seed_id) for item in around.items} == {
        ("Budget approved", uid(ACME)),
        ("Dana", uid(ACME)),
    }
    assert titles(search(KNOWLEDGE, "security review", scope_ids=[uid(ACME)])) == ["Acme"]
    both = memory.brain.expand(KNOWLEDGE, uid(ACME), ["has_buyer"], containment=True)
    assert both.mode == Mode.MIXED
    assert {item.object.id for item in both.items} == {uid(CHUNK), uid(BUYER)}
    memory.brain.register_expand_recipe(ExpandRecipe("to_deal", ("about",)))
    from_fact = memory.brain.expand_by_recipe(KNOWLEDGE, uid(FACT), "to_deal")
    assert [item.object.title for item in from_fact.items] == ["Acme"]
    [found] = find_links(KNOWLEDGE, "has_buyer", "economic buyer", limit=1).links
    assert (found.target.title, found.edge.meta.role) == ("Dana", "primary")


def test_brain_eval_searches_and_expands_at_once_agree(memory: Storage) -> None:
    deals(memory)
    search(KNOWLEDGE, "security review")

    def both(_: int) -> tuple[list[str], int]:
        found = search(KNOWLEDGE, "security review")
        return titles(found), len(memory.brain.expand(KNOWLEDGE, uid(ACME), None, containment=True).items)

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(both, range(16)))
    assert all(answer == answers[0] for answer in answers)
    assert storage.open() is memory
