"""A real S3 server for tests: SeaweedFS from its wheel, on ports of its own, with a fresh bucket per test."""

from __future__ import annotations

import os
import socket
import subprocess
import sysconfig
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from pydantic import SecretStr

from isotherm.storage.s3 import Bucket

BUCKET = "isotherm-tests"
ACCESS_KEY = "tests"
SECRET_KEY = "of this machine only"
_PORTS = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "filer.port",
          "filer.port.grpc", "admin.port", "admin.port.grpc")  # fmt: skip


@dataclass
class S3Server:
    """A running server. Each `bucket()` is an empty folder of its bucket."""

    popen: subprocess.Popen[bytes]
    endpoint: str
    ports: dict[str, int]

    def bucket(self, *, secret: str = SECRET_KEY) -> Bucket:
        return Bucket(
            BUCKET,
            prefix=f"t/{uuid4().hex}",
            endpoint=self.endpoint,
            access_key=SecretStr(ACCESS_KEY),
            secret_key=SecretStr(secret),
            timeout=timedelta(seconds=10),
            retry_for=timedelta(seconds=5),
        )

    def stop(self) -> None:
        self.popen.kill()  # its data go too, so nothing is worth waiting for
        self.popen.wait()
        for name, port in self.ports.items():  # it leaves its sockets behind
            (Path("/tmp") / f"seaweedfs-{name.split('.')[0]}-grpc-{port}.sock").unlink(missing_ok=True)


def start(folder: Path) -> S3Server:
    """Start a server with its data and log in a folder, and wait until it answers."""
    folder.mkdir(parents=True)
    with ExitStack() as held:
        ports = {name: _free_port(held) for name in _PORTS}
    flags = {
        **{name: str(port) for name, port in ports.items()},
        "dir": str(folder),
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "bucket": BUCKET,
        "master.telemetry": "false",
        "admin.ui": "false",
        "webdav": "false",
        "s3.port.iceberg": "0",
        "s3.port.lance": "0",
        "metricsPort": "0",
        "s3.localSocket": str(folder / "s3.sock"),
        "filer.localSocket": str(folder / "filer.sock"),
    }
    program = Path(sysconfig.get_path("scripts")) / "weed"
    with (folder / "weed.log").open("wb") as log:
        popen = subprocess.Popen(
            [program, "mini", *(f"-{name}={value}" for name, value in flags.items())],
            env={**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY},
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd=folder,
        )
    server = S3Server(popen, f"http://127.0.0.1:{ports['s3.port']}", ports)
    deadline = time.monotonic() + 30
    while not _serves_bucket(server.endpoint):
        if popen.poll() is not None or time.monotonic() > deadline:
            server.stop()
            pytest.fail("the S3 server does not start: " + (folder / "weed.log").read_text(errors="replace")[-2000:])
        time.sleep(0.05)
    return server


def _serves_bucket(endpoint: str) -> bool:
    """Whether the bucket is there: without a signature it is forbidden, not unknown."""
    try:
        urllib.request.urlopen(f"{endpoint}/{BUCKET}", timeout=2)
    except urllib.error.HTTPError as error:
        return error.code == 403
    except OSError:
        return False
    return True


def _free_port(held: ExitStack) -> int:
    """A port that nobody has; it is held until all are found, so that no two are the same."""
    found = held.enter_context(socket.socket())
    found.bind(("127.0.0.1", 0))
    return int(found.getsockname()[1])
