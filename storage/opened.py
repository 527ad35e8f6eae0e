"""Everything a process needs to read and write memory, opened once per process."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import partial

from isotherm.pipeline.tier.blobs import BlobStore
from isotherm.storage import servers
from isotherm.storage.blobs.factory import blob_store
from isotherm.storage.brain import Engine
from isotherm.storage.graph import helix_client
from isotherm.storage.graph.factory import graph_of
from isotherm.storage.interest import InterestMemory
from isotherm.storage.metrics import BrainMetrics
from isotherm.storage.models import factory
from isotherm.storage.models.dates import date_reader
from isotherm.storage.models.rerank import ObjectReranker
from isotherm.storage.postgres import namespaces, pool
from isotherm.storage.postgres.tier_write import Patience
from isotherm.storage.redis import client
from isotherm.storage.redis.tail import Tail
from isotherm.storage.redis.touches import Touches
from isotherm.storage.settings import Settings
from isotherm.storage.settings import settings as read_settings
from isotherm.storage.tier import TierMemory


@dataclass(frozen=True, slots=True)
class Storage:
    """The memories of this process, and the Redis side that ticks use."""

    settings: Settings
    tier: TierMemory
    tail: Tail
    touches: Touches
    brain: Engine
    interest: InterestMemory
    blobs: BlobStore

    @property
    def patience(self) -> Patience:
        """How long steps are retried, when they are announced again, and how long producers may publish first."""
        return patience(self.settings)


def patience(settings: Settings) -> Patience:
    """The patience these settings ask for."""
    return Patience(settings.retry_for, settings.nudge_after, settings.outbox_grace)


class _State:
    opened: Storage | None = None
    lock = threading.RLock()


def open_storage(settings: Settings | None = None) -> Storage:
    """Open this process's pool and client and return its memories; the second call returns the same.

    Args: settings: None means what is open already, else the settings of the environment.
    Nothing is connected before it is used. Raises: RejectedError when the settings are wrong.
    """
    with _State.lock:
        opened = _State.opened
        if opened is not None and pool.is_open() and (settings is None or settings == opened.settings):
            return opened
        return _open(settings or read_settings())


def _open(chosen: Settings) -> Storage:
    _close()
    pool.open_pool(
        servers.postgres_dsn(chosen),
        size=chosen.pool_size,
        statement_timeout=chosen.statement_timeout,
        guarded=chosen.rls,
    )
    redis = client.open_client(servers.redis_url(chosen))
    tail = Tail(redis, prefix=chosen.redis_prefix, ttl=chosen.tail_ttl)
    touches = Touches(redis, prefix=chosen.redis_prefix)
    blobs = blob_store(chosen)
    embedder, reranker = partial(factory.query_embedder, chosen), partial(factory.reranker, chosen)
    tier = TierMemory(tail, touches, patience(chosen), embedder, blobs=blobs, reranker=reranker, dates=date_reader())
    brain = Engine(
        graph_of(chosen), embedder, patience(chosen), reranker=ObjectReranker(reranker), observer=BrainMetrics()
    )
    interest = InterestMemory(partial(factory.query_embedder, chosen))
    _State.opened = Storage(chosen, tier, tail, touches, brain, interest, blobs)
    return _State.opened


def close_storage() -> None:
    """Close what this process opened."""
    with _State.lock:
        _close()


def _close() -> None:
    helix_client.close_embedded()
    pool.close_pool()
    client.close_client()
    namespaces.forget_places()
    _State.opened = None


def _forget_after_fork() -> None:
    _State.opened = None
    _State.lock = threading.RLock()  # another thread of the parent may have held it


os.register_at_fork(after_in_child=_forget_after_fork)
