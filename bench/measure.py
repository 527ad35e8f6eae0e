"""How figures are taken: floor and ours in turns, medians over rounds, and a verdict against a gate."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower"]
Round = Callable[[], list[float]]


@dataclass(frozen=True, slots=True)
class Line:
    """One row of the table.

    Args: floor, ours: in `unit`, None where there is nothing to compare with; gate: what the ratio ours / floor must
    reach, or stay below when lower is better; spread: the smallest and the largest ratio of a single round.
    """

    bench: str
    name: str
    ours: float
    unit: str
    better: Better
    floor: float | None = None
    gate: float | None = None
    spread: tuple[float, float] | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Ours / floor."""
        return None if not self.floor else self.ours / self.floor

    @property
    def verdict(self) -> str:
        """`pass` or `miss`, empty without a gate."""
        if self.gate is None or self.ratio is None:
            return ""
        reached = self.ratio >= self.gate if self.better == "higher" else self.ratio <= self.gate
        return "pass" if reached else "miss"


@dataclass(frozen=True, slots=True)
class Figures:
    """Medians over rounds of what one side did: seconds per operation and operations per second."""

    p50: float
    p95: float
    rate: float


@dataclass(frozen=True, slots=True)
class Compared:
    """Both sides of an alternated measurement, round by round."""

    floor: tuple[Figures, ...]
    ours: tuple[Figures, ...]

    def line(
        self,
        bench: str,
        name: str,
        figure: Literal["p50", "p95", "rate"],
        *,
        gate: float | None = None,
        note: str = "",
        per: int = 1,
    ) -> Line:
        """A row of the table. `per` is how many records one operation of both sides stands for."""
        scale = per if figure == "rate" else 1000.0
        mine = [getattr(f, figure) * scale for f in self.ours]
        base = [getattr(f, figure) * scale for f in self.floor]
        ratios = [m / b for m, b in zip(mine, base, strict=True)]
        return Line(
            bench=bench,
            name=name,
            ours=statistics.median(mine),
            floor=statistics.median(base),
            unit="1/s" if figure == "rate" else "ms",
            better="higher" if figure == "rate" else "lower",
            gate=gate,
            spread=(min(ratios), max(ratios)),
            note=note,
        )


def figures(seconds: Sequence[float]) -> Figures:
    """Summarize the durations of one round."""
    return Figures(quantile(seconds, 0.5), quantile(seconds, 0.95), len(seconds) / sum(seconds))


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which `share` of the values are; the nearest one, nothing is interpolated."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def alternate(floor: Round, ours: Round, rounds: int) -> Compared:
    """Measure both sides in turns; which one begins changes with every round, so that neither always runs warmer."""
    taken: dict[bool, list[Figures]] = {True: [], False: []}
    for number in range(rounds):
        for is_floor in (True, False) if number % 2 == 0 else (False, True):
            taken[is_floor].append(figures(floor() if is_floor else ours()))
    return Compared(tuple(taken[True]), tuple(taken[False]))


def timed(action: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def repeated(action: Callable[[], object], times: int) -> list[float]:
    """Seconds of each of so many calls."""
    return [timed(action) for _ in range(times)]
