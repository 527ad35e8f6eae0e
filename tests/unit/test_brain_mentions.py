from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.pipeline import text
from isotherm.pipeline.brain import graph_rank
from isotherm.pipeline.brain.graph_rank import Link
from isotherm.pipeline.brain.mentions import Lexicon, names_of, phrases, spoken, terms_of


def uid(number: int) -> UUID:
    return UUID(int=(1 << 100) + number)


A, B, C, D = (uid(n) for n in range(4))


@pytest.mark.parametrize(
    ("title", "names"),
    [
        ("Boso the Elder", ["boso the elder"]),
        ("Lilu (mythology)", ["lilu", "lilu mythology"]),
        ("ALÛ", ["alu"]),
        ("東京", ["東 京"]),
        ("In", []),
        ("C", []),
        ("1984", []),
        ("the (band)", ["the band"]),
        ("  ", []),
        ("a title of so many words that it is a whole sentence by itself here", []),
    ],
)
def test_names_are_titles_with_and_without_their_qualifier_and_nothing_that_stands_everywhere(
    title: str, names: list[str]
) -> None:
    assert names_of(title, {}) == names


def test_properties_give_further_names() -> None:
    assert names_of("", {"name": "Ada King", "aliases": ["Lovelace", 7, ""]}) == ["ada king", "lovelace"]
    assert names_of("", {"name": 3, "aliases": "Ada"}) == ["ada"]


def test_a_name_is_found_as_whole_words_whatever_its_case_accents_and_punctuation() -> None:
    lexicon = Lexicon(["o brien", "alu", "東 京", "ann"])
    assert lexicon.mentioned("O'Brien met ALÛ; alu, planning in 東京都.") == {"o brien": 1, "alu": 2, "東 京": 1}


def test_inside_a_longer_name_a_name_does_not_count_and_neighbors_both_do() -> None:
    lexicon = Lexicon(["boso", "boso the elder", "the elder scrolls", "hugh"])
    found = lexicon.mentioned("Boso the Elder, Hugh Hugh and Boso")
    assert found == {"boso the elder": 1, "hugh": 2, "boso": 1}


words = st.text(alphabet="abÄß東1 '-", max_size=24)


@settings(max_examples=60)
@given(words, words, words)
def test_a_text_with_a_name_in_it_has_the_name_and_all_its_terms(before: str, name: str, after: str) -> None:
    for one in names_of(name, {}):
        said = f"{before} {name} {after}"
        assert sum(Lexicon([one]).mentioned(said).values()) >= 1
        if "'" not in said and "-" not in said:  # contractions lose letters that a name may be made of
            assert set(terms_of(one)) <= set(text.terms(said))


def test_questions_give_every_run_of_their_words() -> None:
    assert phrases("Who is Ada?", 64) == ["who", "who is", "who is ada", "is", "is ada", "ada"]
    assert phrases("one two three", 1) == ["one"]


def test_only_the_longest_name_at_a_place_of_the_question_is_meant() -> None:
    asked = spoken("Is the Dark River a river?")
    assert graph_rank.longest_names(asked, ["river", "dark river"]) == ["dark river", "river"]
    assert graph_rank.longest_names(spoken("dark river"), ["river", "dark river"]) == ["dark river"]


def test_seeds_are_hits_and_names_in_equal_parts_and_names_of_hubs_count_less() -> None:
    seeds = graph_rank.seeds_of([(A, 2.0), (B, 1.0)], {"c": [C]}, {C: 1})
    assert sum(seeds.values()) == pytest.approx(1)
    assert seeds[C] == pytest.approx(0.5)
    assert seeds[A] == pytest.approx(16 * seeds[B])
    assert graph_rank.seeds_of([(A, 2.0)], {"c": [C]}, {C: 25})[C] == pytest.approx(1 / 6)
    assert graph_rank.seeds_of([], {}, {}) == {}


def test_a_walk_without_edges_stays_in_the_order_of_its_seeds() -> None:
    assert graph_rank.rank({A: 0.75, B: 0.25}, [], {}) == pytest.approx({A: 1, B: 1 / 3})
    assert graph_rank.rank({}, [Link(A, B)], {}) == {}


def test_what_two_seeds_speak_of_is_nearer_than_what_one_does_and_hubs_are_far() -> None:
    links = [Link(A, C), Link(B, C), Link(A, D)]
    ranked = graph_rank.rank({A: 0.5, B: 0.5}, links, {})
    assert ranked[C] > ranked[D] > 0
    hub = graph_rank.rank({A: 1.0}, [Link(A, C), Link(A, D)], {C: 30, D: 1})
    assert hub[D] > hub[C]


def test_edges_are_walked_against_their_direction_too() -> None:
    assert graph_rank.rank({B: 1.0}, [Link(A, B)], {})[A] > 0


ids = st.integers(0, 6).map(uid)


@settings(max_examples=60)
@given(
    st.dictionaries(ids, st.floats(0.01, 1), min_size=1),
    st.sets(st.tuples(ids, ids)),
    st.dictionaries(ids, st.integers(0, 40)),
)
def test_ranks_are_shares_of_the_largest_whatever_the_edges(
    seeds: dict[UUID, float], pairs: set[tuple[UUID, UUID]], known: dict[UUID, int]
) -> None:
    total = sum(seeds.values())
    links = [Link(one, other) for one, other in sorted(pairs) if one != other]
    ranked = graph_rank.rank({i: v / total for i, v in seeds.items()}, links, known)
    assert max(ranked.values()) == pytest.approx(1)
    assert min(ranked.values()) >= 0
    assert ranked.keys() == seeds.keys() | {end for link in links for end in (link.source, link.target)}
