"""The door: what comes from outside is made storable here, or refused with a message that names only the field."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from isotherm.pipeline.errors import RejectedError

NAME_MAX_BYTES = 512
METADATA_MAX_BYTES = 256 * 1024
METADATA_MAX_DEPTH = 16
_INTEGER_BITS = 128
_MOST_BYTES = 4  # of a character in UTF-8

# PostgreSQL stores neither NUL nor unpaired surrogates.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
_UNNAMEABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")

Json = dict[str, Any]


def clean_text(text: str, *, field: str, max_bytes: int) -> str:
    """Make text storable: NUL and unpaired surrogates become U+FFFD.

    Args: field: the name used in messages; max_bytes: the limit of the UTF-8 form.
    Raises: RejectedError when it is no text or too long; the message names field, size and limit, never the text.
    """
    if not isinstance(text, str):
        raise RejectedError(f"{field}: text is needed, not {type(text).__name__}")
    cleaned = _scrub(text)
    _limit(cleaned, field, max_bytes)
    return cleaned


def clean_name(name: str, *, field: str, max_bytes: int = NAME_MAX_BYTES) -> str:
    """Check an id, a key or a part of a namespace; it is returned unchanged, since a repaired name is another name.

    Raises: RejectedError when it is blank, too long, or holds control characters or unpaired surrogates.
    """
    if not isinstance(name, str):
        raise RejectedError(f"{field}: text is needed, not {type(name).__name__}")
    if not name or name.isspace():
        raise RejectedError(f"{field}: must not be blank")
    if not (name.isascii() and name.isprintable()) and _UNNAMEABLE.search(name):
        raise RejectedError(f"{field}: control characters and unpaired surrogates are not allowed")
    _limit(name, field, max_bytes)
    return name


def clean_metadata(mapping: Mapping[str, Any], max_bytes: int = METADATA_MAX_BYTES, *, field: str = "metadata") -> Json:
    """Copy metadata as plain JSON values, scrubbed like text, keys too; tuples become lists.

    Args: max_bytes: the limit of the compact UTF-8 JSON form.
    Raises: RejectedError for values JSON does not have (NaN and infinities too), integers above 128 bits, keys that
        are no text or become equal when scrubbed, nesting deeper than 16, and too large a size.
    """
    if not isinstance(mapping, Mapping):
        raise RejectedError(f"{field}: a mapping is needed, not {type(mapping).__name__}")
    copied = _MetadataCopier(field, max_bytes).mapping(mapping, depth=1)
    _limit(json.dumps(copied, ensure_ascii=False, separators=(",", ":")), field, max_bytes)
    return copied


def aware(moment: datetime, field: str) -> datetime:
    """Convert a moment to UTC.

    Raises: RejectedError when it has no time zone, or lies outside the years 1 to 9999 once converted.
    """
    if not isinstance(moment, datetime):
        raise RejectedError(f"{field}: a moment is needed, not {type(moment).__name__}")
    if moment.tzinfo is UTC:
        return moment
    if moment.utcoffset() is None:
        raise RejectedError(f"{field}: a time zone is needed")
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise RejectedError(f"{field}: outside the years 1 to 9999 in UTC") from None


def storable(value: object) -> object:
    """Make the texts of a JSON value storable, keys too: NUL and unpaired surrogates become U+FFFD."""
    if isinstance(value, str):
        return _scrub(value)
    if isinstance(value, Mapping):
        return {storable(key): storable(item) for key, item in value.items()}
    return [storable(item) for item in value] if isinstance(value, list) else value


def are_plain(texts: Sequence[str], max_bytes: int) -> bool:
    """Whether all texts of a call are stored as they are: ASCII without NUL, none longer than `max_bytes`.

    Most are, and to look at all of them at once takes a tenth of the time of `clean_text` for each.
    """
    if not set(map(type, texts)) <= {str}:
        return False
    whole = "".join(texts)
    return whole.isascii() and "\0" not in whole and max(map(len, texts), default=0) <= max_bytes


def are_plain_names(names: Sequence[str]) -> bool:
    """As `are_plain`, for `clean_name`."""
    return are_plain(names, NAME_MAX_BYTES) and "".join(names).isprintable() and all(map(str.strip, names))


class _MetadataCopier:
    """Copies nested values; counts them, so that a small object graph with shared parts cannot unfold without end."""

    def __init__(self, field: str, max_values: int) -> None:
        self._field = field
        self._max_values = max_values
        self._values = 0

    def mapping(self, mapping: Mapping[Any, Any], *, depth: int) -> Json:
        self._enter(depth)
        copied: Json = {}
        for key, value in mapping.items():
            if not isinstance(key, str):
                raise RejectedError(f"{self._field}: keys are text, not {type(key).__name__}")
            name = _scrub(key)
            if name in copied:
                raise RejectedError(f"{self._field}: two keys are equal once NUL and surrogates are replaced")
            copied[name] = self._value(value, depth=depth + 1)
        return copied

    def _value(self, value: object, *, depth: int) -> Any:  # noqa: ANN401 - any JSON value
        if isinstance(value, Mapping):
            return self.mapping(value, depth=depth)
        if isinstance(value, list | tuple):
            self._enter(depth)
            return [self._value(item, depth=depth + 1) for item in value]
        self._count()
        return self._scalar(value)

    def _scalar(self, value: object) -> str | int | float | bool | None:
        if isinstance(value, str):
            return _scrub(value)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and value.bit_length() <= _INTEGER_BITS:
            return int(value)
        if isinstance(value, float) and math.isfinite(value):
            return float(value)
        if isinstance(value, int | float):
            raise RejectedError(f"{self._field}: numbers are finite, integers of at most {_INTEGER_BITS} bits")
        raise RejectedError(f"{self._field}: a {type(value).__name__} is no JSON value")

    def _enter(self, depth: int) -> None:
        if depth > METADATA_MAX_DEPTH:
            raise RejectedError(f"{self._field}: nested deeper than {METADATA_MAX_DEPTH}")
        self._count()

    def _count(self) -> None:
        self._values += 1
        if self._values > self._max_values:  # every value takes at least one byte
            raise RejectedError(f"{self._field}: more than {self._max_values} bytes")


def _scrub(text: str) -> str:
    # What most texts are is known without reading them.
    return text if text.isascii() and "\0" not in text else _UNSTORABLE.sub("\ufffd", text)


def _limit(text: str, field: str, max_bytes: int) -> None:
    if len(text) * _MOST_BYTES <= max_bytes:
        return
    size = len(text.encode())
    if size > max_bytes:
        raise RejectedError(f"{field}: {size} bytes, the limit is {max_bytes}")


def whole_number(value: object, field: str) -> int:
    """Return a value that is a whole number. Raises: RejectedError naming the field for any other, such as 1.0 or True."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise RejectedError(f"{field}: a whole number is needed")
    return value


def whole_limit(value: object, most: int) -> int:
    """Return how many are asked for. Raises: RejectedError for anything but a whole number from 1 to `most`."""
    if not 1 <= (limit := whole_number(value, "limit")) <= most:
        raise RejectedError(f"limit: from 1 to {most}")
    return limit
