"""Chat messages as records: the record's content is what was said, the rest of the message is kept beside it."""

from typing import Any

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
