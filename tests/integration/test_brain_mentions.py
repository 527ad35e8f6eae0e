from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from brain_kit import KNOWLEDGE, OTHER, check_brain, new, settle, titles, uid
from inprocess import STAGES

from isotherm.pipeline.brain import graph_rank
from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.brain.filters import Filters
from isotherm.pipeline.brain.graph_rank import Walked
from isotherm.pipeline.brain.result_sets import SearchContext
from isotherm.pipeline.errors import RejectedError
from isotherm.storage import brain_mentions as linking
from isotherm.storage.models import factory
from isotherm.storage.postgres import brain_mentions
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import brain_unnamed
from isotherm.tasks.produce_brain import expand, link, put_many, search, soft_delete, unlink

if TYPE_CHECKING:
    from collections.abc import Iterator

    from isotherm.storage.opened import Storage

_EDGES = """SELECT source, target, mentions FROM brain_edges
            WHERE deleted_at IS NULL AND label = 'mentions' ORDER BY source, target"""


def number(object_id: object) -> int:
    return int(object_id) - (1 << 100)  # type: ignore[call-overload, no-any-return]


def mentions() -> dict[tuple[int, int], int | None]:
    return {(number(one), number(other)): count for one, other, count in fetch_all(_EDGES)}


@pytest.fixture(autouse=True)
def consistent(memory: Storage) -> Iterator[None]:
    """Whatever a test did, words agree with objects, and so does every edge with the texts."""
    factory.use_embedder(memory.settings, None)
    yield
    check_brain()
    before = mentions()
    fetch_all("UPDATE brain_names SET linked = false RETURNING 1")
    rows = fetch_all("SELECT namespace_id, id FROM brain_objects WHERE parent_id IS NULL")
    for namespace in {row[0] for row in rows}:
        own = sorted(row[1] for row in rows if row[0] == namespace)
        with connection() as conn:
            changed = linking.write(conn, namespace, own, linking.read(namespace, own))
        assert (changed.linked, changed.unlinked) == (0, 0)
    assert mentions() == before


def test_a_new_text_is_linked_with_names_that_are_known_and_counts_them() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "Sea otter")])
    settle()
    put_many(KNOWLEDGE, [new(3, "Reef", "Sea otters eat; the Sea Otter likes KELP, and kelp likes light")])
    settle()
    assert mentions() == {(3, 1): 2, (3, 2): 1}


def test_steps_that_wait_go_together_and_each_ends_in_its_own_operation() -> None:
    put_many(KNOWLEDGE, [new(1, "Reef", "the sea otter is here")])
    put_many(OTHER, [new(1, "Bay", "a crab on kelp"), new(2, "Kelp")])
    put_many(KNOWLEDGE, [new(2, "Sea otter")])
    waiting = """SELECT s.id, s.operation_id, o.trace_id FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id
                 WHERE s.stage = 'brain.mention' ORDER BY s.id"""
    step_id, operation, trace = fetch_all(waiting)[0]
    told = STAGES["brain.mention"]({"step_id": step_id, "operation_id": str(operation), "trace_id": str(trace)})
    assert told == {"texts": 4, "linked": 2, "unlinked": 0}
    assert fetch_all("SELECT state, receipt FROM operation_steps WHERE stage = 'brain.mention'") == [("done", told)] * 3
    assert fetch_all("SELECT namespace_id, source, target FROM brain_edges ORDER BY namespace_id") == [
        (1, uid(1), uid(2)),
        (2, uid(1), uid(2)),
    ]
    assert fetch_all("SELECT DISTINCT state FROM operations") == [("running",)], "the mirror still waits"
    settle()
    assert fetch_all("SELECT DISTINCT state FROM operations") == [("done",)]


def test_a_new_name_is_linked_with_texts_that_are_known() -> None:
    put_many(KNOWLEDGE, [new(1, "Reef", "the sea otter is here"), new(2, "Bay", "a sea, an otter")])
    settle()
    put_many(KNOWLEDGE, [new(3, "Sea otter")])
    settle()
    assert mentions() == {(1, 3): 1}


def test_a_name_that_goes_takes_its_edges_and_a_longer_one_takes_over() -> None:
    put_many(KNOWLEDGE, [new(1, "Reef", "an otter named Boso the Elder"), new(2, "Boso"), new(3, "Otter")])
    settle()
    assert mentions() == {(1, 2): 1, (1, 3): 1}
    put_many(KNOWLEDGE, [new(4, "Boso the Elder")])
    settle()
    assert mentions() == {(1, 3): 1, (1, 4): 1}
    soft_delete(KNOWLEDGE, uid(4))
    put_many(KNOWLEDGE, [new(3, "Beaver")])
    settle()
    assert mentions() == {(1, 2): 1}
    put_many(KNOWLEDGE, [new(4, "Boso the Elder"), new(3, "Otter")])
    settle()
    assert mentions() == {(1, 3): 1, (1, 4): 1}


def test_a_text_that_changes_or_goes_takes_its_edges_and_brings_them_back() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "Moss"), new(3, "Reef", "kelp and kelp")])
    settle()
    put_many(KNOWLEDGE, [new(3, "Reef", "moss")])
    settle()
    assert mentions() == {(3, 2): 1}
    soft_delete(KNOWLEDGE, uid(3))
    settle()
    assert mentions() == {}
    put_many(KNOWLEDGE, [new(3, "Reef", "kelp, moss")])
    settle()
    assert mentions() == {(3, 1): 1, (3, 2): 1}


def test_parts_speak_for_their_object_and_never_of_it() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "Handbook"), new(3, "On kelp", "the handbook on kelp", parent=2)])
    settle()
    assert mentions() == {(2, 1): 2}
    soft_delete(KNOWLEDGE, uid(3))
    settle()
    assert mentions() == {}


def test_names_of_another_namespace_are_not_known() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp")])
    put_many(OTHER, [new(2, "Reef", "kelp"), new(3, "Bay", "nothing")])
    settle()
    assert mentions() == {}
    walked = search(OTHER, "kelp", graph=True).walked
    assert walked is not None
    assert walked.named == 0


def test_an_edge_made_by_hand_is_nobody_elses_and_one_taken_out_stays_out() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "Moss"), new(3, "Reef", "kelp, moss")])
    link(KNOWLEDGE, uid(3), uid(1), "mentions", note="said so")
    settle()
    assert mentions() == {(3, 1): None, (3, 2): 1}
    unlink(KNOWLEDGE, uid(3), uid(2), "mentions")
    put_many(KNOWLEDGE, [new(3, "Reef", "kelp, moss, moss")])
    settle()
    assert mentions() == {(3, 1): None}


def test_what_everybody_mentions_gets_no_more_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brain_mentions, "MENTIONED_BY", 3)
    put_many(KNOWLEDGE, [new(1, "Kelp"), *(new(n, f"Bay {n}", "kelp") for n in range(10, 16))])
    settle()
    assert len(mentions()) == 3
    put_many(KNOWLEDGE, [new(20, "Late", "kelp")])
    settle()
    assert len(mentions()) == 3
    fetch_all(
        "DELETE FROM brain_edges RETURNING 1"
    )  # what stands depends on who came first, so there is no other truth
    fetch_all("DELETE FROM brain_names RETURNING 1")


def test_mentions_reach_the_graph_with_their_counts() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "Reef", "kelp, kelp")])
    settle()
    assert fetch_all("SELECT properties ->> 'mentions' FROM graph_edges WHERE NOT deleted") == [("2",)]
    assert [found.object.title for found in expand(KNOWLEDGE, uid(2), ["mentions"]).items] == ["Kelp"]


def chain() -> None:
    """A question names the film; who made it is in the film's text, and where they were born in theirs."""
    put_many(
        KNOWLEDGE,
        [
            new(1, "Dark River (film)", "a film by Clio Barnard"),
            new(2, "Clio Barnard", "was brought up in Otley"),
            new(3, "Otley", "lies on the Wharfe"),
            *(new(n, f"Place {n}", "where a director was born, place of birth") for n in range(10, 20)),
        ],
    )
    settle()


def test_a_walk_finds_what_no_word_of_the_question_is_in_and_says_what_it_read() -> None:
    chain()
    question = "birth place of the director of Dark River"
    plain, walked = search(KNOWLEDGE, question, limit=3), search(KNOWLEDGE, question, limit=3, graph=True)
    assert titles(walked)[:2] == ["Dark River (film)", "Clio Barnard"]
    assert "Clio Barnard" not in titles(plain)
    assert plain.walked is None
    assert walked.walked is not None
    assert (walked.walked.named, walked.walked.edges, walked.walked.truncated) == (1, 2, False)
    assert "graph" in walked.results[1].shares
    assert walked.results[1].score == pytest.approx(sum(share.added for share in walked.results[1].shares.values()))


def test_what_a_walk_finds_satisfies_the_filters() -> None:
    chain()
    answer = search(KNOWLEDGE, "Dark River", filters=Filters.of(scope_ids=[uid(1), uid(3)]), graph=True)
    assert titles(answer) == ["Dark River (film)", "Otley"]


def test_a_page_is_the_same_whether_the_rest_is_kept_or_not_even_checked() -> None:
    chain()
    put_many(KNOWLEDGE, [new(n, f"Ward {n}", "Otley, and the place of birth") for n in range(20, 32)])
    settle()
    question = "birth place of the director of Dark River"
    page = search(KNOWLEDGE, question, limit=3, decay=Decay.off(), graph=True)
    kept = search(KNOWLEDGE, question, limit=3, decay=Decay.off(), graph=True, context=SearchContext())
    assert [(r.object.id, r.score) for r in page.results] == [(r.object.id, r.score) for r in kept.results]
    assert page.has_more
    assert kept.has_more
    assert page.walked == kept.walked


def test_without_edges_and_names_an_answer_is_what_it_was() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp", "grows at twelve meters"), new(2, "Moss", "grows on stone")])
    settle()
    plain = search(KNOWLEDGE, "what grows", decay=Decay.off())
    walked = search(KNOWLEDGE, "what grows", decay=Decay.off(), graph=True)
    assert [(r.object.id, r.score) for r in plain.results] == [(r.object.id, r.score) for r in walked.results]
    assert walked.walked == Walked(seeds=2, expanded=2)


def test_edges_into_what_everybody_mentions_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_rank, "HUB", 3)
    chain()
    put_many(KNOWLEDGE, [new(n, f"Film {n}", "by Clio Barnard") for n in range(30, 35)])
    settle()
    walked = search(KNOWLEDGE, "Dark River", limit=3, graph=True).walked
    assert walked is not None
    assert walked.hubs == 1


def test_objects_of_an_earlier_version_are_looked_at_by_a_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "Reef", "kelp"), new(3, "part", parent=1)])
    settle()
    for table in ("brain_edges", "brain_names"):
        fetch_all(f"DELETE FROM {table} RETURNING 1")
    fetch_all("INSERT INTO brain_unnamed SELECT key FROM brain_objects WHERE parent_id IS NULL RETURNING 1")
    monkeypatch.setattr(brain_unnamed, "_ROWS", 1)
    assert [brain_unnamed.unnamed()["objects"] for _ in range(3)] == [1, 1, 0]
    settle()
    assert mentions() == {(2, 1): 1}


def test_a_tick_waits_while_the_stage_is_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brain_unnamed, "_WAITING", 1)
    put_many(KNOWLEDGE, [new(1, "Kelp")])
    fetch_all("INSERT INTO brain_unnamed SELECT key FROM brain_objects RETURNING 1")
    assert brain_unnamed.unnamed() == {"objects": 0}
    settle()
    assert brain_unnamed.unnamed() == {"objects": 1}
    settle()


_WORDS = ("kelp", "sea", "otter", "sea otter", "boso", "boso the elder", "elder", "reef (place)")
_PENDING = """SELECT s.id, s.operation_id, o.trace_id, s.stage FROM operation_steps AS s
              JOIN operations AS o ON o.id = s.operation_id WHERE s.state = 'pending' AND s.stage = 'brain.mention'"""


def act(rng: random.Random) -> None:
    """Something that happens to a few objects, whose titles and texts are of few words."""
    one = rng.randrange(1, 9)
    try:
        if rng.random() < 0.2:
            soft_delete(KNOWLEDGE, uid(one))
        elif rng.random() < 0.2:
            put_many(KNOWLEDGE, [new(100 + one, "", " ".join(rng.choices(_WORDS, k=3)), parent=one)])
        else:
            put_many(KNOWLEDGE, [new(one, rng.choice(_WORDS), " ".join(rng.choices(_WORDS, k=rng.randrange(4))))])
    except RejectedError:
        return  # not there, or its parent is not


def run_some(rng: random.Random) -> None:
    """Steps in any order, as many workers run them."""
    waiting = fetch_all(_PENDING)
    for step_id, operation_id, trace_id, stage in rng.sample(waiting, k=rng.randrange(len(waiting) + 1)):
        STAGES[stage]({"step_id": step_id, "operation_id": str(operation_id), "trace_id": str(trace_id)})


@pytest.mark.parametrize("seed", range(3))
def test_whatever_comes_goes_and_in_which_order_edges_are_what_reading_everything_would_give(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(25):
        act(rng)
        run_some(rng)
    settle()
    assert mentions()


def test_writers_and_stages_at_once_lose_nothing() -> None:
    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(12):
            act(rng)
            run_some(rng)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, (11, 12)))
    settle()
    assert mentions()


def test_links_made_by_hand_are_walked_too() -> None:
    put_many(KNOWLEDGE, [new(1, "Kelp"), new(2, "Tides", "come and go")])
    link(KNOWLEDGE, uid(1), uid(2), "needs")
    settle()
    assert titles(search(KNOWLEDGE, "kelp", graph=True)) == ["Kelp", "Tides"]
