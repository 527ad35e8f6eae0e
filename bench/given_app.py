"""The product's application, whose worker has vectors at no cost: `celery -A given_app worker`."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from celery import signals
from corpus import SEED
from numpy.typing import NDArray

from isotherm.storage.models import factory
from isotherm.storage.settings import settings
from isotherm.tasks import app

__all__ = ["Given", "app"]


class Given:
    """Vectors at no cost, one for each text, as far from each other as chance has it: for bytes and for speed."""

    model = "bench-given"
    dimension = 384

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Shape (n, 384), rows of unit length."""
        seeds = [int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big") for text in texts]
        rows = np.array(
            [np.random.default_rng(seed ^ SEED).standard_normal(self.dimension) for seed in seeds], np.float32
        )
        unit: NDArray[np.float32] = rows.reshape(-1, self.dimension)
        return unit / np.linalg.norm(unit, axis=1, keepdims=True)


@signals.worker_process_init.connect  # type: ignore[untyped-decorator]  # celery ships no types
def _given(**_: Any) -> None:  # noqa: ANN401 - signals pass what they like
    factory.use_embedder(settings(), Given())
