"""How much meaning, age and importance count in recall."""

from typing import Annotated, Any

from pydantic import Field, field_validator

from isotherm.pipeline.tier.model import FrozenModel

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]
_DEFAULTS = {"semantic": 0.5, "recency": 0.3, "importance": 0.2}


class RecallWeights(FrozenModel):
    """Factors of the three parts of a score; None is the default, 0 switches a part off. They need not sum to 1."""

    semantic: Weight = _DEFAULTS["semantic"]
    recency: Weight = _DEFAULTS["recency"]
    importance: Weight = _DEFAULTS["importance"]

    @field_validator("semantic", mode="before")
    @classmethod
    def _semantic(cls, value: Any) -> Any:  # noqa: ANN401 - pydantic passes what the caller gave
        return _DEFAULTS["semantic"] if value is None else value

    @field_validator("recency", mode="before")
    @classmethod
    def _recency(cls, value: Any) -> Any:  # noqa: ANN401 - the same
        return _DEFAULTS["recency"] if value is None else value

    @field_validator("importance", mode="before")
    @classmethod
    def _importance(cls, value: Any) -> Any:  # noqa: ANN401 - the same
        return _DEFAULTS["importance"] if value is None else value
