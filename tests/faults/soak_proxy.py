"""A socket, of Unix or a port, that stands between the product and a server, and can delay, cut or swallow what passes.

    python tests/faults/soak_proxy.py LISTEN SERVER

Each is the path of a Unix socket, or a port of this machine.

A process of its own, so that what passes does not wait for the programs of a soak; it reads what to do from its input.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Literal

Mode = Literal["pass", "delay", "hang"]

_HOST = "127.0.0.1"
_DELAY_S = 0.15
_CHUNK = 65_536


class Proxy:
    """Listens at one place and speaks to another, each a Unix socket or a port."""

    def __init__(self, listen: Path | int, server: Path | int) -> None:
        self.port = listen if isinstance(listen, int) else 0
        self._popen = subprocess.Popen(
            [sys.executable, __file__, str(listen), str(server)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._popen.stdout is not None
        assert self._popen.stdout.readline() == "ready\n"

    def set(self, mode: Mode) -> None:
        """Say what happens to everything that passes from now on."""
        self._say(mode)

    def cut(self) -> None:
        """Close every connection in the middle of whatever it carries."""
        self._say("cut")

    def close(self) -> None:
        self._popen.kill()
        self._popen.wait(10)

    def _say(self, word: str) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"{word}\n")


class _Carrier:
    """The proxy's process."""

    def __init__(self, server: str) -> None:
        self._server, self._mode = server, "pass"
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._ends: set[asyncio.StreamWriter] = set()

    async def run(self, listen: str) -> None:
        kept = await (
            asyncio.start_server(self._accept, _HOST, int(listen))
            if listen.isdigit()
            else asyncio.start_unix_server(self._accept, listen)
        )
        words = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(words), sys.stdin)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        async with kept:
            while word := (await words.readline()).decode().strip():
                self._obey(word)

    def _obey(self, word: str) -> None:
        if word == "cut":
            for writer in self._ends:
                writer.transport.abort()
            return
        self._mode = word
        (self._flowing.clear if word == "hang" else self._flowing.set)()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._ends.add(writer)
        try:
            there_reader, there = await self._connect()
        except OSError:
            self._ends.discard(writer)
            writer.close()
            return
        self._ends.add(there)
        await asyncio.gather(self._carry(reader, there), self._carry(there_reader, writer))
        for end in (writer, there):
            self._ends.discard(end)
            end.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._server.isdigit():
            return await asyncio.open_connection(_HOST, int(self._server))
        return await asyncio.open_unix_connection(self._server)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while data := await reader.read(_CHUNK):
                await self._flowing.wait()
                if self._mode == "delay":
                    await asyncio.sleep(_DELAY_S)
                writer.write(data)
                await writer.drain()
        writer.close()


if __name__ == "__main__":
    asyncio.run(_Carrier(sys.argv[2]).run(sys.argv[1]))
