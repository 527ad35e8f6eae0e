import time

from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.ports import KeyphraseExtractor
from isotherm.storage.models.keyphrases import CountingKeyphrases

TEXT = (
    "I moved our staging database from Postgres 15 to Postgres 17 last week and the connection pool kept timing out. "
    "I prefer dark mode in the editor. My daughter Emma plays the violin. I'm planning a trip to Lisbon in May."
)
extractor: KeyphraseExtractor = CountingKeyphrases()


def test_subjects_are_found_and_codes_come_first() -> None:
    found = [phrase.text for phrase in extractor.extract(TEXT, 8)]
    assert set(found[:2]) == {"Postgres 15", "Postgres 17"}
    assert {"staging database", "connection pool", "dark mode", "Lisbon"} <= set(found)


def test_what_is_said_more_often_scores_higher() -> None:
    found = extractor.extract("We talked. The violin is old. A piano came. Her violin sounds better than a violin.", 5)
    assert "violin" in found[0].text


def test_texts_without_words_have_no_keyphrases() -> None:
    for text in ("", "  ", "the of and", "!!!", "17 18"):
        assert extractor.extract(text, 5) == []
    assert extractor.extract(TEXT, 0) == []


@given(st.text() | st.lists(st.sampled_from(TEXT.split()), max_size=30).map(" ".join), st.integers(0, 6))
def test_phrases_are_few_ordered_and_repeatable(text: str, limit: int) -> None:
    found = extractor.extract(text, limit)
    assert len(found) <= limit
    scores = [phrase.score for phrase in found]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score <= 1 for score in scores)
    assert len({phrase.text for phrase in found}) == len(found)
    assert found == extractor.extract(text, limit)


def test_long_text_takes_linear_time() -> None:
    started = time.process_time()
    extractor.extract(TEXT * 1000, 10)
    extractor.extract("a" * 200_000 + "." * 200_000, 10)
    assert time.process_time() - started < 5
