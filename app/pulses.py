"""Wakes those who follow events: one thread of the process hears of every change, waiters sit on the loop."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Pulses:
    """Topics are render ids and owners; a pulse says "read again", never what changed."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def pulse(self, render_id: str, owner: str) -> None:
        """Called from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake, render_id, owner)

    @contextmanager
    def follow(self, topic: str) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._waiting[topic].add(event)
        try:
            yield event
        finally:
            self._waiting[topic].discard(event)
            if not self._waiting[topic]:
                del self._waiting[topic]

    def _wake(self, *topics: str) -> None:
        for topic in topics:
            for event in self._waiting.get(topic, ()):
                event.set()
