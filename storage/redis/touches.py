"""Counted accesses, buffered in Redis and applied to the rows in batches. Losing Redis loses counts, never content."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import uuid4

import redis

from isotherm.storage.redis.client import Script, translated

# One command for all, and one argument: as many cost their caller several times as much.
_COUNT = """
for key in string.gmatch(ARGV[1], '%d+') do redis.call('HINCRBY', KEYS[1], key, 1) end"""

# A batch that its applier did not remove stays listed, so that the next tick finds it.
_TAKE = """
local open = redis.call('SRANDMEMBER', KEYS[2])
if open then return open end
if redis.call('EXISTS', KEYS[1]) == 0 then return false end
redis.call('RENAME', KEYS[1], ARGV[1])
redis.call('SADD', KEYS[2], ARGV[1])
return ARGV[1]"""


@dataclass(frozen=True, slots=True)
class TouchBatch:
    """Accesses by record key, and when the batch was taken (UTC)."""

    id: str
    counts: dict[int, int]
    taken_at: datetime


class Touches:
    """The buffer of accesses. Every method raises UnavailableError when Redis cannot be reached."""

    def __init__(self, client: redis.Redis, *, prefix: str) -> None:
        self._client = client
        self._prefix = f"{prefix}:{{touches}}"
        self._count = Script(client, _COUNT)
        self._take = Script(client, _TAKE)

    def count(self, record_keys: Sequence[int]) -> None:
        """Count one access of each record."""
        self.begin(record_keys)()

    def begin(self, record_keys: Sequence[int]) -> Callable[[], None]:
        """As `count`, in two halves: the counts are on their way when this returns, and what it returns has to be called."""
        counts = ([f"{self._prefix}:buffer"], [" ".join(map(str, record_keys))])
        answers = self._count.begin([counts] if record_keys else [])

        def counted() -> None:
            with translated():
                answers()

        return counted

    def take(self, now: datetime) -> TouchBatch | None:
        """The oldest batch that was not removed, else what has been counted so far; None when there is nothing.

        Args: now: aware; when a new batch counts as taken.
        """
        name = f"{self._prefix}:batch:{int(now.timestamp())}:{uuid4().hex}"
        with translated():
            taken = self._take(keys=[f"{self._prefix}:buffer", f"{self._prefix}:open"], args=[name])
            if not taken:
                return None
            batch = taken.decode() if isinstance(taken, bytes) else str(taken)
            counts = {int(k): int(v) for k, v in self._client.hgetall(batch).items()}
        return TouchBatch(batch, counts, datetime.fromtimestamp(int(batch.split(":")[-2]), tz=UTC))

    def remove(self, batch: TouchBatch) -> None:
        """Forget a batch that is in the rows."""
        with translated(), self._client.pipeline() as pipe:
            pipe.delete(batch.id)
            pipe.srem(f"{self._prefix}:open", batch.id)
            pipe.execute()

    def holds(self, record_keys: Sequence[int]) -> int:
        """How many counts there are of these records."""
        if not record_keys:
            return 0
        with translated():
            names = [f"{self._prefix}:buffer", *self._client.smembers(f"{self._prefix}:open")]
            found = [self._client.hmget(name, list(map(str, record_keys))) for name in names]
        return sum(count is not None for counts in found for count in counts)

    def forget(self, record_keys: Sequence[int]) -> None:
        """Drop what was counted of records that are gone."""
        if not record_keys:
            return
        with translated():
            names = [f"{self._prefix}:buffer", *self._client.smembers(f"{self._prefix}:open")]
            with self._client.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hdel(name, *map(str, record_keys))
                pipe.execute()
