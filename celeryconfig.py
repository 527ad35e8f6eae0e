"""Celery's own settings, nothing else. Everything that may differ between installations comes from `Settings`."""

from kombu.entity import Exchange, Queue

from isotherm.pipeline import stages
from isotherm.storage import servers
from isotherm.storage.settings import settings

_settings = settings()
_seconds = {
    name: getattr(_settings, name).total_seconds()
    for name in ("tick", "touch_tick", "reconcile_tick", "quota_tick", "drift_tick")
}
_PURGE_S = 3_600.0
_FOLD_S = 5.0
_DEPTH_S = 300.0
_REEMBED_S = 10.0
_COLLECT_S = 300.0
_AGE_S = 600.0
_INTERESTS_DUE_S = 60.0
_INTEREST_MIRROR_S = 5.0
_STALE_S = 300.0

broker_url = servers.broker_url(_settings)
result_backend = servers.result_url(_settings)
_amqp = broker_url.startswith(("amqp", "pyamqp"))
broker_connection_retry_on_startup = True
broker_connection_max_retries = None  # a broker may be away for days
broker_connection_timeout = 2.0
# A connection whose other end hangs is given up after two of these.
broker_heartbeat = 10.0
# An answer out of place, as when RabbitMQ takes back a message that waited too long, means another connection.
broker_channel_error_retry = True
worker_consumer = "isotherm.tasks.consuming:Consumer"
worker_pool = "isotherm.tasks.prefork:TaskPool"
# The queue for commands to a worker has its name. RabbitMQ would lock out the next one of that name until it finds that the
# connection of one that hangs, or was cut off, is dead.
control_queue_exclusive = False

# Ids travel, bodies stay in PostgreSQL; pickles are neither written nor read.
task_serializer = result_serializer = event_serializer = "json"
accept_content = ["json"]
timezone = "UTC"
enable_utc = True

# Every queue has its own key, on the default exchange: a message needs no look at a table of bindings, and so one round
# trip less.
_exchange = Exchange("", type="direct")
# A message that ends its workers, each time before its step is claimed, must not go round for ever; the sweeper announces
# again what is wanted.
_quorum = {"x-queue-type": "quorum", "x-delivery-limit": 20} if _amqp else None
task_queues = [
    Queue(queue.value, _exchange, routing_key=queue.value, queue_arguments=_quorum) for queue in stages.Queue
]
task_default_queue = stages.Queue.DB.value
task_default_routing_key = stages.Queue.DB.value
task_create_missing_queues = False
task_routes = {name: {"queue": queue.value, "routing_key": queue.value} for name, queue in stages.ROUTES.items()}

# A message is acknowledged after its work, and given to another process when its own was lost.
task_acks_late = True
task_reject_on_worker_lost = True
worker_prefetch_multiplier = 1
worker_cancel_long_running_tasks_on_connection_loss = False
worker_soft_shutdown_timeout = _settings.soft_shutdown.total_seconds()
task_time_limit = _settings.task_time_limit.total_seconds()
task_soft_time_limit = max(1.0, task_time_limit - 30.0)

# The longest countdown is 30 s; a message must not come back while its task may still run. The sweep for messages of
# killed workers runs every 5 s instead of every 100 s. The lease of a step does not wait for it.
_redis_options = {
    "visibility_timeout": task_time_limit + 60.0,
    "unacked_restore_interval": 5,
    "unacked_restore_throttle": 1,
    "socket_connect_timeout": 2.0,
    "socket_keepalive": True,
}
# RabbitMQ gives them to others as soon as their worker's connection is gone.
_amqp_options = {"read_timeout": 10.0, "write_timeout": 10.0}
broker_transport_options = _amqp_options if _amqp else _redis_options

# Nothing reads truth from results; they count the members of chords, which must not expire before the last is done.
task_ignore_result = True
result_expires = 86_400
result_backend_transport_options = {"socket_connect_timeout": 2.0}

# Without events flower shows nothing. The event of sending is left out: it doubles the cost of a message for its sender.
worker_send_task_events = True
task_send_sent_event = False
task_track_started = True

worker_hijack_root_logger = False
worker_redirect_stdouts = False
worker_max_tasks_per_child = 10_000

imports = (
    "isotherm.tasks.tier",
    "isotherm.tasks.tier_pass",
    "isotherm.tasks.cold",
    "isotherm.tasks.embed",
    "isotherm.tasks.forget",
    "isotherm.tasks.ticks",
    "isotherm.tasks.brain",
    "isotherm.tasks.graph",
    "isotherm.tasks.brain_mention",
    "isotherm.tasks.brain_reembed",
    "isotherm.tasks.tier_reembed",
    "isotherm.tasks.brain_import",
    "isotherm.tasks.brain_unnamed",
    "isotherm.tasks.interest",
    "isotherm.tasks.interest_decide",
    "isotherm.tasks.interest_tend",
)


def _every(task: str, seconds: float) -> dict[str, object]:
    """A tick that comes too soon after the last one returns at once; one that is five minutes old is dropped by the worker.

    Not sooner: it compares beat's clock with its own, and a machine whose clock is ahead would drop every tick.
    """
    return {"task": task, "schedule": seconds, "options": {"expires": _STALE_S}}


beat_schedule = {
    stages.RELAY: _every(stages.RELAY, _seconds["tick"]),
    stages.SWEEP: _every(stages.SWEEP, _seconds["tick"]),
    stages.TOUCH: _every(stages.TOUCH, _seconds["touch_tick"]),
    stages.DUE: _every(stages.DUE, _seconds["reconcile_tick"]),
    stages.PURGE: _every(stages.PURGE, _PURGE_S),
    stages.DEPTH: _every(stages.DEPTH, _DEPTH_S),
    stages.COLLECT: _every(stages.COLLECT, _COLLECT_S),
    stages.QUOTAS: _every(stages.QUOTAS, _seconds["quota_tick"]),
    stages.AGE: _every(stages.AGE, _AGE_S),
    stages.INTERESTS_DUE: _every(stages.INTERESTS_DUE, _INTERESTS_DUE_S),
    stages.INTEREST_MIRROR: _every(stages.INTEREST_MIRROR, _INTEREST_MIRROR_S),
    stages.BRAIN_FOLD: _every(stages.BRAIN_FOLD, _FOLD_S),
    stages.BRAIN_DRIFT: _every(stages.BRAIN_DRIFT, _seconds["drift_tick"]),
    stages.TIER_REEMBED: _every(stages.TIER_REEMBED, _REEMBED_S),
    stages.BRAIN_REEMBED: _every(stages.BRAIN_REEMBED, _REEMBED_S),
    stages.BRAIN_UNNAMED: _every(stages.BRAIN_UNNAMED, _REEMBED_S),
}
beat_max_loop_interval = 5
beat_scheduler = "isotherm.tasks.beat:SteadyScheduler"
