"""Chat messages as records: the record's content is what was said, the rest of the message is kept beside it."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

from pydantic import AwareDatetime, Field

from isotherm.pipeline.clean import Json, aware, clean_metadata, clean_text
from isotherm.pipeline.identity import Namespace, message_id
from isotherm.pipeline.tier.model import FrozenModel
from isotherm.pipeline.tier.records import CONTENT_MAX_BYTES, NewRecord, Record, Tier

_ENVELOPE = "message"
_ENVELOPE_FIELDS = {"tool_calls", "tool", "tool_call_id", "metadata"}


class ToolCall(FrozenModel):
    """A tool an assistant asked for; `input` is any JSON value."""

    id: str
    name: str
    input: Any = None


class ChatMessage(FrozenModel):
    """One message of a transcript.

    Args: content: the text, empty when the message only calls tools; tool, tool_call_id: what a tool message answers;
        metadata: the host's own fields; time: aware.
    """

    role: str
    time: AwareDatetime
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool: str | None = None
    tool_call_id: str | None = None
    metadata: Json = Field(default_factory=dict)


def message_record(
    namespace: Namespace, message: ChatMessage, position: int, provenance: str | None = None
) -> NewRecord:
    """Turn a message into a record whose id depends on nothing but its arguments, so seeding twice stores it once.

    Args: position: index of the message in its transcript; provenance: who stored it (run_turn, tool_loop,
        integrator, chat_hydrate).
    Raises: RejectedError when a part of the message cannot be stored.
    """
    content = clean_text(message.content, field="content", max_bytes=CONTENT_MAX_BYTES)
    role = clean_text(message.role, field="role", max_bytes=512)
    metadata: Json = {"role": role, "kind": "message"}
    if provenance:
        metadata["provenance"] = provenance
    envelope = message.model_dump(mode="json", include=_ENVELOPE_FIELDS, exclude_defaults=True)
    if envelope:
        metadata[_ENVELOPE] = envelope
    return NewRecord(
        id=message_id(namespace, message.time, role, content, position),
        content=content,
        created_at=aware(message.time, "time"),
        role=role,
        categories=(role,) if role else (),
        metadata=clean_metadata(metadata),
        tier=Tier.HOT,
    ).cleaned()


def message_of(record: Record | NewRecord) -> ChatMessage:
    """Return the message of a record; a record that was no message reads as one with an empty role.

    A cold record whose body was not asked for gives its summary as content. The provenance of the record is added to
    the message's metadata. Raises RejectedError when the stored envelope is not a message's.
    """
    envelope = record.metadata.get(_ENVELOPE) or {}
    metadata = dict(envelope.get("metadata") or {})
    if provenance := record.metadata.get("provenance"):
        metadata["provenance"] = provenance
    text = record.text if isinstance(record, Record) else record.content
    return ChatMessage.parse(
        {
            **envelope,
            "role": record.metadata.get("role", ""),
            "content": text,
            "time": record.created_at,
            "metadata": metadata,
        }
    )


class Spoken(Protocol):
    """What tells who said a record."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Of the record, with the envelope of its message."""

    @property
    def categories(self) -> Sequence[str]:
        """Of the record; of a message its role."""


def speaker_of(record: Spoken) -> str | None:
    """Who said a record, None for what nobody said."""
    role = record.metadata.get("role") or (record.categories or (None,))[0]
    return role if isinstance(role, str) else None


class Said(Protocol):
    """What the pairing of calls and answers reads of a record."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Of the record, with the envelope of its message."""


S = TypeVar("S", bound=Said)


def with_whole_pairs(records: Sequence[S]) -> list[S]:
    """Leave out what chat models refuse: answers of tools whose call was cut off, and calls that miss an answer.

    A call at the end, followed by nothing but answers, is still being worked on and stays.

    Args: records: in the order they were said.
    """
    if not any(_ENVELOPE in record.metadata for record in records):
        return list(records)
    calls = [_called(record) for record in records]
    open_from = len(records)
    while open_from and _answers(records[open_from - 1]):
        open_from -= 1
    kept: list[S] = []
    awaited: set[str] = set()
    for at, record in enumerate(records):
        if answered := _answers(record):
            if answered in awaited:
                awaited.discard(answered)
                kept.append(record)
            continue
        awaited = set()
        if calls[at] and at + 1 < open_from and not calls[at] <= _answers_after(records, at):
            continue
        awaited = set(calls[at])
        kept.append(record)
    return kept


def _answers_after(records: Sequence[Said], at: int) -> set[str]:
    """The calls that are answered right behind a message."""
    found = set()
    for record in records[at + 1 :]:
        if not (answered := _answers(record)):
            break
        found.add(answered)
    return found


def _called(record: Said) -> set[str]:
    calls = _envelope_of(record).get("tool_calls")
    return (
        {str(call["id"]) for call in calls if isinstance(call, Mapping) and "id" in call}
        if isinstance(calls, list)
        else set()
    )


def _answers(record: Said) -> str:
    """The id of the call that a message answers, empty for other messages."""
    return str(_envelope_of(record).get("tool_call_id") or "")


def _envelope_of(record: Said) -> Mapping[str, Any]:
    envelope = record.metadata.get(_ENVELOPE)
    return envelope if isinstance(envelope, Mapping) else {}
