"""The app as a worker runs it, with an embedder that takes its time: so many seconds for each text."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from hash_embedder import HashEmbedder
from numpy import float32
from numpy.typing import NDArray

from isotherm.storage.models import factory
from isotherm.tasks import app

__all__ = ["app"]

_EACH_S = float(os.environ["OVERLOAD_EACH_S"])


class Slow(HashEmbedder):
    """Embeds at a fixed rate, whatever the machine does."""

    def embed(self, texts: Sequence[str]) -> NDArray[float32]:
        time.sleep(_EACH_S * len(texts))
        self.asked.clear()
        return super().embed(texts)


# Made before the fork; each child has its own copy.
_slow = Slow()
factory.embedder = lambda _: _slow
