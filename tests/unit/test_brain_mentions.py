from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.pipeline import text
from isotherm.pipeline.brain import graph_rank
from isotherm.pipeline.brain.graph_rank import Neighborhood
from isotherm.pipeline.brain.mentions import Lexicon, names_of, phrases, spoken, terms_of


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


words = st.text(alphabet="abÄß東京한 '-・", max_size=24)


@settings(max_examples=150)
@given(words, words, words, st.sampled_from(["", " "]))
def test_a_text_with_a_name_in_it_has_the_name_and_all_its_terms(before: str, name: str, after: str, gap: str) -> None:
    said = f"{before}{gap}{name}{gap}{after}"
    names = names_of(name, {})
    found = [one for one in names if Lexicon([one]).mentioned(said)]
    as_said = " ".join(spoken(name))
    if gap and as_said in names and not {"(", ")"} & set(name):
        assert as_said in found
    for one in found:
        if "'" not in said and "-" not in said:  # contractions lose letters that a name may be made of
            assert set(terms_of(one)) <= set(text.terms(said))


@pytest.mark.parametrize(
    ("title", "said", "otherwise"),
    [
        ("山田 太郎", "昨日、山田 太郎に会った。", "山田 次郎に会った。"),
        ("山田 太郎", "昨日、山田太郎に会った。", "山田と太郎に会った。"),
        ("ジョン・スミス", "ジョン・スミスは来た", "ジョンはスミスと来た"),
        ("สมชาย ใจดี", "พบ สมชาย ใจดี", "พบ สมชาย ใจ"),
        ("서울 시청", "어제 서울 시청에 서울 시청", "서울시청"),
    ],
)
def test_a_name_with_gaps_where_its_script_needs_none_is_found_with_and_without_them(
    title: str, said: str, otherwise: str
) -> None:
    names = names_of(title, {})
    found = Lexicon(names).mentioned(said)
    assert sum(found.values()) == 1
    assert all(set(terms_of(one)) <= set(text.terms(said)) for one in found)
    assert not Lexicon(names).mentioned(otherwise)


def test_questions_give_every_run_of_their_words() -> None:
    assert phrases("Who is Ada?", 64) == ["who", "who is", "who is ada", "is", "is ada", "ada"]
    assert phrases("one two three", 1) == ["one"]


def test_only_the_longest_name_at_a_place_of_the_question_is_meant() -> None:
    asked = spoken("Is the Dark River a river?")
    assert graph_rank.longest_names(asked, ["river", "dark river"]) == ["dark river", "river"]
    assert graph_rank.longest_names(spoken("dark river"), ["river", "dark river"]) == ["dark river"]


A, B, C, D = "abcd"


def ranked(
    seeds: dict[str, float], edges: list[tuple[str, str]], known: dict[str, int] | None = None
) -> dict[str, float]:
    near = Neighborhood()
    for source, target in edges:
        near.add(near.place(source), [], [(target, 1)])
    near.into = {near.place(node): count for node, count in (known or {}).items()}
    met = near.met(seeds)
    return dict(zip(near.named(range(len(met))), met.tolist(), strict=True))


def test_seeds_are_hits_and_names_in_equal_parts_and_names_of_hubs_count_less() -> None:
    seeds = graph_rank.seeds_of([(A, 2.0), (B, 1.0)], {"c": [C]}, {C: 1})
    assert sum(seeds.values()) == pytest.approx(1)
    assert seeds[C] == pytest.approx(0.5)
    assert seeds[A] == pytest.approx(16 * seeds[B])
    assert graph_rank.seeds_of([(A, 2.0)], {"c": [C]}, {C: 25})[C] == pytest.approx(1 / 6)
    assert graph_rank.seeds_of([], {}, {}) == {}


def test_a_walk_without_edges_stays_in_the_order_of_its_seeds() -> None:
    assert ranked({A: 0.75, B: 0.25}, []) == pytest.approx({A: 1, B: 1 / 3})
    assert ranked({}, []) == {}
    assert ranked({}, [(A, B)]) == {A: 0, B: 0}


def test_what_two_seeds_speak_of_is_nearer_than_what_one_does_and_hubs_are_far() -> None:
    met = ranked({A: 0.5, B: 0.5}, [(A, C), (B, C), (A, D)])
    assert met[C] > met[D] > 0
    hub = ranked({A: 1.0}, [(A, C), (A, D)], {C: 30, D: 1})
    assert hub[D] > hub[C]


def test_edges_are_walked_against_their_direction_too() -> None:
    assert ranked({B: 1.0}, [(A, B)])[A] > 0


def test_edges_into_hubs_are_left_out_and_long_lists_are_cut() -> None:
    near = Neighborhood()
    own = near.place(A)
    near.add(own, [(f"in{n}", 1) for n in range(graph_rank.HUB + 1)], [(f"out{n}", 1) for n in range(80)])
    assert (near.hubs, near.followed()) == ({own}, graph_rank.OUTGOING)
    assert near.unread(near.met({A: 1.0}), 3) == ["out0", "out1", "out2"]


letters = st.sampled_from("abcdefg")


@settings(max_examples=60)
@given(
    st.dictionaries(letters, st.floats(0.01, 1), min_size=1),
    st.sets(st.tuples(letters, letters)),
    st.dictionaries(letters, st.integers(0, 40)),
)
def test_ranks_are_shares_of_the_largest_whatever_the_edges(
    seeds: dict[str, float], pairs: set[tuple[str, str]], known: dict[str, int]
) -> None:
    total = sum(seeds.values())
    edges = [(one, other) for one, other in sorted(pairs) if one != other]
    met = ranked({i: v / total for i, v in seeds.items()}, edges, known)
    assert max(met.values()) == pytest.approx(1)
    assert min(met.values()) >= 0
    assert met.keys() == seeds.keys() | known.keys() | {end for edge in edges for end in edge}
