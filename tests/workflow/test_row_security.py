"""Everything that a memory does, by real workers, with the second lock on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from harness import all_final, wait_until

from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.transcript import TranscriptLine
from isotherm.storage.postgres.migrate import migrate
from isotherm.storage.postgres.pool import connection, fetch_all
from isotherm.storage.postgres.reach import TENANT
from isotherm.tasks import producers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from harness import Processes

    from isotherm.storage.opened import Storage

OURS, THEIRS = (Namespace.of("atlas", "s1", tenant=tenant) for tenant in ("acme", "zenith"))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def pace() -> dict[str, str]:
    return {"ISOTHERM_RLS": "on"}


@pytest.fixture
def opened(dsn: str, opened: Storage) -> Iterator[Storage]:
    migrate(dsn, rls=True)
    return opened


def done(operation_id: UUID) -> None:
    wait_until(lambda: producers.operation(operation_id).final, 60, "an operation")
    ended = producers.operation(operation_id)
    assert (ended.state, ended.error) == ("done", None)


def test_two_tenants_live_side_by_side_and_one_is_forgotten(opened: Storage, processes: Processes) -> None:
    assert opened.settings.rls
    worker = processes.worker()
    with connection() as conn:
        assert conn.execute("SELECT current_user::text").fetchone() == (TENANT,)
    calls = []
    for owner in (OURS, THEIRS):
        knowledge = producers.knowledge("atlas", tenant=owner.tenant)
        calls += [producers.remember(owner, f"the cat of {owner.tenant}", record_id="r").operation_id]
        calls += [producers.put(knowledge, "note", title="harbor", content=f"cats of {owner.tenant}").operation_id]
        said = TranscriptLine(1, "atlas", "s1", owner.tenant, "user", f"I prefer tea of {owner.tenant}.", NOON)
        calls += [producers.ingest_session(owner, [said]).operation_id]
    calls += [producers.reconcile(owner).operation_id for owner in (OURS, THEIRS)]
    for operation_id in calls:
        done(operation_id)
    for owner in (OURS, THEIRS):
        found = producers.recall(owner.bank, "cat tea", learned=True, graph=True)
        assert {item.record.namespace.tenant for item in found.items} == {owner.tenant}
        assert "r" in {item.record.id for item in found.items}
        knowledge = producers.knowledge("atlas", tenant=owner.tenant)
        [result] = producers.search(knowledge, "harbor cats").results
        assert producers.read(knowledge, result.object.id).content == f"cats of {owner.tenant}"
        assert producers.expand(knowledge, result.object.id, None, containment=True).degraded == ()
        assert all(f"tea of {owner.tenant}" in one.name for one in producers.interests(owner.bank))
        assert producers.interests(owner.bank)
    gone = producers.forget_tenant("acme")
    done(gone.operation_id)
    assert producers.forget_receipt(gone.operation_id).left == {}
    assert producers.recall(THEIRS, "cat").items
    wait_until(all_final, what="what followed")
    assert fetch_all("SELECT count(*) FROM operation_steps WHERE state IN ('failed', 'dead')") == [(0,)]
    assert "delivery_postponed" not in worker.output()
    assert "permission denied" not in worker.output()
