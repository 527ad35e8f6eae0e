from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.fusion import Fusion, Ranked, fuse, meaning, peakedness, telling, weights, words

Hits = list[tuple[int, float]]
LEG = st.dictionaries(st.integers(0, 9), st.floats(-1, 30, allow_nan=False), max_size=8).map(
    lambda hits: sorted(hits.items(), key=lambda hit: -hit[1])
)


def test_brain_r1_ranks_of_both_lists_add_up() -> None:
    one, two = words([("a", 9), ("b", 8), ("c", 7)]), words([("c", 3), ("a", 2)])
    found = fuse({"one": one, "two": two}, Fusion.RRF)
    assert [hit.key for hit in found] == ["a", "c", "b"]
    assert [round(hit.score, 6) for hit in found] == [0.032522, 0.032266, 0.016129]


@pytest.mark.parametrize("rrf_k", [0, -1, 60])
def test_brain_r2_no_hits_give_none_and_a_constant_of_zero_means_60(rrf_k: int) -> None:
    nothing: dict[str, Ranked[str]] = {"one": words([]), "two": meaning([])}
    assert fuse({}, Fusion.RRF, rrf_k=rrf_k) == []
    assert fuse(nothing) == []
    assert fuse({"one": words([("a", 1.0)])}, Fusion.RRF, rrf_k=rrf_k)[0].score == 1 / 61


@given(legs=st.dictionaries(st.sampled_from(["one", "two", "three"]), LEG), method=st.sampled_from(Fusion))
def test_a_fused_score_is_the_sum_of_its_shares_and_every_hit_is_there_once(
    legs: dict[str, Hits], method: Fusion
) -> None:
    found = fuse({name: words(leg) for name, leg in legs.items()}, method)
    assert sorted(hit.key for hit in found) == sorted({key for leg in legs.values() for key, _ in leg})
    for hit in found:
        assert hit.score == pytest.approx(sum(share.added for share in hit.shares.values()))
        assert all(0 <= share.added <= 1 for share in hit.shares.values())
        assert {name: legs[name][share.rank] for name, share in hit.shares.items()} == {
            name: (hit.key, share.score) for name, share in hit.shares.items()
        }
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)


@given(LEG, st.sampled_from(Fusion))
def test_one_leg_alone_keeps_its_order(leg: Hits, method: Fusion) -> None:
    assert [hit.key for hit in fuse({"one": meaning(leg), "two": words([])}, method)] == [key for key, _ in leg]


@given(LEG, st.floats(0.01, 100))
def test_the_scale_of_a_leg_does_not_matter(leg: Hits, factor: float) -> None:
    other = meaning([(3, 0.5), (4, 0.4)])
    plain = {hit.key: hit.score for hit in fuse({"one": words(leg), "two": other})}
    larger = words([(key, score * factor) for key, score in leg])
    scaled = {hit.key: hit.score for hit in fuse({"one": larger, "two": other})}
    assert scaled == {key: pytest.approx(score, abs=1e-9) for key, score in plain.items()}


def flat(best: str) -> list[tuple[str, float]]:
    return [(best, 5.0), *((f"other {n}", 4.9) for n in range(40))]


def peaked(best: str) -> list[tuple[str, float]]:
    return [(best, 5.0), *((f"other {n}", 1.0) for n in range(40))]


def test_a_leg_whose_best_stand_out_is_heard_above_one_that_rates_all_alike() -> None:
    assert fuse({"one": words(flat("a")), "two": words(peaked("b"))})[0].key == "b"
    assert fuse({"one": words(peaked("a")), "two": words(flat("b"))})[0].key == "a"


def test_words_are_heard_less_the_less_they_tell() -> None:
    def heard(asked: int) -> float:
        return weights({"words": words(peaked("a"), telling(5.0, asked)), "meaning": meaning(peaked("b"))})["words"]

    assert heard(1) == heard(2) == weights({"words": words(peaked("a")), "meaning": meaning(peaked("b"))})["words"]
    assert heard(2) > heard(5) > heard(50) > 0
    assert weights({"words": words(peaked("a"), telling(5.0, 50))}) == {"words": 1.0}


def test_a_leg_may_bring_a_confidence_of_its_own() -> None:
    legs = {"one": words(peaked("a")), "walk": Ranked(flat("b"), confidence=1.0)}
    assert weights(legs)["walk"] > weights(legs)["one"]
    assert weights({"one": words(peaked("a")), "walk": Ranked(peaked("b"), confidence=0.0)})["walk"] < 0.1


@given(st.lists(LEG, min_size=1, max_size=3))
def test_the_weights_of_legs_that_found_something_sum_to_one(legs: list[Hits]) -> None:
    heard = weights({str(n): words(leg) for n, leg in enumerate(legs)})
    found = [any(score > 0 for _, score in leg) for leg in legs]
    assert [weight > 0 for weight in heard.values()] == found
    assert sum(heard.values()) == pytest.approx(1.0 if any(found) else 0.0)


def test_what_a_leg_of_words_leaves_out_has_none_and_what_cosines_leave_out_has_a_little_less() -> None:
    few = [0.9, 0.45]
    assert peakedness(few) == 1.0
    assert peakedness(few, is_whole=False) == pytest.approx(0.5)
    assert peakedness([]) == peakedness([0.0]) == 0.0
