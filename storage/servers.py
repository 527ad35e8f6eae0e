"""Where PostgreSQL, Redis and the broker are: by DSN when one is set, else the embedded ones."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

import psycopg
import redis

from isotherm.pipeline.errors import RejectedError, UnavailableError
from isotherm.storage.embedded import Embedded
from isotherm.storage.postgres import migrate, row_security
from isotherm.storage.redis.client import check_server
from isotherm.storage.settings import Settings


def embedded(settings: Settings) -> Embedded:
    """The embedded servers of this data folder, started or not."""
    return Embedded(settings.data_dir, postgres_bin=settings.pg_bin, redis_bin=settings.redis_bin)


def needs_embedded(settings: Settings) -> bool:
    """Whether any server is to be an embedded one."""
    return settings.postgres_dsn is None or settings.redis_url is None


def postgres_dsn(settings: Settings) -> str:
    """The libpq URI of the database."""
    if settings.postgres_dsn is not None:
        return settings.postgres_dsn.get_secret_value()
    return embedded(settings).endpoints().postgres_dsn


def redis_url(settings: Settings) -> str:
    """The URL of Redis as redis-py takes it."""
    if settings.redis_url is not None:
        return settings.redis_url.get_secret_value()
    return embedded(settings).endpoints().redis_url


def broker_url(settings: Settings) -> str:
    """The URL of the broker as kombu takes it: one of its own, else Redis."""
    if settings.broker_url is not None:
        return ";".join(_for_celery(url) for url in settings.broker_url.get_secret_value().split(";"))
    return result_url(settings)


def result_url(settings: Settings) -> str:
    """The URL of Redis as Celery's result backend takes it, where chords are counted."""
    if settings.redis_url is None:
        return embedded(settings).endpoints().broker_url
    return _for_celery(settings.redis_url.get_secret_value())


def _for_celery(url: str) -> str:
    if not url.startswith("unix://"):
        return url
    parts = urlsplit(url)
    query = urlencode([("virtual_host" if name == "db" else name, value) for name, value in parse_qsl(parts.query)])
    return f"redis+socket://{parts.netloc}{parts.path}" + (f"?{query}" if query else "")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a server, in a sentence; `lasting` when waiting will not cure it."""

    text: str
    lasting: bool


def check(settings: Settings) -> list[Fault]:
    """Look at every server once; returns what is wrong, nothing when all is well."""
    faults = []
    for probe in (_check_postgres, _check_redis):
        try:
            probe(settings)
        except UnavailableError as error:
            faults.append(Fault(str(error), lasting=False))
        except RejectedError as error:
            faults.append(Fault(str(error), lasting=True))
    if faults and needs_embedded(settings):
        down = [s.name for s in embedded(settings).status() if not s.running]
        if down:
            faults.append(Fault(f"embedded {' and '.join(down)} not running: run `isotherm up`", lasting=False))
    return faults


def probe(settings: Settings) -> None:
    """Ask PostgreSQL once, quickly.

    Raises: UnavailableError when it cannot be reached; RejectedError when it does not fit or is not migrated.
    """
    try:
        _check_postgres(settings)
    except UnavailableError as error:
        if settings.postgres_dsn is None:
            raise UnavailableError("the embedded PostgreSQL does not run: start it by `isotherm up`") from error
        raise


def row_security_of(settings: Settings) -> row_security.State:
    """Row-level security as the database has it. Raises: UnavailableError when it cannot be reached."""
    try:
        with psycopg.connect(postgres_dsn(settings), autocommit=True, connect_timeout=5) as conn:
            return row_security.state(conn)
    except psycopg.OperationalError as error:
        raise UnavailableError("PostgreSQL cannot be reached") from error


def _check_postgres(settings: Settings) -> None:
    try:
        with psycopg.connect(postgres_dsn(settings), autocommit=True, connect_timeout=5) as conn:
            migrate.check_server(conn)
            migrate.check_vector(conn)
            known = conn.execute("SELECT to_regclass('schema_migrations')").fetchone()
            if known is None or known[0] is None or migrate.pending(conn):
                raise RejectedError("the database is not at this version: run `isotherm migrate`")
            if settings.rls:
                row_security.demand(conn)
    except psycopg.OperationalError as error:
        raise UnavailableError("PostgreSQL cannot be reached") from error


def _check_redis(settings: Settings) -> None:
    client = redis.Redis.from_url(redis_url(settings), socket_timeout=5, socket_connect_timeout=2)
    try:
        check_server(client)
    finally:
        client.close()
