"""What travels on the broker: frozen, versioned, ids only, parsed at the door."""

from __future__ import annotations

from typing import Any, Literal, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from isotherm.pipeline.errors import RejectedError


class Payload(BaseModel):
    """Root of all payloads. `trace_id` survives the hop through the outbox, which starts a new root id."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    trace_id: UUID

    @classmethod
    def parse(cls, raw: dict[str, Any]) -> Self:
        """Validate; the error names fields and never repeats their values.

        Raises: RejectedError.
        """
        try:
            return cls.model_validate(raw)
        except ValidationError as error:
            names = sorted({".".join(map(str, e["loc"])) for e in error.errors(include_input=False)})
            raise RejectedError(f"{cls.__name__}: invalid {', '.join(names)}") from None


class StepJob(Payload):
    """One step of durable work; everything else about it stands in its row. `more` steps of its stage may ride along."""

    schema_version: Literal[1] = 1
    operation_id: UUID
    step_id: int
    more: list[StepJob] = Field(default=[], max_length=100)


class FanOut(Payload):
    """Steps to run as one canvas: header steps side by side (each a chain), then the body step."""

    schema_version: Literal[1] = 1
    operation_id: UUID
    header: list[list[StepRef]]
    body: StepRef


class StepRef(BaseModel):
    """A step by its id and the task that runs it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)
    step_id: int
    stage: str


class TailRefresh(Payload):
    """Namespaces whose hot tail may be stale, because Redis could not be told before a commit."""

    schema_version: Literal[1] = 1
    namespace_ids: list[int]


StepJob.model_rebuild()
FanOut.model_rebuild()
