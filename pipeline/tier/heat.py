r"""Decayed heat: how often a record was used, an access counting half as much after each half-life.

Heat at time t of accesses at t_1..t_n is the sum of 2^-((t - t_i) / half-life). With L = ln 2 / half-life it factors
into e^(-L t) times the sum of e^(L t_i), and only the second factor depends on the record. Its logarithm is stored, so
that nothing has to be rewritten as time passes and the order of two records never depends on when one asks:

    heat_log             NULL until the first access
    access at s          deposit = L * s + ln(count)
    adding a deposit     greatest(a, b) + ln(1 + exp(-least(abs(a - b), 700)))
    heat at s            exp(heat_log - L * s)
    value_log            L * s + ln(greatest(importance, 0.05)) at first; accesses are added as above

where s = extract(epoch from moment) - 1577836800 in seconds. The 700 keeps exp() from raising an underflow in SQL.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

HEAT_HALF_LIFE = timedelta(days=7)
EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
EPOCH_SECONDS = 1_577_836_800
DECAY_PER_SECOND = math.log(2) / HEAT_HALF_LIFE.total_seconds()
IMPORTANCE_FLOOR = 0.05
# Accesses need not come at one moment to count in full: 1 % is what two and a half hours take away.
LOG_TOLERANCE = 0.01
_MAX_EXPONENT = 700.0


def heat_log_of(now: datetime) -> float:
    """Return the deposit of one access at `now` (aware)."""
    return DECAY_PER_SECOND * (now - EPOCH).total_seconds()


def add(heat_log: float | None, now: datetime, count: int = 1) -> float | None:
    """Add `count` accesses at `now`; works for heat and for value, in any order of times.

    Returns: the new logarithm; unchanged when count is 0.
    Raises: ValueError for a negative count.
    """
    if count < 0:
        raise ValueError("count must not be negative")
    if count == 0:
        return heat_log
    return combine(heat_log, heat_log_of(now) + math.log(count))


def combine(first: float | None, second: float | None) -> float | None:
    """Return ln(e^first + e^second), None standing for nothing."""
    if first is None or second is None:
        return first if second is None else second
    return max(first, second) + math.log1p(math.exp(-min(abs(first - second), _MAX_EXPONENT)))


def heat(heat_log: float | None, now: datetime) -> float:
    """Return the heat at `now`: the number of accesses when no time has passed, 0 when there were none."""
    if heat_log is None:
        return 0.0
    return math.exp(min(heat_log - heat_log_of(now), _MAX_EXPONENT))


def value_log(importance: float, last_access_at: datetime) -> float:
    """Return the value of a record that was never accessed: its importance, decaying from `last_access_at`.

    Values order the victims of a full tier. A floor of 0.05 keeps unimportant records comparable by age.
    """
    return value_logs([importance], [last_access_at])[0]


def value_logs(importance: Sequence[float], last_access_at: Sequence[datetime]) -> list[float]:
    """As `value_log`, of many records, whose importances are mostly the same few."""
    logs = {each: math.log(max(each, IMPORTANCE_FLOOR)) for each in set(importance)}
    ages = ((at - EPOCH).total_seconds() for at in last_access_at)
    return [DECAY_PER_SECOND * age + logs[each] for each, age in zip(importance, ages, strict=True)]


def threshold_log(heat: float, now: datetime) -> float:
    """Return the `heat_log` a record needs to have at least `heat` (above 0) at `now`.

    A tolerance of 1 % lets `count` accesses within some two hours reach the threshold `count`.
    """
    if heat <= 0:
        raise ValueError("heat must be above 0")
    return heat_log_of(now) + math.log(heat) - LOG_TOLERANCE
