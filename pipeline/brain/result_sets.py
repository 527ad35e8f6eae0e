"""What a search found, kept for its later pages: immutable, several at once, and only for a while."""

from __future__ import annotations

import base64
import binascii
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from isotherm.pipeline.brain.config import utc_now
from isotherm.pipeline.brain.errors import InvalidError, ResultSetIdRequiredError, ResultSetNotFoundError
from isotherm.pipeline.brain.kinds import instant

TTL: Final = timedelta(minutes=30)
LIVE_SETS: Final = 16
_FORMAT: Final = 1
_NIL: Final = UUID(int=0)


@dataclass(frozen=True, slots=True)
class KeptPart:
    """A part that speaks for a kept object, with its score and the words that were looked for around it."""

    id: UUID
    score: float


@dataclass(frozen=True, slots=True)
class Kept:
    """An object of a result set: enough to show it on a later page as it would have been on the first.

    Args: score: None for objects that were not searched for; extra: what the verb needs besides, JSON values.
    """

    id: UUID
    score: float | None = None
    evidence: tuple[KeptPart, ...] = ()
    extra: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ResultSet:
    """All that a call found, in order.

    Args: namespace: the id by which others know the namespace; op: the verb; query: what was asked, for snippets.
    """

    id: UUID
    namespace: UUID
    op: str
    query: str
    items: tuple[Kept, ...]
    created_at: datetime
    degraded: tuple[str, ...] = ()
    truncated: bool = False


def cursor(result_set: UUID, offset: int) -> str:
    """Where the next page begins, as text that means nothing to its bearer."""
    return base64.urlsafe_b64encode(result_set.bytes + offset.to_bytes(4, "big")).decode().rstrip("=")


def read_cursor(given: str) -> tuple[UUID, int]:
    """Result set and offset of a cursor.

    Raises: ResultSetIdRequiredError for a blank or nil one; ResultSetNotFoundError for what is no cursor.
    """
    if not given.strip():
        raise ResultSetIdRequiredError("a cursor is needed, as the page before gave it")
    try:
        raw = base64.b64decode(given + "=" * (-len(given) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 20:  # noqa: PLR2004 - a UUID and four bytes
        raise ResultSetNotFoundError("that is no cursor of a page")
    if raw[:16] == _NIL.bytes:
        raise ResultSetIdRequiredError("a cursor is needed, as the page before gave it")
    return UUID(bytes=raw[:16]), int.from_bytes(raw[16:], "big")


class SearchContext:
    """Result sets of one caller: the newest few, each for a while. Safe to be used by threads.

    Args: ttl: how long a set lives; most: how many there are, the oldest goes first; now: the clock.
    """

    def __init__(self, ttl: timedelta = TTL, most: int = LIVE_SETS, now: Callable[[], datetime] = utc_now) -> None:
        self._ttl, self._most, self._now = ttl, max(most, 1), now
        self._sets: OrderedDict[UUID, ResultSet] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, result_set: ResultSet) -> None:
        """Keep a set. Raises: ResultSetIdRequiredError for the nil id."""
        if result_set.id == _NIL:
            raise ResultSetIdRequiredError("a result set needs an id")
        with self._lock:
            self._sets[result_set.id] = result_set
            self._sets.move_to_end(result_set.id)
            self._expire()

    def get(self, result_set_id: UUID, namespace: UUID) -> ResultSet:
        """A set of a namespace. Raises: ResultSetNotFoundError when it is of another one, over, or never was."""
        with self._lock:
            self._expire()
            found = self._sets.get(result_set_id)
        if found is None or found.namespace != namespace:
            raise ResultSetNotFoundError("the results of that search are not kept any more")
        return found

    def clear(self) -> None:
        """Forget all of it."""
        with self._lock:
            self._sets.clear()

    def export(self) -> bytes:
        """All live sets as JSON, empty when there is none."""
        with self._lock:
            self._expire()
            sets = [_set_json(each) for each in self._sets.values()]
        return json.dumps({"format": _FORMAT, "result_sets": sets}).encode() if sets else b""

    def restore(self, exported: bytes | None) -> None:
        """Hold what was exported, and nothing else; None and nothing clear.

        Raises: InvalidError for what is no export; what is held has not changed then.
        """
        restored = [] if not exported else _sets_of(exported)
        with self._lock:
            self._sets = OrderedDict((each.id, each) for each in restored if each.id != _NIL)
            self._expire()

    def _expire(self) -> None:
        until = self._now() - self._ttl
        for key in [key for key, each in self._sets.items() if each.created_at <= until]:
            del self._sets[key]
        while len(self._sets) > self._most:
            self._sets.popitem(last=False)


def _sets_of(exported: bytes) -> list[ResultSet]:
    try:
        read = json.loads(exported)
        if read["format"] != _FORMAT:
            raise InvalidError("results of another version cannot be restored")
        return [_set_of(each) for each in read["result_sets"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidError("that is no export of results") from None


def _set_json(each: ResultSet) -> dict[str, Any]:
    return {
        "id": str(each.id),
        "namespace": str(each.namespace),
        "op": each.op,
        "query": each.query,
        "created_at": each.created_at.isoformat(),
        "degraded": list(each.degraded),
        "truncated": each.truncated,
        "items": [
            [str(i.id), i.score, [[str(part.id), part.score] for part in i.evidence], i.extra] for i in each.items
        ],
    }


def _set_of(read: Mapping[str, Any]) -> ResultSet:
    created = instant(read["created_at"])
    if created is None:
        raise ValueError
    return ResultSet(
        UUID(read["id"]),
        UUID(read["namespace"]),
        str(read["op"]),
        str(read["query"]),
        tuple(_kept_of(*item) for item in read["items"]),
        created,
        tuple(map(str, read["degraded"])),
        bool(read["truncated"]),
    )


def _kept_of(
    object_id: str, score: float | None, evidence: list[tuple[str, float]], extra: dict[str, Any] | None
) -> Kept:
    parts = tuple(KeptPart(UUID(part), float(value)) for part, value in evidence)
    return Kept(UUID(object_id), None if score is None else float(score), parts, extra)
