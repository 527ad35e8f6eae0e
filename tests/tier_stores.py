"""Every store of tiered memory, opened for a test, and records to put into them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.bodies import BodyStore
from isotherm.pipeline.tier.composite import CompositeStore
from isotherm.pipeline.tier.memory_store import MemoryStore
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier
from isotherm.pipeline.tier.store import StoredRecord
from isotherm.storage.postgres.namespaces import forget_places
from isotherm.storage.postgres.pool import connection
from isotherm.storage.s3 import Objects
from isotherm.storage.tier_stores.folder import FolderStore
from isotherm.storage.tier_stores.postgres import PostgresStore
from isotherm.storage.tier_stores.redis import RedisStore
from isotherm.storage.tier_stores.s3 import S3Store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest

    from isotherm.pipeline.tier.store import Store

T0 = datetime(2026, 7, 1, 12, tzinfo=UTC)
NS = Namespace.of("atlas", "s1")


def record(record_id: str = "r1", content: str = "kelp", *, age: float = 0, **more: Any) -> StoredRecord:
    """A record whose last access was `age` seconds before noon, as a store answers it."""
    at = T0 - timedelta(seconds=age)
    given = {"created_at": at, "last_access_at": at, **more}
    return StoredRecord(id=record_id, content=content, **given).cleaned()


@dataclass
class Opened:
    """What a test opens stores from. Each call of `open` gives an empty store of one kind."""

    request: pytest.FixtureRequest
    folder: Path
    held: ExitStack

    def open(self, kind: str) -> Store:
        return KINDS[kind](self)

    def redis(self) -> RedisStore:
        client = self.request.getfixturevalue("shared_client")
        return RedisStore(client, prefix=f"test:{uuid4().hex}")

    def cold_folder(self) -> FolderStore:
        store = FolderStore(self.folder / uuid4().hex)
        self.held.callback(store.close)
        return store

    def postgres(self, level: Tier | None = None) -> PostgresStore:
        held = self.request.getfixturevalue("kept_storage")
        with connection() as conn:
            conn.execute("TRUNCATE banks, tier_records, outbox CASCADE")
        forget_places()
        return PostgresStore(held.tier, held.patience, held.blobs, level=level)

    def s3(self) -> S3Store:
        return S3Store(Objects(self.request.getfixturevalue("s3").bucket()))

    def redis_postgres_folder(self) -> CompositeStore:
        index = self.postgres()
        bodies: dict[Tier, BodyStore] = {Tier.HOT: self.redis(), Tier.WARM: index, Tier.COLD: self.cold_folder()}
        return CompositeStore(index, bodies, Policy())

    def redis_postgres_s3(self) -> CompositeStore:
        index = self.postgres()
        return CompositeStore(index, {Tier.HOT: self.redis(), Tier.WARM: index, Tier.COLD: self.s3()}, Policy())

    def memory_redis_folder(self) -> CompositeStore:
        warm = MemoryStore({Tier.WARM})
        bodies: dict[Tier, BodyStore] = {Tier.HOT: self.redis(), Tier.WARM: warm, Tier.COLD: self.cold_folder()}
        return CompositeStore(MemoryStore(), bodies, Policy())


KINDS: dict[str, Callable[[Opened], Store]] = {
    "in process": lambda _: MemoryStore(),
    "in process cold": lambda _: MemoryStore({Tier.COLD}),
    "redis": Opened.redis,
    "folder": Opened.cold_folder,
    "s3": Opened.s3,
    "postgres": Opened.postgres,
    "postgres warm": lambda opened: opened.postgres(Tier.WARM),
    "redis + memory + folder": Opened.memory_redis_folder,
    "redis + postgres + folder": Opened.redis_postgres_folder,
    "redis + postgres + s3": Opened.redis_postgres_s3,
}


def tier_of(store: Store) -> Tier:
    """A tier the store keeps, the lowest."""
    return min(store.levels, key=lambda tier: tier.rank)


def as_kept(given: StoredRecord, store: Store, **more: Any) -> StoredRecord:
    """What the store should answer for a record."""
    tier = next(iter(store.levels)) if len(store.levels) == 1 else given.tier
    return replace(given, tier=tier, **more)
