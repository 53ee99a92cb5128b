"""Durable streams of work: what lanes of renders and the stages behind them have in common, and the stages.

An entry is held by a consumer until it is acknowledged; a holder that stops its heartbeat loses it to take_over.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import redis

from core.profile import Bucket
from core.render import TERMINAL
from shared_cache import keys, scripts
from shared_cache.connect import pop_blocking

log = logging.getLogger(__name__)
FINAL_GROUP = "final"
STANDARD = "standard"
MAX_TAKE_OVER = 16


@dataclass(frozen=True, slots=True)
class Entry:
    """One place in a stream; attempt is the record's when the entry was added (0 in a lane)."""

    stream: str
    entry_id: str
    render_id: str
    attempt: int


def decode_stage(model: str) -> str:
    """The decode stage of one model, as stream and as group: what one made, another's decoder would spoil."""
    return f"decode:{model}"


def lane_name(priority: str, bucket: str | Bucket) -> str:
    """The stream's full key, as Renders.create takes it."""
    return keys.lane(priority, bucket)


class Signal:
    """Wakes idle workers of a role (or of several) as soon as somebody adds work for it."""

    def __init__(self, client: redis.Redis, *roles: str) -> None:
        self._client = client
        self._keys = [keys.wake(role) for role in roles]

    def wait(self, timeout_s: float) -> bool:
        """True when there may be something new, False after timeout_s."""
        return pop_blocking(self._client, self._keys, timeout_s) is not None

    def notify(self) -> None:
        """Wakes a waiter; a few tokens are kept, so that several idle workers see a burst.

        In an outage nobody is woken; waiters look for themselves now and then.
        """
        with suppress(redis.RedisError), self._client.pipeline() as pipe:
            for key in self._keys:
                pipe.lpush(key, "1")
                pipe.ltrim(key, 0, 7)
            pipe.execute()


class Reader:
    """One consumer of one group over some streams.

    model: the one whose renders it works on, None for any. styles: likewise, as core.recipe spells them.
    """

    def __init__(
        self,
        client: redis.Redis,
        streams: Sequence[str],
        group: str,
        consumer: str,
        model: str | None = None,
        styles: str | None = None,
    ) -> None:
        self._client = client
        self._streams = list(streams)
        self._group = group
        self._consumer = consumer
        self._model = model
        self._styles = styles
        self._take_over = client.register_script(scripts.TAKE_OVER)
        self._heartbeat = client.register_script(scripts.HEARTBEAT)
        self._ack = client.register_script(scripts.ACK)
        self._signal = Signal(client, group)

    def take_over(self, min_idle_s: float, count: int = MAX_TAKE_OVER) -> list[Entry]:
        """Entries whose holder gave no sign for min_idle_s; they are ours now.

        That holder may be this consumer, where its own heartbeat was late: the caller knows what it has at work.
        """
        asked = (self._group, self._consumer, int(min_idle_s * 1000), count, self._model or "")
        styles = () if self._styles is None else (self._styles,)
        return self._usable(self._take_over(keys=self._streams, args=[*asked, *styles]))

    def heartbeat(self, entries: Sequence[Entry]) -> list[Entry]:
        """Renews our hold; returns the entries that are no longer ours (taken over, cancelled or gone)."""
        if not entries:
            return []
        asked = [self._group, self._consumer, *(entry.entry_id for entry in entries)]
        lost = self._heartbeat(keys=[entry.stream for entry in entries], args=asked)
        return [entries[position - 1] for position in lost]

    def ack(self, entry: Entry) -> None:
        """Takes the entry out of its stream if we hold it; again, or once another has taken it over, is harmless."""
        self._drop(entry.stream, entry.entry_id)

    def release(self, entries: Sequence[Entry]) -> None:
        """Gives entries back unfinished: the next take_over of anybody gets them at once."""
        for entry in entries:
            self._client.xclaim(
                entry.stream, self._group, self._consumer, 0, [entry.entry_id], idle=86_400_000, justid=True
            )
        if entries:
            self._signal.notify()

    def depth(self) -> dict[str, int]:
        """Waiting entries (not yet given to a worker) by stream."""
        return {stream: self._waiting(stream) for stream in self._streams}

    def wait(self, timeout_s: float) -> bool:
        """Blocks until somebody adds an entry; True when there may be one."""
        return self._signal.wait(timeout_s)

    def _waiting(self, stream: str) -> int:
        length = self._client.xlen(stream)
        try:
            held = self._client.xpending(stream, self._group)["pending"]
        except redis.ResponseError:  # no stream or no group yet
            held = 0
        return max(0, length - int(held))

    def _usable(self, found: Sequence[Sequence[bytes]]) -> list[Entry]:
        entries = []
        for row in found:
            stream, entry_id, render_id, attempt, state = (text.decode("utf-8", "replace") for text in row)
            reason = _unusable(render_id, attempt, state)
            if reason is None:
                entries.append(Entry(stream, entry_id, render_id, int(attempt)))
                continue
            log.warning("dropped entry %s of %s, render %r: %s", entry_id, stream, render_id, reason)
            self._drop(stream, entry_id)
        return entries

    def _drop(self, stream: str, entry_id: str) -> None:
        self._ack(keys=[stream], args=[self._group, self._consumer, entry_id])


def _unusable(render_id: str, attempt: str, state: str) -> str | None:
    if not render_id or not (attempt.isascii() and attempt.isdigit()):
        return "it cannot be read"
    if not state:
        return "its record is gone"
    return f"it is {state}" if state in TERMINAL else None


class Stream(Reader):
    """One stage's stream; name is a stage ("decode") or a full key."""

    def __init__(self, client: redis.Redis, name: str, group: str, consumer: str) -> None:
        super().__init__(client, [keys.stream(name)], group, consumer)
        self._pull = client.register_script(scripts.PULL)

    def pull(self, count: int) -> list[Entry]:
        """Up to count new entries, oldest first, without waiting.

        Entries that cannot be read, and those whose render is gone or over, are acknowledged and left out.
        """
        entries: list[Entry] = []
        while len(entries) < count:
            found = self._pull(keys=self._streams, args=[self._group, self._consumer, count - len(entries)])
            if not found:
                break
            entries += self._usable(found)
        return entries
