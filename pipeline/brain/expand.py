"""What is around an object: its parts or its place among them, and whom its edges lead to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from isotherm.pipeline.brain.links import fold_label, is_containment

SIBLINGS: Final = 5


class Mode(StrEnum):
    """Where the answer of an expand came from."""

    CHILDREN = "children"
    NEIGHBORHOOD = "neighborhood"
    GRAPH = "graph"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an expand follows: containment, and edges with these labels (None: any, empty: none)."""

    containment: bool
    labels: tuple[str, ...] | None

    @property
    def graph(self) -> bool:
        """Whether edges are followed at all."""
        return self.labels is None or bool(self.labels)


def split_labels(labels: Sequence[str] | None = (), *, containment: bool = False) -> Wanted:
    """Tell labels that mean containment from those of edges.

    Args: labels: empty or only blanks means containment alone; None means any edge; of labels that compare equal the
        first spelling stays; containment: follow it in any case.
    """
    if labels is None:
        return Wanted(containment, None)
    named = [label.strip() for label in labels if label.strip()]
    if not named:
        return Wanted(containment=True, labels=())
    of_edges = {fold_label(label): label for label in reversed(named) if not is_containment(label)}
    order = dict.fromkeys(fold_label(label) for label in named)
    kept = tuple(of_edges[folded] for folded in order if folded in of_edges)
    return Wanted(containment or any(map(is_containment, named)), kept)


def mode_of(wanted: Wanted, *, seed_is_part: bool) -> Mode:
    """Name what was followed."""
    if wanted.graph:
        return Mode.MIXED if wanted.containment else Mode.GRAPH
    return Mode.NEIGHBORHOOD if seed_is_part else Mode.CHILDREN
