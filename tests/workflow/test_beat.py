from __future__ import annotations

import pytest
from brokers import ON_BOTH
from harness import (
    Processes,
    all_final,
    assert_whole,
    conversation,
    ingest,
    leave_to_relay,
    outbox_is_empty,
    wait_until,
)

from isotherm.pipeline.tier.policy import Policy
from isotherm.storage.postgres.pool import fetch_all

POLICY = Policy(hot_capacity=30, warm_capacity=1000, hot_ttl=None, warm_ttl=None, demote_idle=None, batch_size=10)


@pytest.fixture
def pace() -> dict[str, str]:
    return {
        "ISOTHERM_TICK": "0.3",
        "ISOTHERM_TOUCH_TICK": "0.3",
        "ISOTHERM_RECONCILE_TICK": "0.3",
        "ISOTHERM_OUTBOX_GRACE": "0.1",
        "ISOTHERM_TIER": POLICY.model_dump_json(),
    }


@ON_BOTH
@pytest.mark.usefixtures("opened")
def test_two_beats_at_once_double_no_effect(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_to_relay(monkeypatch)
    lines = conversation(100)
    ingest(lines)
    beats = [processes.beat("beat1"), processes.beat("beat2")]
    worker = processes.worker(concurrency=2)
    wait_until(lambda: fetch_all("SELECT 1 FROM tier_moves"), what="a pass")
    seen = [beat.output().count("outbox.relay") for beat in beats]
    wait_until(
        lambda: all(b.output().count("outbox.relay") > s + 3 for b, s in zip(beats, seen, strict=True)),
        what="a few more ticks of both",
    )
    wait_until(lambda: all_final() and outbox_is_empty(), what="quiet")
    for beat in beats:
        beat.terminate()
    wait_until(lambda: all_final() and outbox_is_empty(), what="quiet")
    assert_whole(lines)
    assert worker.output().count("tier.records_indexed") == 5
    moves = fetch_all("SELECT record_key, count(*) FROM tier_moves GROUP BY record_key")
    assert sorted(n for _, n in moves) == [1] * 70
    assert fetch_all("SELECT tier, count(*) FROM tier_records GROUP BY tier ORDER BY tier") == [(2, 70), (3, 30)]
    assert fetch_all("SELECT max(attempts), max(token) FROM operation_steps") == [(1, 1)]
