"""Hot records in Redis: whole records, an index by last access, and every change by one script.

All keys of a namespace share a hash tag, so that one script may touch them on a cluster too. What Redis has is as durable
as Redis is set up to be: beside a durable index store it is the hot side of a composite, alone it is a cache.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import redis

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import Position, StoredRecord, checked, checked_id, checked_limit, placed
from isotherm.storage.redis.client import translated
from isotherm.storage.tier_stores.codec import DamagedError, decode, encode, name_of, namespace_of
from isotherm.storage.tier_stores.faults import Damaged, Faults

_LAST = datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_DIGITS = 18
_MARK_BYTES = 16

# Every body begins with a mark of its own, by which a writer says what it has read. The order holds times and ids,
# newest first; `entries` says for each id what the order holds, so that a change finds what to remove.
# KEYS bodies, entries, order; ARGV id, mark of the body to replace ('' when none is), body, entry
_SWAP = f"""
local now = redis.call('HGET', KEYS[1], ARGV[1])
if string.sub(now or '', 1, {_MARK_BYTES}) ~= ARGV[2] then return 0 end
local entry = redis.call('HGET', KEYS[2], ARGV[1])
if entry then redis.call('ZREM', KEYS[3], entry) end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
redis.call('ZADD', KEYS[3], 0, ARGV[4])
return 1"""

# KEYS bodies, entries, order, aside; ARGV id, mark of the body to remove ('' to remove all there is), whether to set it aside
_REMOVE = f"""
if ARGV[2] == '' then redis.call('HDEL', KEYS[4], ARGV[1]) end
local now = redis.call('HGET', KEYS[1], ARGV[1])
if not now then return 0 end
if ARGV[2] ~= '' and string.sub(now, 1, {_MARK_BYTES}) ~= ARGV[2] then return 0 end
if ARGV[3] == '1' then redis.call('HSET', KEYS[4], ARGV[1], now) end
local entry = redis.call('HGET', KEYS[2], ARGV[1])
if entry then redis.call('ZREM', KEYS[3], entry) end
redis.call('HDEL', KEYS[2], ARGV[1])
return redis.call('HDEL', KEYS[1], ARGV[1])"""

# KEYS bodies, entries, order, aside
_CLEAR = """
local had = redis.call('HLEN', KEYS[1])
redis.call('UNLINK', unpack(KEYS))
return had"""

# KEYS bodies, order; ARGV where to begin, how many
_LIST = f"""
local answer = {{}}
for i, entry in ipairs(redis.call('ZRANGE', KEYS[2], ARGV[1], '+', 'BYLEX', 'LIMIT', 0, ARGV[2])) do
    local id = string.sub(entry, {_DIGITS + 1})
    answer[2 * i - 1] = id
    answer[2 * i] = redis.call('HGET', KEYS[1], id)
end
return answer"""


class RedisStore:
    """A store of one tier in Redis.

    Args: client: of a server that speaks Redis 6.2 or newer, answering bytes; prefix: start of every key; level: the tier
        it keeps; report: told of each damaged record, which is set aside in a hash of its own.
    """

    def __init__(
        self,
        client: redis.Redis,
        *,
        prefix: str = "isotherm:store",
        level: Tier = Tier.HOT,
        report: Callable[[Damaged], None] | None = None,
    ) -> None:
        self._client = client
        self._prefix = prefix
        self._level = level
        self._names = f"{prefix}:{level}:namespaces"
        self._faults = Faults(report)
        self._swap = client.register_script(_SWAP)
        self._remove = client.register_script(_REMOVE)
        self._list = client.register_script(_LIST)
        self._clear = client.register_script(_CLEAR)

    @property
    def levels(self) -> frozenset[Tier]:
        """The one tier."""
        return frozenset({self._level})

    def damaged(self) -> tuple[Damaged, ...]:
        """Records that this process found damaged and set aside."""
        return self._faults.found()

    def put(self, namespace: Namespace, record: StoredRecord) -> StoredRecord:
        """Store a record over whatever has its id."""
        namespace, record = checked(namespace), placed(record.cleaned(), self.levels)
        while True:
            known, mark = self._read(namespace, record.id)
            stored = replace(record, version=known.version + 1 if known else 1)
            if self._write(namespace, stored, mark):
                return stored

    def swap(self, namespace: Namespace, old: StoredRecord | None, new: StoredRecord) -> StoredRecord | None:
        """Store a record over one that was read, None when that has changed."""
        namespace, new = checked(namespace), placed(new.cleaned(), self.levels)
        known, mark = self._read(namespace, new.id)
        stored = replace(new, version=old.version + 1 if old else 1)
        return stored if known == old and self._write(namespace, stored, mark) else None

    def get(self, namespace: Namespace, record_id: str) -> StoredRecord | None:
        """The record of an id."""
        return self._read(checked(namespace), checked_id(record_id))[0]

    def list(
        self, namespace: Namespace, tier: Tier, limit: int = 100, after: Position | None = None
    ) -> Sequence[StoredRecord]:
        """A page, in one round trip."""
        namespace, wanted = checked(namespace), checked_limit(limit)
        bodies, _, order, _ = self._keys(namespace)
        found: list[StoredRecord] = []
        while tier is self._level and wanted:
            start = b"-" if after is None else b"(" + _entry(after)
            with translated():
                rows = self._list(keys=[bodies, order], args=[start, wanted])
            read = [self._decoded(namespace, i.decode(), b) for i, b in zip(rows[::2], rows[1::2], strict=True)]
            found += [record for record in read if record is not None]
            # What was damaged is gone from the order, so the next page makes it good.
            after = found[-1].position if found else after
            wanted = limit - len(found) if None in read else 0
        return found

    def count(self, namespace: Namespace, tier: Tier) -> int:
        """How many records there are, in constant time."""
        bodies, *_ = self._keys(checked(namespace))
        with translated():
            return int(self._client.hlen(bodies)) if tier is self._level else 0

    def delete(self, namespace: Namespace, record_id: str) -> bool:
        """Remove a record."""
        return self._gone(checked(namespace), checked_id(record_id), b"")

    def evict(self, namespace: Namespace, old: StoredRecord) -> bool:
        """Remove a record that was read, False when that has changed; the script compares its mark."""
        namespace = checked(namespace)
        known, mark = self._read(namespace, old.id)
        return known is not None and known == old and self._gone(namespace, old.id, mark)

    def _gone(self, namespace: Namespace, record_id: str, mark: bytes) -> bool:
        with translated():
            gone = bool(self._remove(keys=self._keys(namespace), args=[record_id, mark, "0"]))
            if gone and not self.count(namespace, self._level):
                self._unname(namespace)
        return gone

    def forget_all(self, namespace: Namespace) -> int:
        """Remove all records of a namespace and what was set aside of it, in one script."""
        namespace = checked(namespace)
        with translated():
            gone = int(self._clear(keys=self._keys(namespace)))
            self._unname(namespace)
        return gone

    def _unname(self, namespace: Namespace) -> None:
        self._client.srem(self._names, name_of(namespace))
        if self.count(namespace, self._level):  # a writer came between
            self._client.sadd(self._names, name_of(namespace))

    def namespaces(self) -> Sequence[Namespace]:
        """Every namespace that has records."""
        with translated():
            names = self._client.smembers(self._names)
        known = sorted(name.decode() if isinstance(name, bytes) else str(name) for name in names)
        return [n for n in map(namespace_of, known) if self.count(n, self._level)]

    def _keys(self, namespace: Namespace) -> Sequence[str]:
        tag = f"{self._prefix}:{{{namespace.key.hex()}}}:{self._level}"
        return [f"{tag}:bodies", f"{tag}:entries", f"{tag}:order", f"{tag}:aside"]

    def _read(self, namespace: Namespace, record_id: str) -> tuple[StoredRecord | None, bytes]:
        with translated():
            body = self._client.hget(self._keys(namespace)[0], record_id)
        if not isinstance(body, bytes):  # None, since the client answers bytes
            return None, b""
        record = self._decoded(namespace, record_id, body)
        return record, b"" if record is None else body[:_MARK_BYTES]

    def _write(self, namespace: Namespace, record: StoredRecord, mark: bytes) -> bool:
        body = secrets.token_bytes(_MARK_BYTES) + encode(namespace, record)
        args: list[str | bytes] = [record.id, mark, body, _entry(record.position)]
        with translated():
            if mark:
                return bool(self._swap(keys=self._keys(namespace)[:3], args=args))
            # Before, so that no record is without its namespace; and after, since the last record may go meanwhile.
            self._client.sadd(self._names, name_of(namespace))
            done = bool(self._swap(keys=self._keys(namespace)[:3], args=args))
            self._client.sadd(self._names, name_of(namespace))
        return done

    def _decoded(self, namespace: Namespace, record_id: str, body: bytes) -> StoredRecord | None:
        try:
            return decode(body[_MARK_BYTES:], namespace, record_id)
        except DamagedError as error:
            keys = self._keys(namespace)
            with translated():
                self._remove(keys=keys, args=[record_id, body[:_MARK_BYTES], "1"])
            self._faults.add(Damaged(namespace, record_id, keys[3], str(error)))
            return None


def _entry(position: Position) -> bytes:
    """Sorts as the lists do: the time that is left until the end of time, then the id byte by byte."""
    left = (_LAST - position.last_access_at) // _MICROSECOND
    return f"{left:0{_DIGITS}d}{position.id}".encode()
