"""How fresh a point is, seen from the moment of reading; how reliable it is, from who said it how often."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

# A point that nobody set a time for.
DEFAULT_TTL = timedelta(days=90)
_STALE_AFTER = 2
_EXPIRED_AFTER = 4


class Freshness(StrEnum):
    """How long ago a point was last said, in terms of its own time to live."""

    FRESH = "fresh"
    AGING = "aging"
    STALE = "stale"


def freshness(last_seen_at: datetime, ttl: timedelta | None, now: datetime) -> Freshness:
    """Fresh within the time to live, aging within twice that, else stale; None means 90 days. What lies ahead is fresh."""
    lived = ttl or DEFAULT_TTL
    age = now - last_seen_at
    if age <= lived:
        return Freshness.FRESH
    return Freshness.AGING if age <= lived * _STALE_AFTER else Freshness.STALE


def next_look(last_seen_at: datetime, ttl: timedelta | None, now: datetime) -> datetime | None:
    """When its freshness changes next, or it expires; None when nothing more will happen to it by itself."""
    lived = ttl or DEFAULT_TTL
    times = [last_seen_at + lived, last_seen_at + lived * _STALE_AFTER]
    times += [last_seen_at + lived * _EXPIRED_AFTER] if ttl else []
    return min((at for at in times if at >= now), default=None)


def expired(last_seen_at: datetime, ttl: timedelta | None, now: datetime) -> bool:
    """Whether a point that was said to hold for a time has been stale for as long again. Others never expire."""
    return ttl is not None and now - last_seen_at > ttl * _EXPIRED_AFTER


def reliability(sessions: int) -> float:
    """How far a point can be relied on, in [0, 1): said in one session 0.5, in two 0.67, in three 0.75, and so on."""
    return sessions / (sessions + 1)
