"""The policy alone, replayed: which records would have been hot when they were asked for?

No database: the rules of the product plan every pass, on states that a dictionary keeps. Beside them LRU, LFU (counts of the
whole past, ties by recency) and, for the Zipf trace, the static oracle: the most probable records, known beforehand.
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import zip_longest
from pathlib import Path

import numpy as np
from corpus import SEED
from locomo_to_jsonl import load, messages, questions
from measure import Line

from isotherm.pipeline.tier import heat
from isotherm.pipeline.tier.plan import Snapshot, State, plan_migration
from isotherm.pipeline.tier.policy import Policy
from isotherm.pipeline.tier.records import Tier, importance_for_role

_START = datetime(2026, 7, 1, tzinfo=UTC)
_WEAKEST = 50
_MARKER = re.compile(r"\s*->->.*$", re.DOTALL)


class Replay:
    """Records of one namespace under one policy; time passes by a fixed step from access to access."""

    def __init__(self, importance: Sequence[float], policy: Policy, step: timedelta) -> None:
        self._policy = policy
        self._step = step
        self._now = _START
        long_ago = _START - timedelta(days=30)
        self._importance = list(importance)
        self._heat: list[float | None] = [None] * len(importance)
        self._value = np.array([heat.value_log(value, long_ago) for value in importance])
        self._accessed = [long_ago] * len(importance)
        self._created = long_ago
        self._hot: set[int] = set()
        self._warmed: OrderedDict[int, None] = OrderedDict()

    def run(self, trace: Sequence[Sequence[int]]) -> float:
        """The share of accesses that found their record hot; a pass follows each group of accesses."""
        hits = total = 0
        for group in trace:
            for record in group:
                self._now += self._step
                hits += record in self._hot
                total += 1
                self._touch(record)
            self._pass()
        return hits / total

    def _touch(self, record: int) -> None:
        self._heat[record] = heat.add(self._heat[record], self._now)
        self._value[record] = heat.add(float(self._value[record]), self._now)
        self._accessed[record] = self._now
        self._warmed.pop(record, None)
        self._warmed[record] = None

    def _pass(self) -> None:
        needed = self._policy.promotion_heat(Tier.WARM)
        threshold = heat.threshold_log(needed, self._now) if needed else float("inf")
        # What fell below it comes back only by an access, which puts it here again.
        self._warmed = OrderedDict((r, None) for r in self._warmed if (self._heat[r] or 0.0) >= threshold)
        hot = np.fromiter(self._hot, np.int64, len(self._hot))
        is_full = len(hot) >= (self._policy.hot_capacity or 0)
        # What is worth less than the weakest in a full tier is not lifted: spared here, since it is most of them.
        least = float(self._value[hot].min()) if is_full else float("-inf")
        lifted = [r for r in self._warmed if r not in self._hot and self._value[r] > least]
        if not lifted:
            return
        few = hot[np.argpartition(self._value[hot], _WEAKEST)[: _WEAKEST + 1]] if len(hot) > _WEAKEST + 1 else hot
        snapshot = Snapshot(
            counts={Tier.HOT: len(self._hot), Tier.WARM: len(self._importance) - len(self._hot)},
            weakest={Tier.HOT: [self._state(int(r), Tier.HOT) for r in few]},
            hottest=[self._state(r, Tier.WARM) for r in lifted],
        )
        for move in plan_migration(snapshot, self._policy, self._now).moves:
            (self._hot.add if move.target is Tier.HOT else self._hot.discard)(move.key)

    def _state(self, record: int, tier: Tier) -> State:
        return State(
            key=record, id=f"r{record:09d}", tier=tier, version=1, pinned=False, heat_log=self._heat[record],
            value_log=float(self._value[record]), importance=self._importance[record], created_at=self._created,
            last_access_at=self._accessed[record],
        )  # fmt: skip


def policy_of(capacity: int, promote_access: int) -> Policy:
    """Only hot is limited, and only by its capacity."""
    return Policy(
        hot_capacity=capacity, warm_capacity=None, hot_ttl=None, warm_ttl=None, demote_idle=None, cooldown=None,
        promote_access=promote_access,
    )  # fmt: skip


def lru(trace: Sequence[int], capacity: int) -> float:
    """Hit ratio when the least recently used one leaves."""
    held: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for record in trace:
        hits += record in held
        held.pop(record, None)
        held[record] = None
        if len(held) > capacity:
            held.popitem(last=False)
    return hits / len(trace)


def lfu(trace: Sequence[int], capacity: int) -> float:
    """Hit ratio when the least often used one leaves, counted over the whole past; of equals the least recent one."""
    held: dict[int, tuple[int, int]] = {}
    counts: Counter[int] = Counter()
    hits = 0
    for moment, record in enumerate(trace):
        hits += record in held
        counts[record] += 1
        if record not in held and len(held) >= capacity:
            del held[min(held, key=lambda r: held[r])]
        held[record] = (counts[record], moment)
    return hits / len(trace)


def locomo_trace(folder: Path) -> tuple[list[list[int]], list[float]]:
    """The evidence turns of the questions, conversations interleaved question by question, and every turn's importance."""
    numbers: dict[tuple[str, str], int] = {}
    importance: list[float] = []
    asked = []
    for path in sorted(p for p in folder.glob("conv-*.json") if "." not in p.stem):
        record = load(path)
        for message in messages(record):
            numbers[record["sample_id"], message["id"]] = len(importance)
            importance.append(importance_for_role(message["role"]))
        pairs = [[(record["sample_id"], turn) for turn in entry["evidence"]] for entry in questions(record)]
        asked.append([[numbers[pair] for pair in found if pair in numbers] for found in pairs])
    return [group for row in zip_longest(*asked, fillvalue=[]) for group in row if group], importance


def beam_messages(folder: Path, *, chats: int | None = None) -> Iterator[list[dict[str, str]]]:
    """The messages of each chat, as role and content, without the generator's marker."""
    for path in sorted(folder.glob("*.chat.json.gz"))[:chats]:
        batches = json.loads(gzip.decompress(path.read_bytes()))
        yield [
            {"role": message["role"], "content": _MARKER.sub("", message["content"])}
            for batch in batches
            for turn in batch["turns"]
            for message in turn
        ]


def zipf_trace(records: int, accesses: int, exponent: float = 1.0) -> tuple[list[int], list[int]]:
    """Accesses by a Zipf law over shuffled records, and the records from the most to the least probable."""
    rng = np.random.default_rng(SEED)
    weights = 1 / np.arange(1, records + 1) ** exponent
    ranked = rng.permutation(records)
    return ranked[rng.choice(records, accesses, p=weights / weights.sum())].tolist(), ranked.tolist()


def replayed(locomo: Path | None, beam: Path | None, *, quick: bool) -> list[Line]:
    """Hit ratios of hot at 5 % of the records."""
    lines: list[Line] = []
    if locomo is not None and locomo.exists():
        lines += _locomo(locomo, quick=quick)
    if beam is not None and beam.exists():
        lines += _zipf(beam, quick=quick)
    return lines


def _locomo(folder: Path, *, quick: bool) -> list[Line]:
    trace, importance = locomo_trace(folder)
    flat = [record for group in trace for record in group]
    lines = []
    for share in (0.05,) if quick else (0.05, 0.1):
        capacity = round(share * len(importance))
        better = max(lru(flat, capacity), lfu(flat, capacity))
        for minutes in (1,) if quick else (1, 10):
            step = timedelta(minutes=minutes)
            ours = Replay(importance, policy_of(capacity, 1), step).run(trace)
            gate = 1.0 if (share, minutes) == (0.05, 1) else None
            note = f"{len(flat):,} accesses, {minutes} min apart, a pass after each question, promote_access 1"
            lines.append(Line("pay", f"hot hits at {share:.0%}, LoCoMo / better of LRU and LFU", ours, "hits", "higher",
                              floor=better, gate=gate, note=note))  # fmt: skip
        ours = Replay(importance, policy_of(capacity, 3), timedelta(minutes=1)).run(trace)
        lines.append(Line("pay", f"hot hits at {share:.0%}, LoCoMo, the default promote_access of 3", ours, "hits",
                          "higher", floor=better, note="half of the turns are asked for once, so few reach it"))  # fmt: skip
    return lines


def _zipf(folder: Path, *, quick: bool) -> list[Line]:
    importance = [importance_for_role(m["role"]) for chat in beam_messages(folder) for m in chat]
    capacity, lines = round(0.05 * len(importance)), []
    for exponent in (1.0,) if quick else (1.0, 0.9):
        trace, ranked = zipf_trace(len(importance), 2_000 if quick else 20_000, exponent)
        best = set(ranked[:capacity])
        oracle = sum(record in best for record in trace) / len(trace)
        for promote in (1, 3):
            replay = Replay(importance, policy_of(capacity, promote), timedelta(minutes=1))
            ours = replay.run([[record] for record in trace])
            gate = 0.95 if (exponent, promote) == (1.0, 1) else None
            lines.append(Line("pay", f"hot hits at 5%, Zipf {exponent} / static oracle, promote_access {promote}", ours,
                              "hits", "higher", floor=oracle, gate=gate,
                              note=f"{len(trace):,} accesses of {len(importance):,} messages, 1 min apart; LRU "
                              f"{lru(trace, capacity) / oracle:.2f}, LFU {lfu(trace, capacity) / oracle:.2f} of it"))  # fmt: skip
    return lines
