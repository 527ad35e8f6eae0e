"""Records as lines of JSON: one record a line, whole, always written in the same way, so that equal memories give equal bytes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from isotherm.pipeline.clean import aware, clean_metadata, clean_name, clean_text
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.model import FrozenModel
from isotherm.pipeline.tier.records import CATEGORIES_MAX, CONTENT_MAX_BYTES, Tier

T = TypeVar("T")
FORMAT: Literal["isotherm.record/1"] = "isotherm.record/1"
_SHORT_BYTES = 512
_BIGINT = 2**63 - 1


def _moment(value: datetime) -> datetime:
    return _checked(lambda: aware(value, "time"))


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError("must be finite")
    return value


def _checked(check: Callable[[], T]) -> T:
    try:
        return check()
    except RejectedError as error:
        raise ValueError(str(error)) from None


Moment = Annotated[datetime, AfterValidator(_moment)]
Name = Annotated[str, AfterValidator(lambda name: _checked(lambda: clean_name(name, field="name")))]
Short = Annotated[str, AfterValidator(lambda text: _same(text, _SHORT_BYTES))]
Logarithm = Annotated[float, AfterValidator(_finite)]
Counted = Annotated[int, Field(ge=0, le=_BIGINT)]


def _same(text: str, max_bytes: int) -> str:
    """A text that is stored unchanged, or none at all: an export holds nothing that needs repair."""
    if _checked(lambda: clean_text(text, field="text", max_bytes=max_bytes)) != text:
        raise ValueError("holds characters that cannot be stored")
    return text


class PortableRecord(FrozenModel):
    """A record with everything that another installation needs to continue with it.

    Args: content: whole, also of a cold record; sha256: of the content in UTF-8, hexadecimal; moved_from: where it was
        before it moved last; heat_log, value_log: see `isotherm.pipeline.tier.heat`; times: aware.
    """

    format: Literal["isotherm.record/1"] = FORMAT
    tenant: Name | None
    agent: Name
    session: Name | None
    scope: Name
    run: Name | None
    id: Name
    created_at: Moment
    content: Annotated[str, AfterValidator(lambda text: _same(text, CONTENT_MAX_BYTES))]
    sha256: str
    role: Short | None
    categories: Annotated[tuple[Short, ...], Field(max_length=CATEGORIES_MAX)]
    metadata: dict[str, Any]
    importance: Annotated[float, Field(ge=0, le=1)]
    tier: Tier
    pinned: bool
    summary: str | None
    version: Annotated[int, Field(ge=1, le=_BIGINT)]
    access_count: Counted
    heat_log: Logarithm | None
    value_log: Logarithm
    last_access_at: Moment
    moved_at: Moment | None
    moved_from: Tier | None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if hashlib.sha256(self.content.encode()).hexdigest() != self.sha256:
            raise ValueError("content does not match its hash")
        if (self.tier is Tier.COLD) != (self.summary is not None):
            raise ValueError("a cold record has a summary, and no other has one")
        if (self.access_count == 0) != (self.heat_log is None):
            raise ValueError("a record has heat when it was accessed")
        if _checked(lambda: clean_metadata(self.metadata)) != self.metadata:
            raise ValueError("metadata holds what cannot be stored")
        return self

    @property
    def namespace(self) -> Namespace:
        """Whose record it is."""
        return Namespace(tenant=self.tenant, scope=self.scope, agent=self.agent, session=self.session, run=self.run)


def write_line(fields: dict[str, Any]) -> str:
    """One record as a line with its line end.

    Args: fields: of `PortableRecord`, its content None when it is lost; such a line is refused by `read_line`.
    """
    ordered = {"format": FORMAT, **{name: fields[name] for name in PortableRecord.model_fields if name != "format"}}
    ordered["metadata"] = _sorted(ordered["metadata"])
    return json.dumps(ordered, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain) + "\n"


def read_line(line: bytes) -> PortableRecord:
    """Read one line. Raises: RejectedError that names what is wrong with it and repeats nothing of it."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError):
        raise RejectedError("no JSON") from None
    if not isinstance(raw, dict):
        raise RejectedError("no JSON object")
    return PortableRecord.parse(raw)


def _sorted(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:  # noqa: ANN401 - what json cannot write itself
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    raise TypeError(type(value).__name__)
