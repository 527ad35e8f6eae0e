from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from uuid import uuid4

import brokers
import psycopg
import pytest
import rabbit_server
import redis
import s3_server
import structlog
from harness import Processes
from psycopg import sql

from isotherm import storage
from isotherm.storage import settings as settings_module
from isotherm.storage.embedded import Embedded, Endpoints
from isotherm.storage.models import factory
from isotherm.storage.opened import Storage
from isotherm.storage.postgres.migrate import migrate
from isotherm.tasks import producers
from isotherm.tasks.app import app

# Short enough that a lost runner is found within a test, long enough that a busy machine loses none by itself.
PACE = {
    "ISOTHERM_LEASE": "3",
    "ISOTHERM_TICK": "0.5",
    "ISOTHERM_TOUCH_TICK": "0.5",
    "ISOTHERM_RECONCILE_TICK": "600",
    "ISOTHERM_RETRY_BASE": "0.2",
    "ISOTHERM_OUTBOX_GRACE": "2",
    "ISOTHERM_NUDGE_AFTER": "2",
    "ISOTHERM_SOFT_SHUTDOWN": "5",
    "ISOTHERM_LOG_JSON": "true",
    # Whether the offline model is installed must not change what a test sees; those about vectors ask for some.
    "ISOTHERM_EMBEDDER": "none",
}

# The whole suite can be run with the second lock on; by itself it is on where it is tested.
if os.environ.get("ISOTHERM_TEST_RLS") == "on":
    PACE["ISOTHERM_RLS"] = "on"

# A console that finds it when it is made keeps this width for ever; tests that run side by side are given one.
os.environ.pop("COLUMNS", None)


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """What a test set for its whole process, an embedder, a variable or the level of logs, must not be there for the next one."""
    variables = dict(os.environ)
    yield
    if os.environ != variables:  # a command that was run here may have set some for processes that it starts
        os.environ.clear()
        os.environ.update(variables)
    structlog.reset_defaults()
    made = factory._made.get()
    for key in [key for key in made if isinstance(key, tuple) and key[0] == "none"]:
        del made[key]


@pytest.fixture(scope="session")
def base_dir() -> Iterator[Path]:
    """A folder that the servers' user can reach, unlike pytest's own."""
    base = Path(tempfile.mkdtemp(prefix="isotherm-tests-"))
    base.chmod(0o755)
    yield base
    shutil.rmtree(base, ignore_errors=True)


@pytest.fixture(scope="session")
def endpoints(base_dir: Path) -> Iterator[Endpoints]:
    servers = Embedded(base_dir / "data", system_dir=base_dir / "system")
    found = servers.start()
    # Collecting tests may have read Celery's settings already, before there was a server to name in them.
    app.conf.update(broker_url=found.broker_url, result_backend=found.broker_url)
    yield found
    servers.stop()


def _database(endpoints: Endpoints, name: str) -> str:
    return endpoints.postgres_dsn.rsplit("/", 1)[0] + f"/{name}"


@pytest.fixture(scope="session")
def template(endpoints: Endpoints) -> str:
    """A migrated database that tests clone."""
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute("CREATE DATABASE isotherm_template")
    migrate(_database(endpoints, "isotherm_template"), rls=PACE.get("ISOTHERM_RLS") == "on")
    return "isotherm_template"


@pytest.fixture
def dsn(endpoints: Endpoints, template: str) -> Iterator[str]:
    """A migrated database of the test's own."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    yield _database(endpoints, name)
    storage.close()
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def client(endpoints: Endpoints) -> Iterator[redis.Redis]:
    """The Redis of the tests, empty."""
    found = redis.Redis.from_url(endpoints.redis_url)
    found.flushall()
    yield found
    found.close()


@pytest.fixture(scope="session")
def shared_client(endpoints: Endpoints) -> Iterator[redis.Redis]:
    """The Redis of the tests as others left it, for stores whose keys are their own."""
    found = redis.Redis.from_url(endpoints.redis_url)
    yield found
    found.close()


@pytest.fixture(scope="session")
def s3(base_dir: Path) -> Iterator[s3_server.S3Server]:
    """A real S3 server; each test takes a bucket of its own from it."""
    started = s3_server.start(base_dir / "s3")
    yield started
    started.stop()


@pytest.fixture(scope="session")
def rabbit_node(base_dir: Path) -> Iterator[rabbit_server.RabbitServer]:
    """A real RabbitMQ, started when the first test needs it."""
    script = rabbit_server.program()
    if script is None:
        pytest.skip("there is no RabbitMQ: install Debian's rabbitmq-server, or another into /opt/rabbitmq")
    node = rabbit_server.RabbitServer(base_dir / "rabbit", script)
    try:
        yield node.start()
    finally:
        node.stop()


@pytest.fixture
def rabbit(request: pytest.FixtureRequest) -> rabbit_server.RabbitServer | None:
    """The RabbitMQ that is the broker of this test, empty; None where Redis is."""
    if getattr(request, "param", "redis") == "redis":
        return None
    node: rabbit_server.RabbitServer = request.getfixturevalue("rabbit_node")
    brokers.empty(node.start())
    return node


@pytest.fixture
def pace() -> dict[str, str]:
    """Settings of a module's own, over `PACE`; a module overrides this fixture."""
    return {}


@pytest.fixture
def environment(
    dsn: str,
    endpoints: Endpoints,
    client: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pace: dict[str, str],
    rabbit: rabbit_server.RabbitServer | None,
) -> Iterator[dict[str, str]]:
    """The settings of the test and of every process it starts."""
    assert client.ping()
    values = {
        **PACE,
        **pace,
        "ISOTHERM_POSTGRES_DSN": dsn,
        "ISOTHERM_REDIS_URL": endpoints.redis_url,
        "ISOTHERM_DATA_DIR": str(tmp_path / "data"),
        **({} if rabbit is None else {"ISOTHERM_BROKER_URL": rabbit.url}),
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    settings_module.settings.cache_clear()
    with nullcontext() if rabbit is None else brokers.of_settings():
        yield values


@pytest.fixture
def opened(environment: dict[str, str]) -> Iterator[Storage]:
    """Storage of the test's own process, over real servers."""
    assert environment
    yield storage.open()
    producers.flush()
    storage.close()
    settings_module.settings.cache_clear()


@pytest.fixture(scope="module")
def row_security() -> bool:
    """Whether the storage of a module has its second lock; a module overrides this fixture."""
    return False


@pytest.fixture(scope="module")
def kept_storage(
    endpoints: Endpoints,
    template: str,
    tmp_path_factory: pytest.TempPathFactory,
    row_security: bool,  # noqa: FBT001 - a fixture
) -> Iterator[Storage]:
    """Storage that the tests of a module share; each empties the tables it needs."""
    name = f"test_{uuid4().hex}"
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template)))
    with pytest.MonkeyPatch.context() as patch:
        for key, value in PACE.items():
            patch.setenv(key, value)
        patch.setenv("ISOTHERM_POSTGRES_DSN", _database(endpoints, name))
        patch.setenv("ISOTHERM_REDIS_URL", endpoints.redis_url)
        patch.setenv("ISOTHERM_DATA_DIR", str(tmp_path_factory.mktemp("kept")))
        if row_security:
            patch.setenv("ISOTHERM_RLS", "on")
            migrate(_database(endpoints, name), rls=True)
        settings_module.settings.cache_clear()
        yield storage.open()
    storage.close()
    settings_module.settings.cache_clear()
    with psycopg.connect(endpoints.postgres_dsn, autocommit=True) as conn:
        conn.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def processes(environment: dict[str, str], tmp_path: Path) -> Iterator[Processes]:
    started = Processes(environment, tmp_path)
    yield started
    started.stop()
