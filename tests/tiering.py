"""Records put into tiers and moved there, for tests that run stages in their own process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

from inprocess import drive

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.plan import Move
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import NewRecord, Reason, Tier
from isotherm.storage.postgres import tier_move
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.tasks import cold, producers

NS = Namespace.of("atlas", "s1")
OPERATION = uuid4()
BARE = Policy.single_level().model_copy(update={"cooldown": None})
LONG = "kelp grows in cold water " * 400


def policy(**limits: Any) -> Policy:
    return BARE.model_copy(update=limits)


def store(*records: tuple[str, timedelta], tier: Tier = Tier.HOT, content: str = "kelp", **more: Any) -> None:
    """Records by id and age of their last access."""
    now = datetime.now(UTC)
    producers.remember_records(NS, [NewRecord(i, f"{content} {i}", now - age, tier=tier, **more) for i, age in records])
    drive()


def accessed(record_id: str, count: int) -> None:
    with connection() as conn:
        conn.execute(
            """UPDATE tier_records SET access_count = %(n)s, heat_log = %(heat)s, value_log = greatest(value_log, %(heat)s)
               WHERE id = %(id)s""",
            {"n": count, "heat": heat.add(None, datetime.now(UTC) + timedelta(minutes=1), count), "id": record_id},
        )


def aged(record_id: str, age: timedelta) -> None:
    with connection() as conn:
        conn.execute("UPDATE tier_records SET last_access_at = now() - %s WHERE id = %s", (age, record_id))


def tiers() -> dict[str, Tier]:
    return {i: Tier.from_rank(t) for i, t in fetch_all("SELECT id, tier FROM tier_records ORDER BY id")}


def counted(report: dict[str, Any]) -> tuple[int, int, int]:
    return report["promoted"], report["demoted"], report["evicted"]


def moves_of(*ids: str, source: Tier, target: Tier | None, reason: Reason = Reason.CAPACITY) -> list[Move]:
    found = fetch_all("SELECT key, version FROM tier_records WHERE id = ANY(%(ids)s) ORDER BY id", {"ids": list(ids)})
    return [Move(key, version, source, target, reason) for key, version in found]


def archive(*ids: str) -> tier_move.Moved:
    moves = moves_of(*ids, source=Tier.WARM, target=Tier.COLD)
    with connection() as conn:
        texts = tier_move.texts(conn, moves)
        written = cold.summaries_of(cold.TruncateSummarizer(), texts, 512)["summaries"]
        summaries = {int(key): text for key, text in written.items()}
        return tier_move.archive(conn, OPERATION, moves, summaries, min_bytes=4_096)


def restore(*ids: str, reason: Reason = Reason.RESTORE) -> tier_move.Moved:
    moves = moves_of(*ids, source=Tier.COLD, target=Tier.WARM, reason=reason)
    with connection() as conn:
        return tier_move.restore(conn, OPERATION, moves)
