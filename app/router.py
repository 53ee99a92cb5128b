"""Frames from the preview pool to the sessions of this web process."""

from __future__ import annotations

import asyncio
import logging
import threading
import uuid
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from core.wire import unpack_frame
from shared_cache.mailbox import Replies

log = logging.getLogger(__name__)

POP_TIMEOUT_S = 1.0
OUTAGE_WAIT_S = 0.5
Deliver = Callable[[dict[str, Any], bytes], None]


class Router:
    """One thread a process waits for frames; sessions get theirs on the event loop, so they need no lock."""

    def __init__(self, replies: Replies) -> None:
        self.reply_to = uuid.uuid4().hex
        self._replies = replies
        self._sessions: dict[str, Deliver] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._thread = threading.Thread(target=self._run, args=(loop,), name="frames", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(POP_TIMEOUT_S + 1)

    def listen(self, session: str, deliver: Deliver) -> None:
        self._sessions[session] = deliver

    def forget(self, session: str) -> None:
        self._sessions.pop(session, None)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopping.is_set():
            try:
                frame = self._replies.pop(self.reply_to, POP_TIMEOUT_S)
            except RedisError:
                self._stopping.wait(OUTAGE_WAIT_S)
                continue
            if frame is not None and not loop.is_closed():
                loop.call_soon_threadsafe(self._route, frame)

    def _route(self, frame: bytes) -> None:
        try:
            header, payload = unpack_frame(frame)
            session = header.pop("session")
        except (ValueError, KeyError) as error:
            log.error("a frame that cannot be read: %s", error)
            return
        deliver = self._sessions.get(session)
        if deliver is not None:
            deliver(header, payload)
