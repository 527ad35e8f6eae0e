"""Two sockets that stand between the product and its servers, and can delay, cut or swallow what passes."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Literal

Mode = Literal["pass", "delay", "hang"]

_DELAY_S = 0.15
_CHUNK = 65_536


class Proxy:
    """Listens on one Unix socket and speaks to another, in a thread of its own."""

    def __init__(self, listen: Path, server: Path) -> None:
        self.listen, self._server = listen, server
        self._mode: Mode = "pass"
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._pairs: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy of {server.name}", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(10)

    def set(self, mode: Mode) -> None:
        """Say what happens to everything that passes from now on."""
        self._loop.call_soon_threadsafe(self._set, mode)

    def _set(self, mode: Mode) -> None:
        self._mode = mode
        (self._flowing.clear if mode == "hang" else self._flowing.set)()

    def cut(self) -> None:
        """Close every connection in the middle of whatever it carries."""
        self._loop.call_soon_threadsafe(self._close_all)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    async def _end(self) -> None:
        self._kept.close()
        self._set("pass")
        self._close_all()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _open(self) -> None:
        self._kept = await asyncio.start_unix_server(self._accept, str(self.listen))

    def _close_all(self) -> None:
        for writer in self._pairs:
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._pairs.add(writer)
        try:
            there_reader, there = await asyncio.open_unix_connection(str(self._server))
        except OSError:
            self._pairs.discard(writer)
            writer.close()
            return
        self._pairs.add(there)
        with suppress(asyncio.CancelledError):  # the proxy closes; a task that ended so would be reported as an error
            await asyncio.gather(self._carry(reader, there), self._carry(there_reader, writer))
        for end in (writer, there):
            self._pairs.discard(end)
            end.close()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            while data := await reader.read(_CHUNK):
                await self._flowing.wait()
                if self._mode == "delay":
                    await asyncio.sleep(_DELAY_S)
                writer.write(data)
                await writer.drain()
        writer.close()
