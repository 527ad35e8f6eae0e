import numpy as np
from hash_embedder import HashEmbedder
from hypothesis import given
from hypothesis import strategies as st

from isotherm.pipeline.ports import Embedder


@given(st.lists(st.text(max_size=20), max_size=4))
def test_rows_are_unit_and_depend_on_their_text_alone(texts: list[str]) -> None:
    embedder: Embedder = HashEmbedder()
    found = embedder.embed(texts)
    assert found.shape == (len(texts), 384)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), np.ones(len(texts)), atol=1e-5)
    for row, text in enumerate(texts):
        np.testing.assert_array_equal(HashEmbedder().embed([text])[0], found[row])


def test_shared_words_are_nearer_than_none() -> None:
    one, two, three = HashEmbedder().embed(["postgres indexes", "postgres vacuum", "violin lessons"])
    assert one @ two > 0.3 > abs(one @ three)
