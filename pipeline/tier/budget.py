"""How many records a recall returns, and how they are shared between the tiers."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from isotherm.pipeline.tier.model import FrozenModel
from isotherm.pipeline.tier.records import Tier

DEFAULT_TOTAL = 20
Share = Annotated[int, Field(ge=0, strict=True)]
_LEVELS = tuple(Tier)
# What gives way first when the shares exceed the total.
_YIELDING = (Tier.COLD, Tier.WARM, Tier.HOT)


class RecallBudget(FrozenModel):
    """A total and its shares. None is the default share (60, 25 and 15 of 100), 0 switches a level off.

    A share the caller gave is a minimum: that many of the level's best are returned when there are so many, and what a
    level cannot fill spills over to the others. A default share forces nothing.

    Args: given: the levels whose share the caller chose; it is derived, and kept by `normalize`.
    """

    total: Share | None = None
    hot: Share | None = None
    warm: Share | None = None
    cold: Share | None = None
    given: frozenset[Tier] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _note_given(cls, raw: Any) -> Any:  # noqa: ANN401 - pydantic passes what the caller gave
        if not isinstance(raw, dict) or "given" in raw:
            return raw
        return {**raw, "given": frozenset(tier for tier in _LEVELS if raw.get(tier.value) is not None)}

    def normalize(self) -> Self:
        """Fill the defaults and fit the shares into the total; twice is the same as once, and nothing is negative.

        Too large shares give way in the order cold, warm, hot, default shares before given ones. A given share that
        gave way entirely is no minimum any more, but its level stays on.
        """
        total = DEFAULT_TOTAL if self.total is None else self.total
        shares = {tier: self._share(tier, total) for tier in _LEVELS}
        if self.cold is None:
            shares[Tier.COLD] = max(0, total - shares[Tier.HOT] - shares[Tier.WARM])
        given = set(self.given)
        excess = sum(shares.values()) - total
        for tier in sorted(_YIELDING, key=lambda level: level in self.given):
            cut = min(max(0, excess), shares[tier])
            shares[tier] -= cut
            excess -= cut
            if cut and not shares[tier]:
                given.discard(tier)
        return type(self)(
            total=total,
            hot=shares[Tier.HOT],
            warm=shares[Tier.WARM],
            cold=shares[Tier.COLD],
            given=frozenset(given),
        )

    def share(self, tier: Tier) -> int:
        """Return the level's share after normalizing."""
        value: int | None = getattr(self.normalize(), tier.value)
        return value or 0

    def is_off(self, tier: Tier) -> bool:
        """Whether the caller switched the level off with an explicit 0."""
        return tier in self.given and getattr(self, tier.value) == 0

    def minimum(self, tier: Tier) -> int:
        """Return how many of the level's best must be selected: the given share, 0 for a default one."""
        return self.share(tier) if tier in self.given else 0

    def _share(self, tier: Tier, total: int) -> int:
        chosen: int | None = getattr(self, tier.value)
        if chosen is not None:
            return chosen
        return {Tier.HOT: total * 3 // 5, Tier.WARM: total // 4}.get(tier, 0)
