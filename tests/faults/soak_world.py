"""The world of a soak: servers, sockets before them, a model, a disk, and processes that are started again when they end."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from harness import Process, Processes
from rabbit_server import RabbitServer
from soak_model import HurtModel
from soak_proxy import Proxy

from isotherm.storage.embedded import Embedded
from isotherm.tasks import publish

_DISK_BYTES = 96 << 20
_CHUNK = 1 << 20


class Disk:
    """A small disk of its own for the blob store, which can be filled. Only root may have one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    @classmethod
    def mounted(cls, folder: Path) -> Disk | None:
        """None where none can be mounted."""
        folder.mkdir()
        size = f"size={_DISK_BYTES}"
        mount = shutil.which("mount")
        if os.geteuid() != 0 or mount is None:
            return None
        done = subprocess.run(
            [mount, "-t", "tmpfs", "-o", size, "tmpfs", str(folder)], capture_output=True, check=False
        )
        return cls(folder) if done.returncode == 0 else None

    def fill(self) -> None:
        """Leave not one byte."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (_CHUNK, 1 << 10, 1):
                with suppress(OSError):
                    while file.write(b"\0" * size) == size:
                        pass
            assert self.is_full()

    def is_full(self) -> bool:
        try:
            (self.folder / "probe").write_bytes(b"\0")
        except OSError as error:
            return error.errno == errno.ENOSPC
        (self.folder / "probe").unlink()
        return False

    def free(self) -> None:
        self._ballast.unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=False)


@dataclass
class World:
    """Args: folder: files in it steer the workers' app; model: None where rules do its work; disk: of the blob store, where there can be one of its own; rabbit, broker: RabbitMQ and what stands before it, None where Redis is the broker."""

    servers: Embedded
    processes: Processes
    postgres: Proxy
    redis: Proxy
    blobs: Path
    folder: Path
    model: HurtModel | None
    disk: Disk | None = None
    rabbit: RabbitServer | None = None
    broker: Proxy | None = None
    running: dict[str, Process] = field(default_factory=dict)
    started: int = 0
    duplicates: int = 0
    shuffled: int = 0

    def tend(self) -> None:
        """Start what is missing, under names that nobody had; a machine's supervisor would do the same."""
        for role in ("beat", "worker-a", "worker-b"):
            process = self.running.get(role)
            if process is not None and process.popen.poll() is None:
                continue
            self.started += 1
            name = f"{role}-{self.started}"
            if role == "beat":
                self.running[role] = self.processes.beat(name)
            else:
                self.running[role] = self.processes.worker(name, app="soaked", ready=False)

    def heal(self) -> None:
        """End every injury that lasts."""
        for proxy in self.proxies:
            proxy.set("pass")
        if self.rabbit is not None:
            self.rabbit.resume()
            self.rabbit.start()
        if self.model is not None:
            self.model.set("well")
        if self.disk is not None:
            self.disk.free()
        for name in ("graph-away", "kill-before-mark", "clock"):
            self.unset(name)
        self.servers.start()
        self.tend()

    @property
    def proxies(self) -> list[Proxy]:
        """What stands before the servers."""
        return [self.postgres, self.redis, *([] if self.broker is None else [self.broker])]

    def worker(self, dice: random.Random) -> Process:
        return self.running[dice.choice(("worker-a", "worker-b"))]

    def set(self, name: str, text: str = "") -> None:
        """Tell the workers' app something, by a file that is there whole or not at all."""
        written = self.folder / f"{name}.new"
        written.write_text(text)
        written.replace(self.folder / name)

    def unset(self, name: str) -> None:
        (self.folder / name).unlink(missing_ok=True)

    def is_set(self, name: str) -> bool:
        return (self.folder / name).exists()

    def leave_to_relay(self, seconds: float) -> None:
        """Callers of this process publish nothing for a while, as if their broker were away for them alone."""
        publish._State.paused_until = publish.time.monotonic() + seconds

    @contextmanager
    def direct(self) -> Iterator[psycopg.Connection]:
        """A connection that does not pass the proxy."""
        with psycopg.connect(self.servers.endpoints().postgres_dsn, autocommit=True, connect_timeout=5) as conn:
            yield conn
