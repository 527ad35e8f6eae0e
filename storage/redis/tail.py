"""The hot tail: the newest records of a namespace, in order, read in one round trip and never staler than the database.

Beside each tail stands a generation. A writer raises it before its commit and appends afterwards; a reader is answered
only when the tail has the current generation, else the caller reads the database and offers what it found. An offer
is taken only when no writer was between its raise and its append as the reader missed, and the generation has not moved
since. A writer whose announcement is gone by its append, lost with Redis or too old, moves the generation once more. So
a tail can miss a committed record only if Redis itself was out of reach, and then for its time to live at most.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

import redis

from isotherm.storage.redis.client import Call, Script, translated

MOST = 200
# Longer texts are not copied; a reader that meets one asks the database for it.
COPIED_BYTES = 16_384

_FIRST = datetime.min.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME_DIGITS = 18
_GENERATION_S = 3_600
_WRITER_US = 30_000_000
_LOOK_S = 0.05

_PARTS = ("generation", "tail", "tail_generation", "writers")
# A miss under which nothing may be offered.
_NO_OFFER = ""

_NOW = "local t = redis.call('TIME') local now = t[1] * 1000000 + t[2]"

# Restarting from the clock keeps a generation above every earlier one, even after a flush.
_NEXT = f"""local seen = redis.call('GET', KEYS[1])
local g = string.format('%.0f', seen and (tonumber(seen) + 1) or now)
redis.call('SET', KEYS[1], g, 'EX', {_GENERATION_S})"""

# KEYS generation, writers
_RAISE = f"""{_NOW}
{_NEXT}
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', string.format('%.0f', now - {_WRITER_US}))
redis.call('ZADD', KEYS[2], string.format('%.0f', now), g)
redis.call('EXPIRE', KEYS[2], 120)
return g"""

# KEYS generation, tail, tail's generation, writers; ARGV own generation, keep (0: something changed in place), most,
# score, member...
_APPEND = f"""{_NOW}
local begun = redis.call('ZSCORE', KEYS[4], ARGV[1])
redis.call('ZREM', KEYS[4], ARGV[1])
local known = begun and tonumber(begun) >= now - {_WRITER_US}
if not known then
    {_NEXT}
end
local before = string.format('%.0f', tonumber(ARGV[1]) - 1)
if not known or ARGV[2] == '0' or redis.call('GET', KEYS[3]) ~= before then
    redis.call('DEL', KEYS[2], KEYS[3])
    return 0
end
for i = 4, #ARGV, 2 do redis.call('ZADD', KEYS[2], ARGV[i], ARGV[i + 1]) end
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -tonumber(ARGV[3]) - 1)
redis.call('SET', KEYS[3], ARGV[1], 'KEEPTTL')
redis.call('PEXPIRE', KEYS[2], redis.call('PTTL', KEYS[3]))
return 1"""

# KEYS generation, tail, tail's generation, writers; ARGV how many
_READ = f"""{_NOW}
local g = redis.call('GET', KEYS[1])
if not g then
    g = string.format('%.0f', now)
    redis.call('SET', KEYS[1], g, 'EX', {_GENERATION_S})
elseif g == redis.call('GET', KEYS[3]) then
    return {{1, table.concat(redis.call('ZRANGE', KEYS[2], -tonumber(ARGV[1]), -1), '\\n')}}
end
if redis.call('ZCOUNT', KEYS[4], string.format('%.0f', now - {_WRITER_US}), '+inf') > 0 then g = '{_NO_OFFER}' end
return {{0, g}}"""

# KEYS generation, tail, tail's generation; ARGV generation seen, time to live in ms, score, member...
_OFFER = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2], KEYS[3])
for i = 3, #ARGV, 2 do redis.call('ZADD', KEYS[2], ARGV[i], ARGV[i + 1]) end
redis.call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1"""


class TailRecord(NamedTuple):
    """What a replay needs of a record. `content` is None when the text is too long to be copied.

    Args: key: of the row; id, role, content: as stored; created_at: UTC.
    """

    id: str
    key: int
    role: str | None
    created_at: datetime
    content: str | None
    metadata: Mapping[str, Any]

    @property
    def score(self) -> int:
        """Microseconds since the year 1; a Redis score rounds it to 8, which the member makes good."""
        return (self.created_at - _FIRST) // _MICROSECOND

    def member(self) -> str:
        """The copy: its time and its id, which order equal scores byte by byte as the database does, then JSON.

        NUL ends the id, since it sorts below every character and no id holds it; JSON would escape and quote the id.
        """
        content = self.content
        if content is not None and len(content.encode()) > COPIED_BYTES:
            content = None
        body = json.dumps([self.key, self.role, content, self.metadata], ensure_ascii=False)
        return f"{self.score:0{_TIME_DIGITS}d}{self.id}\0{body}"


class Concluded(NamedTuple):
    """A write that ended. Args: generation: of its announcement; records: that it added, None to drop the tail."""

    namespace_id: int
    generation: str
    records: Sequence[TailRecord] | None


class Tail:
    """Hot tails in Redis. Every method raises UnavailableError when Redis cannot be reached."""

    def __init__(self, client: redis.Redis, *, prefix: str, ttl: timedelta) -> None:
        self._client = client
        self._prefix = prefix
        self._ttl_ms = int(ttl.total_seconds() * 1000)
        self._raise = Script(client, _RAISE)
        self._append = Script(client, _APPEND)
        self._read = Script(client, _READ)
        self._offer = Script(client, _OFFER)

    def _key(self, namespace_id: int, part: str) -> str:
        return f"{self._prefix}:{{{namespace_id}}}:{part}"

    def raise_generation(self, namespace_id: int) -> str:
        """Announce a write before its commit; the answer goes to `append` or `drop`."""
        return self.announce([namespace_id])()[0]

    def announce(self, namespace_ids: Sequence[int]) -> Callable[[], list[str]]:
        """As `raise_generation`, for several at once and in two halves.

        Returns: what waits for the answers, to be called once; in between Redis works, and so can the caller.
        """
        parts = ("generation", "writers")
        with translated():
            answers = self._raise.begin([([self._key(n, part) for part in parts], ()) for n in namespace_ids])

        def generations() -> list[str]:
            with translated():
                return [_text(answer) for answer in answers()]

        return generations

    def append(self, namespace_id: int, generation: str, records: Sequence[TailRecord]) -> bool:
        """Add new records after their commit; False when the tail was dropped instead, for the next reader to fill."""
        return self.conclude([Concluded(namespace_id, generation, records)])[0]

    def drop(self, namespace_id: int, generation: str) -> None:
        """End a write that changed records in place, or did not happen."""
        self.conclude([Concluded(namespace_id, generation, None)])

    def conclude(self, writes: Sequence[Concluded]) -> list[bool]:
        """End writes in their order, in one round trip: `append` or `drop` of each."""
        with translated():
            return [bool(kept) for kept in self._append.many([self._end(write) for write in writes])]

    def _end(self, write: Concluded) -> Call:
        scored = [value for record in write.records or () for value in (record.score, record.member())]
        keys = [self._key(write.namespace_id, part) for part in _PARTS]
        return keys, [write.generation, int(write.records is not None), MOST, *scored]

    def invalidate(self, namespace_id: int) -> None:
        """Make every reader ask the database, whatever the tail holds."""
        self.drop(namespace_id, self.raise_generation(namespace_id))

    def rewrite_files(self) -> None:
        """Have Redis write its append-only file anew, without what it no longer holds; returns when it has."""
        with translated(), suppress(redis.ResponseError):  # a server that others manage may not let us
            self._client.bgrewriteaof()
            while {"aof_rewrite_in_progress", "aof_rewrite_scheduled"} & self._busy():
                time.sleep(_LOOK_S)

    def _busy(self) -> set[str]:
        found = dict(self._client.info("persistence"))
        return {name for name, value in found.items() if value == 1}

    def holds(self, namespace_id: int, keys: Collection[int] | None = None) -> int:
        """How many records a tail has copies of; with keys, only of those."""
        with translated():
            if keys is None:
                return int(self._client.zcard(self._key(namespace_id, "tail")))
            members = self._client.zrange(self._key(namespace_id, "tail"), 0, -1)
        wanted = set(keys)
        return sum(record.key in wanted for record in _records("\n".join(map(_text, members))))

    def read(self, namespace_id: int, limit: int) -> tuple[list[TailRecord] | None, str]:
        """The newest `limit` records (at most 200), oldest first; None, with the generation to offer under, on a miss."""
        keys = [self._key(namespace_id, part) for part in _PARTS]
        with translated():
            hit, answer = self._read(keys=keys, args=[limit])
        if not hit:
            return None, _text(answer)
        return _records(_text(answer)), ""

    def offer(self, namespace_id: int, generation: str, records: Sequence[TailRecord]) -> bool:
        """Fill the tail with the newest records as the database had them after `read`; False when writes came between."""
        if generation == _NO_OFFER:
            return False
        keys = [self._key(namespace_id, part) for part in _PARTS[:3]]
        scored = [value for record in records for value in (record.score, record.member())]
        with translated():
            return bool(self._offer(keys=keys, args=[generation, self._ttl_ms, *scored]))


def _text(value: Any) -> str:  # noqa: ANN401 - redis-py answers bytes or text, as it was set up
    return value.decode() if isinstance(value, bytes) else str(value)


def _records(joined: str) -> list[TailRecord]:
    """The copies of an answer; their JSON is read at once, which costs a third of reading it one by one."""
    if not joined:
        return []
    heads, bodies = zip(*(member.split("\0", 1) for member in joined.split("\n")), strict=True)
    return [
        TailRecord(head[_TIME_DIGITS:], key, role, _time(head[:_TIME_DIGITS]), content, metadata)
        for head, (key, role, content, metadata) in zip(heads, json.loads(f"[{','.join(bodies)}]"), strict=True)
    ]


# A replay reads the same records again and again, and to make their times would be a third of what it costs.
@lru_cache(maxsize=8_192)
def _time(digits: str) -> datetime:
    return _FIRST + timedelta(microseconds=int(digits))
