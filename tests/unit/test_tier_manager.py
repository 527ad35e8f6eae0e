import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from managing import (
    COLD,
    DAY,
    HOT,
    HOUR,
    LONG,
    NOW,
    NS,
    QUIET,
    WARM,
    Clock,
    Recorder,
    Stub,
    Summaries,
    managed,
    new,
    policy,
    row,
    tiers_of,
)

from isotherm.pipeline.errors import NotFoundError, RejectedError, TransientError, VersionConflictError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.edits import RecordEdit
from isotherm.pipeline.tier.lines import read_line
from isotherm.pipeline.tier.manager import Manager
from isotherm.pipeline.tier.memory_store import MemoryStore
from isotherm.pipeline.tier.plan import MigrationReport
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Reason, Tier
from isotherm.pipeline.tier.summaries import ColdSummarySettings, SummarizingColdSummary
from isotherm.pipeline.tier.touching import TouchMode
from isotherm.pipeline.tier.weights import RecallWeights

IDLE = Policy(cooldown=None)


def test_a_remembered_record_is_returned_as_stored() -> None:
    manager = managed()
    stored = manager.remember(NS, new("a", "user prefers dark mode", role="user", metadata={"k": [1]}))
    assert (stored.version, stored.tier, stored.importance, stored.heat) == (1, HOT, 0.7, 0.0)
    assert manager.get(NS, "a") == stored
    assert manager.remember(NS, new("a", "user prefers dark mode", role="user", metadata={"k": [1]})).version == 1


def test_a_blank_id_gets_a_new_one() -> None:
    manager = managed()
    ids = {manager.remember(NS, new("")).id for _ in range(3)}
    assert len(ids) == 3
    assert all(len(found) == 16 for found in ids)


def test_the_same_text_again_keeps_tier_and_use_and_another_text_starts_anew() -> None:
    manager = managed(policy(), row("a", COLD, count=7, content=LONG, summary="vessels"))
    again = manager.remember(NS, new("a", LONG, importance=0.9))
    assert (again.tier, again.summary, again.access_count, again.importance) == (COLD, "vessels", 7, 0.9)
    other = manager.remember(NS, new("a", "another text", pinned=True))
    assert (other.tier, other.summary, other.access_count, other.content) == (HOT, None, 7, "another text")
    assert manager.remember(NS, new("a", "another text")).pinned


def test_a_pinned_record_that_is_remembered_again_is_never_below_warm() -> None:
    seen = Recorder()
    manager = managed(QUIET, row("a", COLD), row("b", COLD, pinned=True), row("c", HOT, pinned=True), observer=seen)
    assert manager.remember(NS, new("a", "kelp a", pinned=True)).tier is WARM
    for record_id in ("b", "c"):
        assert manager.remember(NS, new(record_id, "eelgrass", tier=COLD)).tier is WARM
    assert [(move.record_id, move.source, move.reason) for move in seen.moves] == [
        ("a", COLD, Reason.PIN),
        ("b", COLD, Reason.RESTORE),
        ("c", HOT, Reason.RESTORE),
    ]
    version = manager.get(NS, "a").version
    assert manager.remember(NS, new("a", "kelp a", pinned=True)).version == version


@pytest.mark.parametrize("tier", [HOT, WARM, COLD])
def test_another_text_that_is_to_be_cold_has_a_summary_that_is_found(tier: Tier) -> None:
    index = Summaries()
    summaries = SummarizingColdSummary(ColdSummarySettings(), indexer=index)
    manager = managed(QUIET, row("a", tier, summary="old" if tier is COLD else None), summaries=summaries)
    stored = manager.remember(NS, new("a", LONG, tier=COLD))
    assert (stored.tier, stored.content, index.held) == (COLD, LONG, {"a": stored.summary})
    assert stored.summary
    manager.remember(NS, new("a", LONG, tier=COLD, metadata={"searchable": "the harbor log"}))
    assert index.held == {"a": stored.summary}, "the same text keeps its summary"
    manager.remember(NS, new("a", "kelp"))
    assert index.held == {}


def test_what_a_caller_holds_is_a_copy() -> None:
    manager = managed()
    given = {"tags": ["one"]}
    manager.remember(NS, new("a", metadata=given))
    given["tags"].append("two")
    manager.get(NS, "a").metadata["tags"].append("three")
    assert manager.get(NS, "a").metadata == {"tags": ["one"]}


def test_an_update_compares_versions() -> None:
    manager = managed()
    seen = manager.remember(NS, new("a"))
    changed = manager.update(NS, "a", RecordEdit(content="coral"), expected_version=seen.version)
    assert (changed.content, changed.version, changed.created_at) == ("coral", 2, seen.created_at)
    with pytest.raises(VersionConflictError) as conflict:
        manager.update(NS, "a", RecordEdit(importance=0.1), expected_version=seen.version)
    assert conflict.value.version == 2
    with pytest.raises(NotFoundError):
        manager.update(NS, "b", RecordEdit(importance=0.1))


def test_a_cold_record_that_gets_another_text_is_warm_and_told_about() -> None:
    seen = Recorder()
    manager = managed(policy(), row("a", COLD, content=LONG, summary="vessels"), observer=seen)
    changed = manager.update(NS, "a", RecordEdit(content="short"))
    assert (changed.tier, changed.summary) == (WARM, None)
    assert [(move.source, move.target) for move in seen.moves] == [(COLD, WARM)]


def test_a_pin_lifts_a_cold_record_and_holds_it() -> None:
    seen = Recorder()
    manager = managed(IDLE, row("a", COLD, idle=90 * DAY), observer=seen)
    pinned = manager.pin(NS, "a")
    assert (pinned.tier, pinned.pinned) == (WARM, True)
    assert [move.reason for move in seen.moves] == [Reason.PIN]
    assert manager.reconcile(NS).report == MigrationReport()
    assert not manager.unpin(NS, "a").pinned
    assert manager.reconcile(NS).report == MigrationReport(demoted=1)


def test_pins_have_a_quota() -> None:
    manager = managed(policy(), row("a"), row("b"), row("c"), max_pinned=2)
    manager.pin(NS, "a")
    manager.pin(NS, "b")
    manager.pin(NS, "b")
    with pytest.raises(RejectedError, match="2 records"):
        manager.pin(NS, "c")


def test_restore_gives_back_the_same_bytes_and_counts_as_use() -> None:
    clock = Clock()
    manager = managed(IDLE, row("a", WARM, idle=8 * DAY, content=LONG, metadata={"k": "v"}), clock=clock)
    before = manager.get(NS, "a")
    manager.reconcile(NS)
    assert manager.get(NS, "a").tier is COLD
    back = manager.restore(NS, "a")
    assert (back.content, back.metadata, back.content_sha256) == (
        before.content,
        before.metadata,
        before.content_sha256,
    )
    assert (back.tier, back.summary, back.last_access_at) == (WARM, None, NOW)
    assert manager.reconcile(NS).report == MigrationReport()
    assert manager.restore(NS, "a") == back


def test_forget_removes_a_record_everywhere_and_says_so() -> None:
    index = Summaries("a")
    backend = SummarizingColdSummary(ColdSummarySettings(min_bytes=10), indexer=index)
    manager = managed(IDLE, row("a", WARM, idle=8 * DAY, content=LONG), row("b"), summaries=backend)
    manager.reconcile(NS)
    manager.recall(NS, "harbor")
    assert set(index.held) == {"a"}
    receipt = manager.forget(NS, ["a", "gone"])
    assert (receipt.ids, receipt.verified, index.held) == (("a",), True, {})
    assert manager.apply_touches() == 0
    with pytest.raises(NotFoundError):
        manager.explain(NS, "a")
    assert manager.forget(NS).ids == ("b",)
    assert manager.namespaces() == []


def test_namespaces_are_listed_by_tenant() -> None:
    manager = managed()
    for owner in (NS, NS.for_tenant("acme"), NS.for_tenant("other")):
        manager.remember(owner, new("a"))
    assert manager.namespaces() == [NS]
    assert manager.namespaces("acme") == [NS.for_tenant("acme")]


def test_an_export_read_again_is_the_same() -> None:
    manager = managed(
        policy(), row("b", COLD, content=LONG, summary="vessels", count=3), row("a", metadata={"k": [1, None]})
    )
    manager.pin(NS, "a")
    lines = list(manager.export(NS))
    copy = managed()
    assert copy.import_lines([lines[0], "", *lines[1:]]) == 2
    assert list(copy.export(NS)) == lines
    assert [r.id for r in copy.list_all(NS)] == [r.id for r in manager.list_all(NS)]
    assert copy.import_lines(lines) == 0
    with pytest.raises(RejectedError, match="line 2: no JSON"):
        copy.import_lines([lines[0], "{"])
    with pytest.raises(RejectedError, match="content does not match its hash"):
        copy.import_lines([lines[0].replace('"kelp a"', '"kelp z"')])


def test_a_summary_index_that_was_lost_is_filled_again() -> None:
    index = Summaries()
    manager = managed(
        policy(),
        row("a", COLD, content=LONG, summary="vessels"),
        row("b"),
        summaries=SummarizingColdSummary(indexer=index),
    )
    assert manager.index_summaries(NS) == 1
    assert index.held == {"a": "vessels"}


def test_an_explanation_says_what_comes_next_and_why() -> None:
    clock = Clock()
    manager = managed(IDLE, row("a", HOT, idle=25 * HOUR), row("b", HOT), clock=clock)
    told = manager.explain(NS, "a", "kelp a")
    assert told.next_move == (WARM, Reason.TTL)
    assert (told.capacity, told.needs_heat, told.leaves_at) == (50, None, NOW - HOUR)
    assert told.rating is not None
    assert (told.rating.of, "lexical" in told.rating.legs) == (2, True)
    manager.reconcile(NS)
    after = manager.explain(NS, "a")
    assert [(move.source, move.target, move.reason) for move in after.moves] == [(HOT, WARM, Reason.TTL)]
    assert (after.next_move, after.needs_heat, after.rating) == (None, 3, None)


def test_touches_wait_for_the_pass_unless_the_caller_wants_them_now() -> None:
    manager = managed(policy(promote_access=2), row("a", WARM), row("b", WARM, content="unlike"))
    manager.recall(NS, "kelp", touch=TouchMode.OFF)
    manager.recall(NS, "kelp")
    manager.recall(NS, "")
    assert manager.get(NS, "a").access_count == 0
    manager.recall(NS, "kelp", touch=TouchMode.NOW)
    assert (manager.get(NS, "a").access_count, manager.get(NS, "b").access_count) == (2, 0)
    assert manager.get(NS, "a").heat == pytest.approx(2)
    assert manager.reconcile(NS).report == MigrationReport(promoted=1)


def test_touches_add_up_in_any_order_and_none_is_lost() -> None:
    clock = Clock()
    manager = managed(policy(), row("a"), clock=clock)
    threads = [threading.Thread(target=lambda: [manager.recall(NS, "kelp") for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert manager.apply_touches() == 1
    assert manager.get(NS, "a").access_count == 80


def test_a_pass_beside_a_pass_waits_for_it() -> None:
    held, entered = threading.Event(), threading.Event()

    class Waiting(Recorder):
        def demoted(self, move) -> None:  # noqa: ANN001
            entered.set()
            held.wait(10)
            super().demoted(move)

    manager = managed(IDLE, row("a", HOT, idle=2 * DAY), observer=Waiting())
    worker = threading.Thread(target=manager.reconcile, args=(NS,))
    worker.start()
    assert entered.wait(10)
    with ThreadPoolExecutor(1) as threads:
        second = threads.submit(manager.reconcile, NS, NOW)
        while NS not in manager._turns._waiting:
            time.sleep(0.001)
        manager.remember(NS, new("b", age=2 * DAY))
        # What is asked for now is done by the one that waits, which has not looked yet: as of the later moment.
        assert manager.reconcile(NS, NOW + DAY).coalesced
        assert not second.done()
        held.set()
        report = second.result(10)
    worker.join()
    assert (report.coalesced, report.report, tiers_of(manager)["b"]) == (False, MigrationReport(demoted=1), WARM)
    assert not manager.reconcile(NS).coalesced


def test_a_plan_moves_nothing_and_names_its_records() -> None:
    manager = managed(IDLE, row("a", HOT, idle=2 * DAY), row("b"))
    assert [(move.id, move.target, move.reason) for move in manager.plan(NS).moves] == [("a", WARM, Reason.TTL)]
    assert tiers_of(manager) == {"a": HOT, "b": HOT}


def test_a_record_without_a_usable_summary_is_set_aside_longer_each_time_and_stops_nobody() -> None:
    clock, seen = Clock(), Recorder()
    backend = SummarizingColdSummary(summarizer=Stub(""))
    manager = managed(
        IDLE, row("bad", WARM, idle=8 * DAY, content=LONG), row("good", WARM, idle=8 * DAY), summaries=backend, clock=clock, observer=seen
    )  # fmt: skip
    report = manager.reconcile(NS)
    assert [(held.record_id, held.reason) for held in report.set_aside] == [("bad", "summary empty")]
    assert tiers_of(manager) == {"bad": WARM, "good": COLD}
    pauses = []
    for _ in range(3):
        (held,) = manager.set_aside(NS)
        pauses.append(held.until - clock.now)
        assert manager.reconcile(NS).report == MigrationReport()
        clock.advance(pauses[-1])
        assert len(manager.reconcile(NS).set_aside) == 1
    assert all(later == 2 * earlier for earlier, later in pairwise(pauses))
    manager.update(NS, "bad", RecordEdit(content="short enough to be its own summary"))
    assert manager.reconcile(NS).report == MigrationReport(demoted=1)
    assert not manager.set_aside(NS)


def test_a_record_that_is_gone_is_set_aside_no_longer() -> None:
    store = MemoryStore()
    backend = SummarizingColdSummary(summarizer=Stub(""))
    manager = managed(IDLE, row("bad", WARM, idle=8 * DAY, content=LONG), store=store, summaries=backend)
    manager.reconcile(NS)
    assert [held.record_id for held in manager.set_aside(NS)] == ["bad"]
    store.delete(NS, "bad")
    manager.reconcile(NS)
    assert not manager.set_aside(NS)


def test_a_truncated_text_serves_when_the_settings_say_so() -> None:
    backend = SummarizingColdSummary(
        ColdSummarySettings(or_truncated=True, max_summary_chars=32), summarizer=Stub("ha " * 60)
    )
    manager = managed(IDLE, row("a", WARM, idle=8 * DAY, content=LONG), summaries=backend)
    assert manager.reconcile(NS).report == MigrationReport(demoted=1)
    assert manager.get(NS, "a").summary == LONG[:32].rstrip() + "…"


def test_a_record_remembered_as_cold_has_its_summary_or_starts_warm() -> None:
    good = managed(policy(), summaries=SummarizingColdSummary())
    assert (kept := good.remember(NS, new("a", LONG, tier=COLD))).tier is COLD
    assert kept.summary is not None
    assert kept.content == LONG.strip() + " "
    bad = managed(policy(), summaries=SummarizingColdSummary(summarizer=Stub("")))
    assert bad.remember(NS, new("a", LONG, tier=COLD)).tier is WARM


def test_a_recall_says_what_was_out_of_reach() -> None:
    index = Summaries()
    index.away = True
    manager = managed(policy(), row("a"), summaries=SummarizingColdSummary(indexer=index))
    answer = manager.recall(NS, "kelp")
    assert [item.record.id for item in answer.items] == ["a"]
    assert answer.degraded == ("summaries",)

    class NoCold(MemoryStore):
        def list(self, namespace, tier, limit=100, after=None):  # noqa: ANN001, ANN202
            if tier is COLD:
                raise TransientError("no cold store")
            return super().list(namespace, tier, limit, after)

    lame = managed(policy(), row("a"), row("b", COLD), store=NoCold())
    assert lame.recall(NS, "kelp").degraded == ("cold",)


def test_a_weight_of_zero_switches_a_part_off() -> None:
    manager = managed(policy(), row("old", HOT, idle=300 * DAY, importance=1.0), row("fresh", HOT, importance=0.1))
    by_age = manager.recall(NS, "", RecallBudget(total=1), weights=RecallWeights(semantic=0, recency=1, importance=0))
    by_worth = manager.recall(NS, "", RecallBudget(total=1), weights=RecallWeights(semantic=0, recency=0, importance=1))
    assert [item.record.id for answer in (by_age, by_worth) for item in answer.items] == ["fresh", "old"]


def test_a_budget_of_nothing_asks_nobody() -> None:
    class Closed(MemoryStore):
        def list(self, namespace, tier, limit=100, after=None):  # noqa: ANN001, ANN202, ARG002
            raise AssertionError

    assert managed(policy(), store=Closed()).recall(NS, "kelp", RecallBudget(total=0)).items == ()
    assert managed(policy(), store=Closed()).recall(NS, "kelp", RecallBudget(hot=0, warm=0, cold=0)).items == ()


def test_a_clock_without_a_zone_is_refused() -> None:
    manager = Manager(MemoryStore(), clock=lambda: datetime(2026, 7, 1))  # noqa: DTZ001 - what is refused
    with pytest.raises(RejectedError, match="clock"):
        manager.remember(NS, new("a"))


def test_namespaces_do_not_see_each_other() -> None:
    manager = managed()
    other = Namespace.of("assistant", "y:assistant")
    manager.remember(NS, new("a", "kelp"))
    manager.remember(other, new("a", "coral"))
    assert manager.get(other, "a").content == "coral"
    assert [item.record.content for item in manager.recall(NS, "coral kelp").items] == ["kelp"]
    manager.forget(NS)
    assert manager.get(other, "a").content == "coral"


def test_moves_go_one_step_and_the_least_valuable_first() -> None:
    rows = [row(f"r{n}", HOT, idle=n * HOUR) for n in range(6)]
    manager = managed(policy(hot_capacity=2, warm_capacity=2, cold_capacity=1), *rows)
    assert manager.reconcile(NS).report == MigrationReport(demoted=4)
    assert {k for k, tier in tiers_of(manager).items() if tier is WARM} == {"r2", "r3", "r4", "r5"}
    manager.reconcile(NS)
    third = manager.reconcile(NS)
    assert (third.report, third.evicted, third.reasons) == (MigrationReport(evicted=1), ("r5",), {"capacity": 1})
    assert tiers_of(manager) == {"r0": HOT, "r1": HOT, "r2": WARM, "r3": WARM, "r4": COLD}


@pytest.mark.parametrize(("source", "target"), [(WARM, HOT), (COLD, WARM), (HOT, WARM), (WARM, COLD)])
def test_a_record_that_moves_behind_the_reader_is_in_every_answer(source: Tier, target: Tier) -> None:
    class Moving(MemoryStore):
        """Moves the record as soon as the warmer of both tiers was read."""

        looks = 0

        def list(self, *given: Any, **more: Any) -> Any:
            page = super().list(*given, **more)
            self.looks += 1
            known = self.get(NS, "a")
            if (
                given[1] is max(source, target, key=lambda tier: tier.rank)
                and known is not None
                and known.tier is source
            ):
                self.put(NS, replace(known, tier=target))
            return page

    store = Moving()
    manager = managed(policy(), row("b", HOT), store=store)
    for seen in (
        lambda: [item.record.id for item in manager.recall(NS, "").items],
        lambda: [record.id for record in manager.list_all(NS)],
        lambda: [read_line(line)[1].id for line in manager.export(NS)],
    ):
        store.put(NS, row("a", source))
        assert sorted(seen()) == ["a", "b"]
        found = store.get(NS, "a")
        assert found is not None
        assert found.tier is target
        store.looks = 0
        assert sorted(seen()) == ["a", "b"]
        assert store.looks == 3


def test_many_passes_and_writers_lose_no_update() -> None:
    manager = managed(
        Policy(hot_capacity=3, warm_capacity=3, cooldown=None), *[row(f"r{n}", idle=n * HOUR) for n in range(12)]
    )
    stop = threading.Event()

    def reconcile() -> None:
        while not stop.is_set():
            manager.reconcile(NS)

    worker = threading.Thread(target=reconcile)
    worker.start()
    for count in range(100):
        manager.update(NS, "r5", RecordEdit(metadata={"count": count}))
        manager.recall(NS, "kelp", touch=TouchMode.NOW)
        assert manager.get(NS, "r5").metadata == {"count": count}
    manager.forget(NS, ["r5"])
    stop.set()
    worker.join()
    manager.apply_touches()
    assert len(tiers_of(manager)) == 11
    assert manager.get(NS, "r1").access_count == 100


def test_stored_values_stay_between_managers_of_one_store() -> None:
    store = MemoryStore()
    managed(policy(), row("a", count=2), store=store).pin(NS, "a")
    assert replace(store.get(NS, "a"), version=0) == replace(  # type: ignore[type-var]
        row("a", count=2).cleaned(), version=0, pinned=True
    )
    assert managed(policy(), store=store).get(NS, "a").heat == pytest.approx(2, abs=1e-6)
    assert managed(policy(), store=store, clock=Clock(NOW + timedelta(days=7))).get(NS, "a").heat == pytest.approx(1)
