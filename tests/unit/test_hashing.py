from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.pipeline.hashing import digest

parts = st.lists(st.one_of(st.none(), st.text(max_size=6), st.binary(max_size=6)), max_size=4)


@settings(deadline=None)
@given(parts, parts)
def test_different_sequences_have_different_digests(first: list[Any], second: list[Any]) -> None:
    same = [(type(part), part) for part in first] == [(type(part), part) for part in second]
    assert (digest(*first) == digest(*second)) is same


def test_absent_empty_and_bytes_differ() -> None:
    assert len({digest(None), digest(""), digest(b""), digest(), digest("", "")}) == 5


def test_moving_a_character_between_parts_changes_the_digest() -> None:
    assert digest("ab", "c") != digest("a", "bc")


def test_digest_is_stable_across_releases() -> None:
    assert digest("a", None, b"b").hex() == "309c9e2e0f1402498669841db8018a0f11b916741b72c29fc12129e510729404"


def test_unpaired_surrogates_have_a_digest_of_their_own() -> None:
    assert digest("\ud800") != digest("\ud801")
