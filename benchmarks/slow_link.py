"""A link that takes its time: a TCP proxy on this machine that delays what passes, in both directions."""

from __future__ import annotations

import asyncio
import threading

CHUNK_BYTES = 1 << 16


class SlowLink:
    """Units: delay_ms one way. One thread with an event loop of its own."""

    def __init__(self, target_port: int, delay_ms: float) -> None:
        self._target_port = target_port
        self._delay_s = delay_ms / 1000
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="slow-link", daemon=True)
        self.port = 0

    def start(self) -> None:
        self._thread.start()
        self._ready.wait()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()

    async def _serve(self, near: asyncio.StreamReader, near_out: asyncio.StreamWriter) -> None:
        try:
            far, far_out = await asyncio.open_connection("127.0.0.1", self._target_port)
        except OSError:
            near_out.close()
            return
        await asyncio.gather(self._carry(near, far_out), self._carry(far, near_out))

    async def _carry(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """Bytes keep their order and their distance: a full pipe is not slower than an empty one."""
        late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sending = asyncio.create_task(self._send(late, target))
        try:
            while data := await source.read(CHUNK_BYTES):
                late.put_nowait((self._loop.time() + self._delay_s, data))
        except OSError:
            pass  # the other side went away: so does this one
        late.put_nowait((self._loop.time() + self._delay_s, b""))
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
