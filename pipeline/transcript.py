"""Conversation files, read into messages: JSON Lines or one JSON document. What is bad is reported and never raised."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypeVar

from isotherm.pipeline.clean import clean_metadata, clean_name, clean_text
from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.hashing import digest

LINE_LIMIT = 2 * 1024 * 1024
DEFAULT_AGENT = "default"

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"
_EXCERPT = 1_000
_MAX_DIGITS = 300
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LIST_OF_SESSIONS = re.compile(rb"\[\s*(?:[{\]]|\Z)")
# Inside a JSON string a quote is escaped, so an unescaped one around the word means a key and never quoted text.
_SESSIONS_KEY = re.compile(rb'(?<!\\)"sessions"\s*:\s*(?:\[|\Z)')


@dataclass(frozen=True, slots=True)
class TranscriptLine:
    """One message of a conversation.

    Args: number: 1-based line, or 1-based message of a document, counting bad ones; agent, session, tenant: parts of
        the namespace; role, content: cleaned, never blank; time: in UTC; position: how many equal messages (time,
        role, content) of the same session came before, so 0 for all but exact duplicates, and not changed by a bad
        line that is repaired later; id: the caller's own, or None; metadata: JSON values that every store accepts;
        importance: in [0, 1], or None when the file does not say.
    """

    number: int
    agent: str
    session: str
    tenant: str | None
    role: str
    content: str
    time: datetime
    position: int = 0
    id: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    importance: float | None = None


@dataclass(frozen=True, slots=True)
class BadLine:
    """What could not be read.

    Args: number: as in `TranscriptLine`, 0 for a document as a whole; reason: names the field, never its value;
        raw: the line or message as text, undecodable bytes replaced; only its first 1,000 characters when it is
        longer than the limit or stands for a whole document.
    """

    number: int
    reason: str
    raw: str


class _Repeated(dict[str, Any]):
    """A JSON object that named one of its keys twice; which value was meant cannot be known."""


class _Occurrences:
    """Counts equal messages by digest: 16 bytes a message, however long its text."""

    def __init__(self) -> None:
        self._seen: dict[bytes, int] = {}

    def next(self, *parts: str | None) -> int:
        """Return how often these parts were seen before, and count them."""
        key = digest(*parts)[:16]
        count = self._seen.get(key, 0)
        self._seen[key] = count + 1
        return count


def detect(head: bytes) -> Literal["lines", "document"]:
    """Tell the format of a file from its first bytes (a few KiB are enough)."""
    text = head.removeprefix(_BOM).lstrip()
    if _LIST_OF_SESSIONS.match(text):
        return "document"
    first, _, _ = text.partition(b"\n")
    if first.strip() == b"{":
        return "document"
    try:
        value = _load(first, "line")
    except RejectedError:
        # Cut off inside a long first line, or bad: only the key can tell.
        return "document" if _SESSIONS_KEY.search(first) else "lines"
    return "document" if isinstance(value, dict) and "sessions" in value else "lines"


def parse_lines(lines: Iterable[bytes], *, limit: int = LINE_LIMIT) -> Iterator[TranscriptLine | BadLine]:
    """Read JSON Lines one by one; empty lines are skipped, unknown fields ignored.

    Args: lines: as a file opened for bytes yields them, with or without line ends; limit: longest line in bytes.
    Returns: one result for each line that is not empty, in order. Cost: memory of one line and a digest a message.
    """
    occurrences = _Occurrences()
    for number, line in enumerate(lines, 1):
        # Every line, not only the first: files that were joined carry the mark in the middle.
        body = line.removeprefix(_BOM).rstrip(b"\r\n")
        if body.strip():
            yield _line(number, body, occurrences, limit)


def parse_document(data: bytes, *, limit: int = LINE_LIMIT) -> Iterator[TranscriptLine | BadLine]:
    """Read one JSON document: a list of sessions, or an object with that list as `sessions`.

    Args: data: the whole file; limit: longest content of one message in bytes.
    Returns: one result for each message, in order; a session that cannot hold messages counts as one bad message.
    """
    try:
        sessions = _sessions(_load(data.removeprefix(_BOM), "document"))
    except RejectedError as error:
        yield BadLine(0, str(error), _decode(data[:_EXCERPT]))
        return
    occurrences = _Occurrences()
    for number, (header, message) in enumerate(_messages(sessions), 1):
        try:
            yield _message(number, _joined(header, message), occurrences, limit)
        except RejectedError as error:
            yield BadLine(number, str(error), _dump(_with_names(header, message)))


def _line(number: int, body: bytes, occurrences: _Occurrences, limit: int) -> TranscriptLine | BadLine:
    if len(body) > limit:
        return BadLine(number, f"line is longer than {limit} bytes", _decode(body[:_EXCERPT]))
    try:
        return _message(number, _object(_load(body, "line"), "line"), occurrences, limit)
    except RejectedError as error:
        return BadLine(number, str(error), _decode(body))


def _sessions(value: object) -> list[Any]:
    sessions = _object(value, "document").get("sessions") if isinstance(value, dict) else value
    if not isinstance(sessions, list):
        raise RejectedError("sessions must be a list")
    return sessions


def _messages(sessions: list[Any]) -> Iterator[tuple[object, object]]:
    """Pair every message with its session; a session without a list of messages is paired with itself."""
    for session in sessions:
        messages = session.get("messages") if isinstance(session, dict) else None
        if isinstance(messages, list):
            yield from ((session, message) for message in messages)
        else:
            yield None, session


def _with_names(header: object, message: object) -> object:
    """A message that was refused, with the names of its session, so that it can be told whose it is."""
    if not isinstance(header, dict) or not isinstance(message, dict):
        return message
    return {**message, **{key: header[key] for key in ("session", "agent", "tenant") if key in header}}


def _joined(header: object, message: object) -> dict[str, Any]:
    """Put the session's names into the message, where they win over the message's own."""
    if header is None:
        _object(message, "session")
        raise RejectedError("messages must be a list")
    names = _object(header, "session")
    return {**_object(message, "message"), **{key: names.get(key) for key in ("session", "agent", "tenant")}}


def _message(number: int, record: dict[str, Any], occurrences: _Occurrences, limit: int) -> TranscriptLine:
    session = _name(record, "session")
    agent = _optional(record, "agent", _name) or DEFAULT_AGENT
    tenant = _optional(record, "tenant", _name)
    role = _name(record, "role")
    content = clean_text(_string(record, "content"), field="content", max_bytes=limit)
    time = _time(record.get("time"))
    id_ = _optional(record, "id", _name)
    metadata = _optional(record, "metadata", _metadata) or {}
    importance = _optional(record, "importance", _importance)
    # Last, so that a message that is refused counts nowhere.
    position = occurrences.next(tenant, agent, session, time.isoformat(), role, content)
    return TranscriptLine(number, agent, session, tenant, role, content, time, position, id_, metadata, importance)


def _load(data: bytes, what: str) -> object:
    """Parse JSON; numbers that no store can hold become infinite and are refused where a field uses them."""
    try:
        value: object = json.loads(data.decode(), object_pairs_hook=_pairs, parse_int=_integer, parse_constant=float)
    except UnicodeDecodeError:
        raise RejectedError(f"{what} is not valid UTF-8") from None
    except json.JSONDecodeError as error:
        raise RejectedError(f"{what} is not valid JSON (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise RejectedError(f"{what} is nested too deeply") from None
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    return record if len(record) == len(pairs) else _Repeated(record)


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= _MAX_DIGITS else math.inf


def _object(value: object, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RejectedError(f"{what} must be a JSON object")
    if isinstance(value, _Repeated):
        raise RejectedError(f"{what} names a key twice")
    return value


def _optional(record: dict[str, Any], name: str, read: Callable[[dict[str, Any], str], T]) -> T | None:
    return None if record.get(name) is None else read(record, name)


def _string(record: dict[str, Any], name: str) -> str:
    value = record.get(name)
    if value is None:
        raise RejectedError(f"{name} is missing")
    if not isinstance(value, str):
        raise RejectedError(f"{name} must be a string")
    if not value.strip():
        raise RejectedError(f"{name} is blank")
    return value


def _name(record: dict[str, Any], name: str) -> str:
    return clean_name(_string(record, name), field=name)


def _time(value: object) -> datetime:
    if value is None:
        raise RejectedError("time is missing")
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise RejectedError("time must be ISO 8601 text or Unix seconds")
    try:
        return _from_text(value) if isinstance(value, str) else _EPOCH + timedelta(seconds=value)
    except OverflowError:
        raise RejectedError("time is out of range (numbers are seconds, not milliseconds)") from None
    except ValueError:
        raise RejectedError("time is not ISO 8601 or a finite number") from None


def _from_text(text: str) -> datetime:
    time = datetime.fromisoformat(text.strip())
    if time.tzinfo is None:
        raise RejectedError("time needs an offset")
    return time.astimezone(UTC)


def _importance(record: dict[str, Any], name: str) -> float:
    value = record[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise RejectedError(f"{name} must be a number from 0 to 1")
    return float(value)


def _metadata(record: dict[str, Any], name: str) -> dict[str, Any]:
    metadata = _object(record[name], name)
    if _any_repeated(metadata):
        raise RejectedError(f"{name} names a key twice")
    return clean_metadata(metadata, field=name)


def _any_repeated(value: object) -> bool:
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, _Repeated):
            return True
        if isinstance(item, dict | list):
            pending.extend(item.values() if isinstance(item, dict) else item)
    return False


def _decode(data: bytes) -> str:
    return data.decode(errors="replace")


def _dump(message: object) -> str:
    try:
        return json.dumps(message, ensure_ascii=False).encode(errors="replace").decode()
    except RecursionError:
        return ""
