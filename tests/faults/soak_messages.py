"""What is done to messages on their way in a soak: sent again, out of order, published and not marked."""

from __future__ import annotations

import random
import time
from contextlib import suppress

import amqp
import psycopg
import redis
from rabbit_server import RabbitServer
from soak_world import World

from isotherm.pipeline import stages
from isotherm.tasks import broker, celery_amqp
from isotherm.tasks.app import app

_SENT = """
SELECT s.stage, s.queue, s.id, s.operation_id::text, o.trace_id::text
FROM operation_steps AS s JOIN operations AS o ON o.id = s.operation_id ORDER BY s.id DESC LIMIT 200"""
_DELIVERIES = 8
_PUBLISHED_S = 6.0

# In one go, since workers take from these lists meanwhile; numbers of its own, so that the server's dice stay as they are.
_SHUFFLE = """
local all, n = redis.call('LRANGE', KEYS[1], 0, -1), tonumber(ARGV[1])
if #all < 2 then return 0 end
for i = #all, 2, -1 do
  n = (n * 1103515245 + 12345) % 2147483648
  local j = n % i + 1
  all[i], all[j] = all[j], all[i]
end
redis.call('DEL', KEYS[1])
for _, body in ipairs(all) do redis.call('RPUSH', KEYS[1], body) end
return #all"""


def deliver_again(world: World, dice: random.Random) -> None:
    """Messages of the newest steps again, up to eight times each and in any order."""
    with (
        suppress(psycopg.OperationalError, *broker.lost()),
        world.direct() as conn,
    ):
        rows = conn.execute(_SENT).fetchall()
        again = [row for row in rows for _ in range(dice.choice((0, 0, 1, 2, _DELIVERIES)))]
        dice.shuffle(again)
        for stage, queue, step, operation, trace in again[:400]:
            payload = {"step_id": step, "operation_id": operation, "trace_id": trace}
            app.send_task(str(stage), args=[payload], queue=str(queue), retry=False)
            world.duplicates += 1


def shuffle(world: World, dice: random.Random) -> None:
    """What waits in the broker's queues, in another order, again and again for a moment."""
    if world.rabbit is not None:
        with suppress(*broker.lost()):
            world.shuffled += _shuffle_queues(world.rabbit, dice)
        return
    client = redis.Redis.from_url(world.servers.endpoints().redis_url, socket_timeout=3)
    with suppress(redis.ConnectionError, redis.TimeoutError), client:
        for _ in range(dice.randint(5, 20)):
            for queue in stages.Queue:
                world.shuffled += int(client.eval(_SHUFFLE, 1, queue.value, dice.randrange(2**31)))
            time.sleep(0.05)


def _shuffle_queues(server: RabbitServer, dice: random.Random) -> int:
    """What waits is sent anew in another order, and taken only then."""
    moved = 0
    with celery_amqp.Connection(server.place, server.user, server.password, login_method="PLAIN") as connection:
        channel = connection.channel()
        for _ in range(dice.randint(5, 20)):
            for queue in stages.Queue:
                waiting = channel.queue_declare(queue.value, passive=True).message_count
                taken = [m for m in (channel.basic_get(queue.value) for _ in range(waiting)) if m is not None]
                for message in dice.sample(taken, len(taken)):
                    channel.basic_publish(amqp.Message(message.body, **message.properties), routing_key=queue.value)
                for message in taken:
                    channel.basic_ack(message.delivery_tag)
                moved += len(taken)
            time.sleep(0.05)
    return moved


def kill_before_mark(world: World, dice: random.Random) -> None:
    """SIGKILL to whoever publishes messages of the outbox, before they are marked as published."""
    del dice
    world.set("kill-before-mark")
    deadline = time.monotonic() + _PUBLISHED_S
    while world.is_set("kill-before-mark") and time.monotonic() < deadline:
        world.leave_to_relay(0.3)
        time.sleep(0.1)
