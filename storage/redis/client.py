"""One Redis client per process, made on first use after the fork, with its errors translated."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from isotherm.pipeline.errors import RejectedError, UnavailableError

MIN_SERVER = (6, 2)


class _State:
    client: redis.Redis | None = None
    url: str = ""


def open_client(url: str) -> redis.Redis:
    """The client of this process; another url replaces it. Connections are made when first used.

    Args: url: `redis://`, `rediss://` or `unix://`.
    """
    if _State.client is None or _State.url != url:
        close_client()
        # One quick retry covers a connection that the server closed while it was idle; longer waits are the caller's.
        retry = Retry(NoBackoff(), 1)
        _State.client = redis.Redis.from_url(
            url, socket_timeout=5.0, socket_connect_timeout=2.0, health_check_interval=30, retry=retry
        )
        _State.url = url
    return _State.client


def close_client() -> None:
    """Close this process's client, if it has one."""
    if _State.client is not None:
        _State.client.close()
        _State.client = None


def _forget_after_fork() -> None:
    _State.client = None


os.register_at_fork(after_in_child=_forget_after_fork)


@contextmanager
def translated() -> Iterator[None]:
    """Turn connection errors into UnavailableError; other errors of the server are bugs and keep their type."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise UnavailableError("Redis cannot be reached") from error
    except (redis.exceptions.OutOfMemoryError, redis.exceptions.ReadOnlyError) as error:
        raise UnavailableError("Redis takes no writes now") from error


class Script:
    """A script of the server. It is called without what the client does around a command, which takes as long as the call.

    Args: client: whose connections are used; text: in Lua.
    """

    def __init__(self, client: redis.Redis, text: str) -> None:
        self._pool = client.connection_pool
        self._registered = client.register_script(text)

    def __call__(self, keys: Sequence[str], args: Sequence[str | int] = ()) -> Any:  # noqa: ANN401 - what the script answers
        """Run it. Raises: as commands of the client do."""
        connection: Any = self._pool.get_connection()  # its methods have no types
        try:
            connection.send_command("EVALSHA", self._registered.sha, len(keys), *keys, *args)
            return connection.read_response()
        except redis.exceptions.NoScriptError:
            pass  # the server began anew
        except (redis.ConnectionError, redis.TimeoutError):
            connection.disconnect()
        finally:
            self._pool.release(connection)
        return self._registered(keys=keys, args=args)


def check_server(client: redis.Redis) -> str:
    """The version of the server, as the Redis protocol level it speaks.

    Raises: UnavailableError when it cannot be reached; RejectedError when it is older than 6.2 or may evict keys.
    """
    with translated():
        info = client.info("server")
        policy = client.info("memory").get("maxmemory_policy", "noeviction")
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2]) < MIN_SERVER:
        raise RejectedError(f"a server that speaks Redis 6.2 or newer is needed; this one speaks {version}")
    if policy != "noeviction":
        raise RejectedError(f"Redis may drop messages: its maxmemory-policy is {policy}; set it to noeviction")
    return version
