"""A stretch of network that tests can slow down, cut and mend."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

CHUNK_BYTES = 65_536


class Forward:
    """Passes connections on to a port of this machine; delay_s is added to every answer.

    cut() ends all connections and refuses new ones until mend(), as when the other side is stopped.
    """

    def __init__(self, port: int, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self._to = port
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._listener = self._listen(0)
        self.port = int(self._listener.getsockname()[1])
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """A listener that is shut down wakes the thread that waits for it."""
        for end in (self._listener, *(end for pair in self._pairs for end in pair)):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._pairs.clear()

    def mend(self) -> None:
        self._listener = self._listen(self.port)

    def _listen(self, port: int) -> socket.socket:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(64)
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._to))
                self._pairs.append((near, far))
                threading.Thread(target=self._pass_on, args=(near, far, False), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(far, near, True), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                if answers and self.delay_s:
                    time.sleep(self.delay_s)
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)
