"""Ports of this machine, and a stretch of network to one of them that can be slowed down, cut and mended."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from typing import Any

CHUNK_BYTES = 1 << 16


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Link:
    """A TCP proxy on `port` that delays what passes, in both directions. One thread with an event loop of its own.

    Units: delay_s one way; it may change while connections are open.
    """

    def __init__(self, target_port: int, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self._target_port = target_port
        self._open: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="link", daemon=True)
        self._thread.start()
        self._server = self._call(self._listen(0))
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """Ends all connections and refuses new ones until mend(), as when the other side is stopped."""
        self._call(self._cut())

    def mend(self) -> None:
        self._server = self._call(self._listen(self.port))

    def close(self) -> None:
        self.cut()
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _listen(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def _cut(self) -> None:
        self._server.close()
        for end in self._open:
            end.transport.abort()

    async def _end(self) -> None:
        carrying = asyncio.all_tasks() - {asyncio.current_task()}
        for task in carrying:
            task.cancel()
        await asyncio.gather(*carrying, return_exceptions=True)

    async def _serve(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        try:
            far, far_out = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            near_out.close()
            return
        if not self._server.is_serving():  # cut meanwhile
            near_out.close()
            far_out.close()
            return
        ends = {near_out, far_out}
        self._open |= ends
        await asyncio.gather(self._carry(near, far_out), self._carry(far, near_out))
        self._open -= ends

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Bytes keep their order and their distance: a full pipe is not slower than an empty one."""
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = asyncio.create_task(self._send(late, target))
        try:
            while data := await source.read(CHUNK_BYTES):
                late.put_nowait((self._loop.time() + self.delay_s, data))
        except OSError:
            pass  # the other side went away: so does this one
        late.put_nowait((self._loop.time() + self.delay_s, b""))
        await sending

    async def _send(self, late: asyncio.Queue[tuple[float, bytes]], target: asyncio.StreamWriter) -> None:
        try:
            while True:
                due_s, data = await late.get()
                await asyncio.sleep(max(0.0, due_s - self._loop.time()))
                if not data:
                    break
                target.write(data)
                await target.drain()
        except OSError:
            pass  # as above
        target.close()
