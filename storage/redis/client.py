"""One Redis client per process, made on first use after the fork, with its errors translated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
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


def clear(url: str, prefix: str) -> int:
    """Delete every key of this product, the copies and buffers; returns how many. Messages of the broker stay.

    Raises: UnavailableError when Redis cannot be reached.
    """
    client = redis.Redis.from_url(url, socket_timeout=5.0, socket_connect_timeout=2.0)
    deleted = 0
    try:
        with translated():
            keys = client.scan_iter(match=f"{_literal(prefix)}:*", count=1_000)
            while some := list(islice(keys, 1_000)):
                deleted += int(client.unlink(*some))
    finally:
        client.close()
    return deleted


def _literal(prefix: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in prefix)


# Keys and arguments of one call of a script.
Call = tuple[Sequence[str], Sequence[str | int]]


class Script:
    """A script of the server. It is called without what the client does around a command, which takes as long as the call.

    Args: client: whose connections are used; text: in Lua.
    """

    def __init__(self, client: redis.Redis, text: str) -> None:
        self._pool = client.connection_pool
        self._registered = client.register_script(text)

    def __call__(self, keys: Sequence[str], args: Sequence[str | int] = ()) -> Any:  # noqa: ANN401 - what the script answers
        """Run it. Raises: as commands of the client do."""
        return self.many([(keys, args)])[0]

    def many(self, calls: Sequence[Call]) -> list[Any]:
        """Run it once for each of the keys and arguments, in order and in one round trip. Raises: as `__call__`."""
        return self.begin(calls)()

    def begin(self, calls: Sequence[Call]) -> Callable[[], list[Any]]:
        """As `many`, in two halves: the calls are on their way when this returns, and what it returns waits for the answers.

        What it returns has to be called, once; it holds a connection until then. Only it raises.
        """
        if not calls:
            return list
        connection: Any = None  # its methods have no types
        try:
            connection = self._pool.get_connection()
            sha = self._registered.sha
            connection.send_packed_command(
                connection.pack_commands([("EVALSHA", sha, len(keys), *keys, *args) for keys, args in calls])
            )
        except (redis.ConnectionError, redis.TimeoutError):
            self._give_back(connection, broken=True)
            return partial(self._again, calls)
        except BaseException:
            self._give_back(connection, broken=True)
            raise
        return partial(self._answers, connection, calls)

    def _answers(self, connection: Any, calls: Sequence[Call]) -> list[Any]:  # noqa: ANN401 - as above
        found: list[Any] = []
        broken = True
        try:
            for _ in calls:
                try:
                    found.append(connection.read_response())
                except redis.ResponseError as error:  # of one call; those behind it have answers too
                    found.append(error)
            broken = False
        except (redis.ConnectionError, redis.TimeoutError):
            return self._again(calls)
        finally:
            self._give_back(connection, broken=broken)
        for place, answer in enumerate(found):
            if isinstance(answer, redis.exceptions.NoScriptError):  # the server began anew
                found[place] = self._again(calls[place : place + 1])[0]
            elif isinstance(answer, redis.ResponseError):
                raise answer
        return found

    def _again(self, calls: Sequence[Call]) -> list[Any]:
        return [self._registered(keys=keys, args=args) for keys, args in calls]

    def _give_back(self, connection: Any, *, broken: bool) -> None:  # noqa: ANN401 - as above
        if connection is None:
            return
        if broken:
            connection.disconnect()
        self._pool.release(connection)


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
