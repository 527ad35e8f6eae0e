"""A real RabbitMQ node of the tests' own: its data, logs, cookie, name and ports are private, and nothing of it stays."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import amqp

_START_S = 60.0
_STOP_S = 20.0
# What packages put on the path may insist on a user of its own; this is what it runs.
_PLACES = ("/usr/lib/rabbitmq/bin", "/usr/local/lib/rabbitmq/bin", "/opt/rabbitmq/sbin")
_CONFIG = """\
listeners.tcp.1 = 127.0.0.1:{port}
default_user = {user}
default_pass = {password}
disk_free_limit.absolute = 1MB
collect_statistics_interval = 60000
raft.wal_max_size_bytes = 16777216
"""


def program() -> Path | None:
    """The script that starts a server as whoever calls it; None where there is none."""
    for folder in _PLACES:
        if (found := Path(folder) / "rabbitmq-server").exists() and shutil.which("erl") and shutil.which("epmd"):
            return found
    return None


@dataclass
class RabbitServer:
    """One node. Its port mapper is a child of this process, so that none is left behind."""

    folder: Path
    script: Path
    user: str = "isotherm"
    password: str = field(default_factory=lambda: secrets.token_urlsafe(12))
    more: str = ""
    port: int = 0
    _epmd: subprocess.Popen[bytes] | None = None
    _node: subprocess.Popen[bytes] | None = None

    def __post_init__(self) -> None:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.port, self._epmd_port, dist = free_ports(3)
        (self.folder / "plugins").write_text("[].\n")
        config = _CONFIG.format(port=self.port, user=self.user, password=self.password) + self.more
        (self.folder / "rabbitmq.conf").write_text(config)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))},
            "PATH": f"{os.environ.get('PATH', '')}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": str(self.folder / "none"),
            "RABBITMQ_NODENAME": f"isotherm-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(dist),
            "RABBITMQ_CONFIG_FILE": str(self.folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.folder / "none.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self.folder / "data"),
            "RABBITMQ_LOG_BASE": str(self.folder / "logs"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(self.folder / "generated"),
            "RABBITMQ_PID_FILE": str(self.folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 2:2 +SDio 2 -kernel inet_dist_use_interface {127,0,0,1}",
        }

    @property
    def url(self) -> str:
        """Where it is, as kombu takes it; the password is in it."""
        return self.url_at(self.port)

    def url_at(self, port: int) -> str:
        """The same by another port, as of a proxy."""
        return f"amqp://{self.user}:{self.password}@127.0.0.1:{port}//"

    @property
    def place(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    def connect(self) -> amqp.Connection:
        """A connection of nobody's."""
        connection = amqp.Connection(
            self.place, self.user, self.password, login_method="PLAIN", connect_timeout=2, read_timeout=5
        )
        connection.connect()
        return connection

    @property
    def running(self) -> bool:
        return self._node is not None and self._node.poll() is None

    def start(self) -> RabbitServer:
        """Start what does not run, and wait until it lets us in."""
        if self._epmd is None or self._epmd.poll() is not None:
            self._epmd = self._run(["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"])
        if not self.running:
            self._node = self._run([str(self.script)])
        deadline = time.monotonic() + _START_S
        while not self.answers():
            if not self.running or time.monotonic() > deadline:
                raise RuntimeError(f"RabbitMQ did not start:\n{self._told()}")
            time.sleep(0.05)
        return self

    def answers(self) -> bool:
        """Whether a client is let in now."""
        with suppress(OSError, amqp.exceptions.AMQPError):
            self.connect().close()
            return True
        return False

    def kill(self) -> None:
        """SIGKILL: what is durable comes back with the next start."""
        self._signal(signal.SIGKILL)
        assert self._node is not None
        self._node.wait(_STOP_S)

    def pause(self) -> None:
        """It accepts and does not answer, until it is resumed."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """In good order; the virtual machine stays, which takes a third of the time."""
        self.ctl("stop_app")
        self.ctl("start_app")

    def stop(self) -> None:
        """End the node in good order, by force if need be, and then its port mapper."""
        self._end_node()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(_STOP_S)

    def ctl(self, *arguments: str) -> str:
        """What its administrator's command answers; it takes seconds."""
        command = [str(self.script.with_name("rabbitmqctl")), "--quiet", *arguments]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=True, timeout=60)
        return done.stdout

    def _end_node(self) -> None:
        if self._node is None:
            return
        self.resume()
        self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._node.wait(_STOP_S)
        self._signal(signal.SIGKILL)
        self._node.wait(_STOP_S)

    def _signal(self, number: signal.Signals) -> None:
        """To the server and its helpers, which are a group of their own."""
        if self._node is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._node.pid, number)

    def _run(self, command: list[str]) -> subprocess.Popen[bytes]:
        environment: Mapping[str, str] = self._environment
        with (self.folder / "output").open("ab") as out:
            return subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                start_new_session=True, cwd=self.folder,
            )  # fmt: skip

    def _told(self) -> str:
        return (self.folder / "output").read_text(errors="replace")[-3_000:]


def free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in held]
    for each in held:
        each.close()
    return ports
