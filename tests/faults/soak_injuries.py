"""What is done to the servers and processes of a soak, one injury after the other, by a seeded plan."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress

import amqp
import brokers
import psycopg
import redis
from soak_messages import deliver_again, kill_before_mark, shuffle
from soak_proxy import Mode, Proxy
from soak_surroundings import (
    busy_model,
    fill_disk,
    graph_away,
    half_replies,
    jump,
    lose_blobs,
    silent_model,
)
from soak_world import World

_KILLED = """
SELECT count(pg_terminate_backend(pid)) FROM (
    SELECT pid FROM pg_stat_activity WHERE application_name = 'isotherm' ORDER BY random() LIMIT %s) AS chosen"""


def kill_child(world: World, dice: random.Random) -> None:
    """SIGKILL to one process of a worker, in the middle of whatever it does."""
    if children := world.worker(dice).children():
        with suppress(ProcessLookupError):
            os.kill(dice.choice(children), signal.SIGKILL)


def kill_worker(world: World, dice: random.Random) -> None:
    """SIGKILL to a whole worker; another with another name comes later."""
    world.worker(dice).kill_all()


def stop_worker(world: World, dice: random.Random) -> None:
    """SIGTERM, and a soft shutdown."""
    with suppress(ProcessLookupError):
        world.worker(dice).popen.send_signal(signal.SIGTERM)


def kill_beat(world: World, dice: random.Random) -> None:
    """SIGKILL to beat."""
    del dice
    world.running["beat"].kill_all()


def end_backends(world: World, dice: random.Random) -> None:
    """pg_terminate_backend on some connections of the product."""
    with suppress(psycopg.OperationalError), world.direct() as conn:
        conn.execute(_KILLED, (dice.randint(1, 4),))


def kill_postgres(world: World, dice: random.Random) -> None:
    """SIGKILL to the postmaster; it recovers from its log."""
    _kill_server(world, 0, dice)


def kill_redis(world: World, dice: random.Random) -> None:
    """SIGKILL to Redis; it comes back with what its append-only file has."""
    _kill_server(world, 1, dice)


def flush_redis(world: World, dice: random.Random) -> None:
    """FLUSHALL: every message, copy, count and result is gone."""
    del dice
    with suppress(redis.ConnectionError, redis.TimeoutError):
        redis.Redis.from_url(world.servers.endpoints().redis_url, socket_timeout=3).flushall()


def pause_redis(world: World, dice: random.Random) -> None:
    """CLIENT PAUSE: Redis accepts and does not answer."""
    with suppress(redis.ConnectionError, redis.TimeoutError):
        redis.Redis.from_url(world.servers.endpoints().redis_url, socket_timeout=3).client_pause(
            dice.randint(200, 1_500)
        )


def kill_rabbit(world: World, dice: random.Random) -> None:
    """SIGKILL to RabbitMQ; it comes back with what its queues had confirmed."""
    assert world.rabbit is not None
    world.rabbit.kill()
    time.sleep(dice.uniform(0.1, 1.0))
    world.rabbit.start()


def restart_rabbit(world: World, dice: random.Random) -> None:
    """RabbitMQ restarted in good order."""
    del dice
    assert world.rabbit is not None
    world.rabbit.restart()


def pause_rabbit(world: World, dice: random.Random) -> None:
    """RabbitMQ accepts and does not answer, now and then for longer than anybody waits."""
    assert world.rabbit is not None
    world.rabbit.pause()
    try:
        time.sleep(dice.uniform(0.2, 1.5) if dice.random() < _MOSTLY else dice.uniform(6.0, 12.0))
    finally:
        world.rabbit.resume()


def empty_rabbit(world: World, dice: random.Random) -> None:
    """Its queues are deleted with every message, under those who send and those who consume."""
    del dice
    assert world.rabbit is not None
    with suppress(OSError, amqp.exceptions.AMQPError):
        brokers.empty(world.rabbit)


def delay(world: World, dice: random.Random) -> None:
    """Every packet to and from a server comes late."""
    _for_a_while(_either(world, dice), "delay", dice)


def hang(world: World, dice: random.Random) -> None:
    """A server that accepts and never answers, for a while."""
    _for_a_while(_either(world, dice), "hang", dice)


def cut(world: World, dice: random.Random) -> None:
    """Every connection to a server ends in the middle of what it carries."""
    _either(world, dice).cut()


Injury = Callable[[World, random.Random], None]
INJURIES: dict[str, tuple[Injury, int]] = {
    "child killed": (kill_child, 8), "worker killed": (kill_worker, 3), "worker stopped": (stop_worker, 2),
    "beat killed": (kill_beat, 2), "backends ended": (end_backends, 4), "PostgreSQL killed": (kill_postgres, 2),
    "Redis killed": (kill_redis, 2), "Redis flushed": (flush_redis, 2), "Redis paused": (pause_redis, 2),
    "server slow": (delay, 3), "server hangs": (hang, 3), "connections cut": (cut, 4),
    "messages again": (deliver_again, 5), "messages out of order": (shuffle, 3), "killed before mark": (kill_before_mark, 3),
    "graph away": (graph_away, 3), "clock jumps": (jump, 3), "blob store away": (lose_blobs, 2), "disk full": (fill_disk, 2),
    "model busy": (busy_model, 2), "model silent": (silent_model, 2), "half replies": (half_replies, 2),
}  # fmt: skip
# Besides, where RabbitMQ is the broker.
RABBITMQ: dict[str, tuple[Injury, int]] = {
    "RabbitMQ killed": (kill_rabbit, 3), "RabbitMQ restarted": (restart_rabbit, 2), "RabbitMQ paused": (pause_rabbit, 3),
    "RabbitMQ emptied": (empty_rabbit, 3),
}  # fmt: skip
_MOSTLY = 0.7
# Root alone can give the blob store a disk of its own.
NEEDS_DISK = frozenset({"disk full"})
NEEDS_MODEL = frozenset({"model busy", "model silent", "half replies"})


def plan(seed: int, *, rabbit: bool = False) -> Iterator[tuple[str, Injury, random.Random]]:
    """The same seed gives the same injuries in the same order, with the same dice. Args: rabbit: whether there is one to hurt."""
    dice = random.Random(seed)
    chosen = possible(rabbit=rabbit)
    names, weights = list(chosen), [weight for _, weight in chosen.values()]
    while True:
        name = dice.choices(names, weights)[0]
        yield name, chosen[name][0], random.Random(dice.random())


def possible(*, rabbit: bool) -> dict[str, tuple[Injury, int]]:
    """Every injury and how often it is made, for one broker or the other."""
    return INJURIES | RABBITMQ if rabbit else INJURIES


def injure(
    world: World, seed: int, faults: int, pause: tuple[float, float], tell: Callable[[int], None]
) -> Counter[str]:
    """Make so many injuries, one after the other; returns how many of each kind. Args: tell: is told how many there were."""
    made: Counter[str] = Counter()
    for name, injury, dice in plan(seed, rabbit=world.rabbit is not None):
        if made.total() >= faults:
            return made
        if (name in NEEDS_DISK and world.disk is None) or (name in NEEDS_MODEL and world.model is None):
            continue
        injury(world, dice)
        made[name] += 1
        tell(made.total())
        time.sleep(dice.uniform(*pause))
        world.tend()
    raise AssertionError("a plan has no end")


def _kill_server(world: World, number: int, dice: random.Random) -> None:
    pid = world.servers.status()[number].pid
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
    time.sleep(dice.uniform(0.1, 1.0))
    world.servers.start()


def _either(world: World, dice: random.Random) -> Proxy:
    return dice.choice(world.proxies)


def _for_a_while(proxy: Proxy, mode: Mode, dice: random.Random) -> None:
    proxy.set(mode)
    time.sleep(dice.uniform(0.3, 2.0))
    proxy.set("pass")
