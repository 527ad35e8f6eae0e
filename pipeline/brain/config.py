"""Every knob of the engine, with bounds; none of them is an argument that an agent may choose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from isotherm.pipeline.brain.decay import Decay
from isotherm.pipeline.clean import whole_limit
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.fusion import RRF_K, Fusion

_POSITIVE = ("candidate_k", "rrf_k", "evidence_n", "default_limit", "max_limit", "expand_inline_max", "sibling_radius",
             "graph_neighbor_k", "max_expand_hops", "max_graph_calls", "max_result_set", "rerank_n")  # fmt: skip


def utc_now() -> datetime:
    """The time of this machine."""
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine searches and walks.

    Args: candidate_k: hits of each leg, and more when they stand for too few objects; fusion, rrf_k: how legs are joined;
        decay: what age does to a score; evidence_n: parts kept for each object; default_limit, max_limit: objects of a
        page; expand_inline_max: most objects of an expand that are answered without paging; sibling_radius: parts shown
        on each side of a part; graph_neighbor_k: steps from one object; max_expand_hops: longest walk; max_graph_calls:
        objects whose edges are read in one walk; max_result_set: objects kept for later pages; rerank_n: best objects
        that a reranker sees; graph: whether searches walk over edges, unless their caller says otherwise; newest_first: whether what is newer comes before
        what it renews, unless they say otherwise; fail_on_embedder_error, fail_on_graph_error: raise instead of degrading; now: the clock.
    """

    candidate_k: int = 40
    fusion: Fusion = Fusion.SCORES
    rrf_k: int = RRF_K
    decay: Decay = field(default_factory=Decay)
    evidence_n: int = 3
    default_limit: int = 10
    max_limit: int = 200
    expand_inline_max: int = 20
    sibling_radius: int = 5
    graph_neighbor_k: int = 50
    max_expand_hops: int = 4
    max_graph_calls: int = 64
    max_result_set: int = 1_000
    rerank_n: int = 50
    graph: bool = False
    newest_first: bool = True
    fail_on_embedder_error: bool = False
    fail_on_graph_error: bool = False
    now: Callable[[], datetime] = utc_now

    def __post_init__(self) -> None:
        wrong = [name for name in _POSITIVE if getattr(self, name) < 1]
        if wrong:
            raise RejectedError(f"engine: {', '.join(wrong)} must be 1 or more")

    @classmethod
    def go_default(cls) -> Self:
        """The numbers of the system this one descends from: fusion by ranks, and decay without a floor."""
        return cls(fusion=Fusion.RRF, decay=Decay(per_day=0.02, floor=0.0), max_limit=50, newest_first=False)

    def limit(self, wanted: int | None) -> int:
        """How many objects a page has; None means the default.

        Raises: RejectedError for anything but a whole number from 1 to `max_limit`: a shorter page than asked for would look
        like all there is.
        """
        if wanted is None:
            return min(self.default_limit, self.max_limit)
        return whole_limit(wanted, self.max_limit)
