"""What happened to renders, as streams to read from where one left off, and the tail that wakes their readers."""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
from collections.abc import Callable
from typing import Any, cast

import redis

from core.errors import InvalidInput
from shared_cache import keys, scripts

log = logging.getLogger(__name__)
READ_LIMIT = 1000
BLOCK_MS = 500
StreamEntry = tuple[bytes, dict[bytes, bytes]]


def check_event_id(text: str) -> None:
    """Raises: InvalidInput when text cannot be an event's id; what passes, Redis reads."""
    if not re.fullmatch(r"[0-9]{1,19}(-[0-9]{1,19})?", text):
        raise InvalidInput("Last-Event-ID", "is not the id of an event")


class Events:
    """Events of a render and of an owner, oldest first; types are state, progress and glimpse."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._glimpse = client.register_script(scripts.GLIMPSE)

    def read(self, render_id: str, after: str = "0") -> list[tuple[str, dict[str, Any]]]:
        """The render's events behind the id `after`.

        Raises: InvalidInput when `after` is no event id.
        """
        return self._read(keys.events(render_id), after)

    def feed(self, owner: str, after: str = "0") -> list[tuple[str, dict[str, Any]]]:
        """The events of all of an owner's renders behind the id `after`.

        Raises: InvalidInput when `after` is no event id.
        """
        return self._read(keys.feed(owner), after)

    def newest(self, owner: str) -> str:
        """The id of the newest event of an owner's renders, "0" when there is none yet: what comes from now on."""
        found = cast("list[StreamEntry]", self._client.xrevrange(keys.feed(owner), count=1))
        return found[0][0].decode() if found else "0"

    def glimpse(self, render_id: str, attempt: int, step: int, jpeg: bytes) -> bool:
        """Publishes an intermediate picture; the render's earlier one is dropped. False when fenced or over."""
        picture = base64.b64encode(jpeg).decode()
        return bool(self._glimpse(args=[render_id, attempt, step, picture]))

    def _read(self, key: str, after: str) -> list[tuple[str, dict[str, Any]]]:
        check_event_id(after)
        found = cast("list[StreamEntry]", self._client.xrange(key, min=f"({after}", max="+", count=READ_LIMIT))
        return [(entry_id.decode(), json.loads(fields[b"e"])) for entry_id, fields in found]


class Tail:
    """One thread of a process that hears of every change and calls back with (render_id, owner)."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, callback: Callable[[str, str], None]) -> None:
        """Follows from now on; what is written after start returns is heard."""
        newest = cast("list[StreamEntry]", self._client.xrevrange(keys.PULSE, count=1))
        after = newest[0][0] if newest else b"0"
        self._stop.clear()
        arguments = (callback, after)
        self._thread = threading.Thread(target=self._follow, args=arguments, name="firstlight-tail", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * BLOCK_MS / 1000)
            self._thread = None

    def _follow(self, callback: Callable[[str, str], None], after: bytes) -> None:
        while not self._stop.is_set():
            try:
                found = cast(
                    "list[tuple[bytes, list[StreamEntry]]]",
                    self._client.xread({keys.PULSE: after}, count=READ_LIMIT, block=BLOCK_MS),
                )
            except redis.RedisError:
                self._stop.wait(0.5)
                continue
            for entry_id, fields in found[0][1] if found else ():
                after = entry_id
                self._call(callback, fields)

    def _call(self, callback: Callable[[str, str], None], fields: dict[bytes, bytes]) -> None:
        try:
            callback(fields[b"id"].decode(), fields[b"owner"].decode())
        except Exception:  # the edge of the thread: one bad reader must not deafen the others
            log.exception("the tail's callback failed for render %r", fields.get(b"id"))
