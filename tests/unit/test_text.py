import random
import threading
import time
import unicodedata
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.pipeline.text import SPLITTER_VERSION, fold, term_counts, term_of, terms, words

mixed = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(
            "aAeéİ\u0131\u017fßǅøÆ\u0345\u0301\u0308\u3099ーｶﾞ黒猫はひ한글ไทยที่ำ١२½²ﬁ﷽'\u2019-_.@+#\u00ad\u200d \n\t\u00a0\u2003"
        ),
    ),
    max_size=25,
)
relaxed = settings(deadline=None, max_examples=300)


@relaxed
@given(mixed)
def test_any_text_is_split_without_an_error_and_terms_fit_64_bits(text: str) -> None:
    assert all(words(text))
    found = terms(text)
    assert found == sorted(set(found))
    assert all(-(2**63) <= term < 2**63 for term in found)


@relaxed
@given(mixed)
def test_folding_twice_changes_nothing_and_neither_do_case_and_compatibility_forms(text: str) -> None:
    assert fold(fold(text)) == fold(text)
    assert words(fold(text)) == words(text)
    assert words(unicodedata.normalize("NFKC", text)) == words(text)
    assert words(text.casefold()) == words(text)


@relaxed
@given(mixed, mixed, st.sampled_from([" ", "\n", "\u3000"]))
def test_joining_two_texts_with_white_space_joins_their_words(first: str, second: str, space: str) -> None:
    anchored_first, anchored_second = f"anchor {first}", f"{second} anchor"
    joined = words(anchored_first + space + anchored_second)
    assert joined == words(anchored_first) + words(anchored_second)


@relaxed
@given(mixed)
def test_counts_agree_with_words(text: str) -> None:
    assert term_counts(text) == {term_of(word): count for word, count in Counter(words(text)).items()}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The dogs were running", ["dog", "run"]),
        ("to be or not to be", ["to", "be", "or", "not", "to", "be"]),
        ("", []),
        ("a I", []),
        ("x 7 y 42", ["7", "42"]),
        ("see GOALS.md", ["see", "goals.md", "goal", "md"]),
        ("v1.2 vs V1.3", ["v1.2", "v1", "2", "vs", "v1.3", "v1", "3"]),
        ("SR-052", ["sr-052", "sr", "052"]),
        ("foo_bar", ["foo_bar", "foo", "bar"]),
        ("user@example.com", ["user@example.com", "user", "exampl", "com"]),
        (
            "https://docs.example.com/start?x=1",
            ["https", "docs.example.com", "doc", "exampl", "com", "start", "1"],
        ),
        ("don't touch the user\u2019s files", ["touch", "user", "file"]),
        ("café naïve Łukasz Straße", ["cafe", "naiv", "lukasz", "strass"]),
        ("C++ and C#", ["c++", "c#"]),
        ("我喜欢Python编程", ["我喜", "喜欢", "python", "编程"]),
        ("猫", ["猫"]),
        ("黒猫です", ["黒猫", "猫で", "です"]),
        ("ｶﾞｲﾄﾞ", ["ガイ", "イド"]),
        ("안녕하세요 세계", ["안녕", "녕하", "하세", "세요", "세계"]),
        ("ไทย", ["ไท", "ทย"]),
        ("привет, мир", ["привет", "мир"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("\uff26\uff35\uff2c\uff2c", ["full"]),
        ("co\u00adoperate", ["cooper"]),
        ("so-called", ["so-called", "call"]),
    ],
)
def test_examples_split_as_documented(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_punctuation_does_not_hide_a_word() -> None:
    assert set(terms("billing")) <= set(terms("About (billing), mostly."))


def test_limit_keeps_the_first_terms() -> None:
    text = " ".join(f"w{n}" for n in range(50))
    assert set(terms(text, limit=10)) == {term_of(f"w{n}") for n in range(10)}
    assert len(terms(text)) == 50


def test_terms_are_stable_across_releases() -> None:
    assert SPLITTER_VERSION == 1
    assert term_of("hello") == -1959167430035521999


def test_a_megabyte_is_split_quickly_also_in_the_worst_cases() -> None:
    source = random.Random(7)
    cases = [
        "a" * 1_000_000,
        "a_" * 500_000,
        "a" + "_" * 999_999,
        "é" + "a." * 499_999,
        "a" + "\u0301" * 500_000,
        " ".join(f"{source.getrandbits(32):08x}" for _ in range(111_000)),
        "".join(chr(source.randint(0x4E00, 0x9FA5)) for _ in range(333_000)),
    ]
    for case in cases:
        started = time.process_time()
        terms(case)
        assert time.process_time() - started < 3  # about 0.2 s; the rest is for a busy machine


def test_threads_split_alike() -> None:
    text = "running dogs are jumping over lazy foxes " * 50
    expected = words(text)
    seen: list[list[str]] = []
    threads = [threading.Thread(target=lambda: seen.append(words(text))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [expected] * 8
