"""The base of the tier's settings: frozen, strict about names, and quiet about values."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from isotherm.pipeline.errors import RejectedError


class FrozenModel(BaseModel):
    """A value that is checked once, when it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> Self:
        """Validate values from outside. Raises RejectedError naming each bad field and what it must be."""
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            faults = {
                ".".join(map(str, fault["loc"])): fault["msg"]
                for fault in error.errors(include_input=False, include_url=False)
            }
            listed = "; ".join(f"{name}: {message}" for name, message in sorted(faults.items()))
            raise RejectedError(f"{cls.__name__}: {listed}") from None
