"""Vectors of texts that are longer than a model reads: the mean of their windows, so that no part of a text is unheard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from isotherm.pipeline.ports import Embedder

# Models read a few hundred or thousand tokens, and servers refuse more.
WINDOW_CHARS: Final = 6_000
WINDOWS: Final = 8


def windows(text: str, chars: int = WINDOW_CHARS, most: int = WINDOWS) -> list[str]:
    """The text in stretches of at most `chars`, cut between words where there are some; what is beyond `most` is left out."""
    found: list[str] = []
    rest = text
    while len(rest) > chars and len(found) < most:
        cut = rest.rfind(" ", chars // 2, chars)
        cut = chars if cut < 0 else cut
        found.append(rest[:cut])
        rest = rest[cut:].lstrip()
    return [*found, rest] if len(found) < most else found


def embed_whole(embedder: Embedder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Embed texts of any length; a text of one window gets its vector unchanged.

    Returns: shape (n, dimension), rows of unit length.
    Raises: as `Embedder.embed`.
    """
    cut = [windows(text) for text in texts]
    made = embedder.embed([window for each in cut for window in each])
    if len(made) == len(texts):
        return made
    found, at = np.zeros((len(texts), made.shape[1]), dtype=np.float32), 0
    for row, each in enumerate(cut):
        mean = made[at : at + len(each)].mean(axis=0)
        length = float(np.linalg.norm(mean))
        # Windows that cancel each other out say nothing together; the first one speaks then.
        found[row] = mean / length if length > 0 else made[at]
        at += len(each)
    return found
