"""Rows of the specification about settings."""

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from managing import COLD, DAY, HOT, HOUR, LONG, NS, WARM, Stub, Summaries, managed, new, row

from isotherm.pipeline.errors import RejectedError
from isotherm.pipeline.identity import Namespace
from isotherm.pipeline.ports import AnswerT, Question
from isotherm.pipeline.tier.budget import RecallBudget
from isotherm.pipeline.tier.cold import Summary
from isotherm.pipeline.tier.plan import MigrationReport
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.settings import Settings, duration_text, parse_duration
from isotherm.pipeline.tier.summaries import NoopColdSummary, SummarizingColdSummary
from isotherm.pipeline.tier.weights import RecallWeights


class Chat:
    """A chat model with one answer."""

    def ask(self, question: Question[AnswerT]) -> AnswerT:
        return question.answer.model_validate(Summary(summary="what the vessels carried").model_dump())


def test_tier_t30_settings_become_policy_budget_and_weights() -> None:
    chosen = Settings.parse(
        {
            "hot_capacity": 5, "warm_capacity": 10, "cold_capacity": 20, "hot_ttl": "1h", "warm_ttl": "24h",
            "promote_access": 3, "demote_idle": "1m", "recall_budget": {"total": 8, "hot": 3, "warm": 3, "cold": 2},
            "recall_weights": {"semantic": 0.5, "recency": 0.3, "importance": 0.2},
        }
    )  # fmt: skip
    rules = chosen.policy()
    assert (rules.hot_capacity, rules.warm_capacity, rules.cold_capacity) == (5, 10, 20)
    assert (rules.hot_ttl, rules.warm_age, rules.promote_access) == (HOUR, timedelta(minutes=1), 3)
    assert (chosen.budget().total, chosen.budget().hot) == (8, 3)
    assert chosen.weights() == RecallWeights(semantic=0.5, recency=0.3, importance=0.2)


def test_tier_t33_no_settings_and_switched_off_ones_are_none() -> None:
    assert Settings.from_mapping(None) is None
    assert Settings.from_mapping({"enabled": False, "hot_capacity": 5}) is None
    assert Settings.from_mapping({}) == Settings()


def test_tier_t34_settings_of_a_host_keep_their_numbers() -> None:
    chosen = Settings.from_mapping(
        {
            "enabled": True, "hot_capacity": 10, "warm_capacity": 20, "cold_capacity": 30, "promote_access": 3,
            "hot_ttl": "1h", "warm_ttl": "24h", "demote_idle": "10m",
            "recall_budget": {"total": 8, "hot": 4, "warm": 2, "cold": 2},
            "cold_summary": {"enabled": True, "min_bytes": 100, "max_summary_chars": 500, "summary_profile": "summary"},
        }
    )  # fmt: skip
    assert chosen is not None
    assert chosen.policy() == Policy(
        hot_capacity=10, warm_capacity=20, cold_capacity=30, hot_ttl=HOUR, warm_ttl=DAY,
        demote_idle=timedelta(minutes=10), promote_access=3,
    )  # fmt: skip
    assert [chosen.budget().share(tier) for tier in (HOT, WARM, COLD)] == [4, 2, 2]
    assert chosen.cold_summary is not None
    assert chosen.cold_summary.enabled
    assert (chosen.cold_summary.min_bytes, chosen.cold_summary.max_summary_chars) == (100, 500)
    assert chosen.cold_summary.summary_profile == "summary"


def test_tier_t54_durations_are_read_and_written_as_text() -> None:
    chosen = Settings.parse({"enabled": True, "hot_ttl": "1h", "warm_ttl": "24h", "demote_idle": "30m"})
    written = {"enabled": True, "hot_ttl": "1h0m0s", "warm_ttl": "24h0m0s", "demote_idle": "30m0s"}
    assert chosen.to_mapping() == written
    assert Settings.from_mapping(written) == chosen


def test_tier_t56_bad_settings_are_refused_by_their_path() -> None:
    bad = {
        "hot_capacity": -1, "warm_capacity": True, "hot_ttl": "soon", "warm_ttl": 3600, "promote_access": 1.5, "warm": 1,
        "recall_budget": {"hot": -2}, "recall_weights": {"recency": "much"}, "cold_summary": {"min_byte": 5},
    }  # fmt: skip
    with pytest.raises(RejectedError) as refused:
        Settings.from_mapping(bad)
    told = str(refused.value)
    for path in (
        "hot_capacity", "warm_capacity", "hot_ttl", "warm_ttl", "promote_access", "warm", "recall_budget.hot",
        "recall_weights.recency", "cold_summary.min_byte",
    ):  # fmt: skip
        assert f"{path}: " in told
    assert "soon" not in told


def test_tier_t57_a_memory_without_an_owner_is_refused() -> None:
    """Replaced: what must be named is the agent; a session is one part of a namespace and may be missing.

    The original demanded a name where the scope is a session's, for fear of one memory for all. Here a namespace without a
    session is a memory of its own that sees nothing of the sessions, and a part that is given must not be blank.
    """
    for scope in ("session", "long_term"):
        for parts in ({"agent": " "}, {"agent": "assistant", "session": " "}):
            with pytest.raises(RejectedError, match="must not be blank"):
                Namespace.of(**parts, scope=scope)
    manager = managed(Policy(), row("a"))
    without = Namespace.of(NS.agent, scope=NS.scope)
    assert [len(manager.recall(where, "kelp").items) for where in (NS, without)] == [1, 0]
    manager.remember(without, new("b"))
    assert [item.record.id for item in manager.recall(NS, "kelp").items] == ["a"]


def test_tier_t58_written_settings_read_the_same() -> None:
    budget = {"total": 5, "hot": 2}
    raw = {
        "hot_capacity": 10,
        "hot_ttl": "1h",
        "warm_ttl": "24h",
        "demote_idle": "30m",
        "recall_budget": budget,
        "cold_ttl": 0,
    }
    chosen = Settings.parse(raw)
    written = chosen.to_mapping()
    assert written == {
        **raw, "hot_ttl": "1h0m0s", "warm_ttl": "24h0m0s", "demote_idle": "30m0s", "cold_ttl": "0s"
    }  # fmt: skip
    assert Settings.parse(written) == chosen
    assert Settings.parse(written).policy().hot_ttl == HOUR


def test_tier_x27_a_policy_that_is_all_off_says_so_and_moves_nothing() -> None:
    off = dict.fromkeys(
        ["hot_capacity", "warm_capacity", "cold_capacity", "promote_access", "hot_ttl", "warm_ttl", "demote_idle"], 0
    )
    rules = Settings.parse(off).policy()
    assert rules == Policy.single_level()
    manager = managed(rules, row("a", idle=900 * DAY, count=9))
    assert manager.reconcile(NS).report == MigrationReport()


def test_tier_weak_19_none_is_the_default_and_zero_is_off() -> None:
    assert Settings.parse({"hot_ttl": None, "hot_capacity": None}).policy() == Policy()
    assert Settings.parse({"hot_ttl": "0", "cooldown": 0}).policy() == Policy(hot_ttl=None, cooldown=None)
    assert Settings.parse({"recall_budget": {"cold": 0}}).budget().is_off(COLD)
    assert Settings().budget() == RecallBudget().normalize()


def test_a_summary_profile_asks_its_model_and_the_hosts_own_summarizer_wins() -> None:
    chosen = Settings.parse({"cold_summary": {"summary_profile": "brief", "min_bytes": 10}})
    record = row("a", content=LONG)
    assert chosen.summaries(chats={"brief": Chat()}).archive(NS, record) == "what the vessels carried"
    own = chosen.summaries(summarizer=Stub("the host's own words"), chats={"brief": Chat()})
    assert own.archive(NS, record) == "the host's own words"
    with pytest.raises(RejectedError, match=r"cold_summary\.summary_profile"):
        chosen.summaries()


def test_summaries_are_off_until_they_are_asked_for() -> None:
    assert isinstance(Settings().summaries(), NoopColdSummary)
    assert isinstance(Settings.parse({"cold_summary": {"enabled": False}}).summaries(), NoopColdSummary)
    index = Summaries()
    assert isinstance(Settings.parse({"cold_summary": {}}).summaries(indexer=index), SummarizingColdSummary)
    manager = managed(summaries=Settings.parse({"cold_summary": {"min_bytes": None}}).summaries(indexer=index))
    manager.remember(NS, new("a", "short", tier=COLD))
    assert index.held == {"a": "short"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("1h30m", 5400), ("30d", 2_592_000), ("1.5h", 5400), ("250ms", 0.25), (" 2m5s ", 125)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "1", "h", "1 h", "-1h", "1w", "1h!", "9999999999d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"), (timedelta(milliseconds=250), "250ms"), (timedelta(seconds=1, milliseconds=500), "1.5s"),
        (timedelta(seconds=59, milliseconds=999), "59.999s"), (timedelta(minutes=2, seconds=5), "2m5s"), (DAY, "24h0m0s"),
        (timedelta(days=30, seconds=1), "720h0m1s"),
    ],
)  # fmt: skip
def test_durations_are_written_as_go_programs_write_them(duration: timedelta, text: str) -> None:
    assert duration_text(duration) == text


@settings(deadline=None)
@given(
    st.timedeltas(timedelta(0), timedelta(days=5000)).map(
        lambda d: timedelta(milliseconds=d // timedelta(milliseconds=1))
    )
)
def test_a_written_duration_reads_the_same(duration: timedelta) -> None:
    assert parse_duration(duration_text(duration)) == duration
