"""The queue in front of the lanes: waiting renders in the order in which they are due, owners taking turns.

Lanes stay the durable place of every render; the queue is an index over them that says who is next.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import redis

from core.profile import Bucket
from core.scheduler import NO_DEADLINE, Claim, Task, claim_of
from shared_cache import keys, queue_scripts
from shared_cache.lanes import FINAL_GROUP, STANDARD, Entry, Reader, lane_name

log = logging.getLogger(__name__)
LOOK_AHEAD = 32  # waiting renders that a policy chooses from
REACH = 512  # how far down to look for renders of the buckets that this worker runs
CAREFUL_LOOK = 64  # waiting renders whose deadlines a newcomer must not spoil
TIDIED = 200  # entries of a lane that are checked at a time


@dataclass(frozen=True, slots=True)
class Ahead:
    """The queue as a newcomer meets it. Units: seconds of one device at full batches.

    waiting: the first renders of the queue, in its order; before: how many of the whole queue go before the newcomer.
    """

    unfinished: int
    running_s: float
    before: int
    waiting: tuple[Claim, ...]

    def work_before_s(self) -> float:
        """Of those that go before; beyond those that were looked at by their mean."""
        seen = self.waiting[: self.before]
        seen_s = sum(claim.work_s for claim in seen)
        return seen_s * self.before / len(seen) if seen else 0.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A render that waits, and the attempt that may write its record."""

    task: Task
    attempt: int


class Lanes(Reader):
    """All lanes of some buckets, read in the order of the queue."""

    def __init__(self, client: redis.Redis, buckets: Sequence[str | Bucket], consumer: str) -> None:
        super().__init__(client, [lane_name(STANDARD, bucket) for bucket in buckets], FINAL_GROUP, consumer)
        self._buckets = [str(bucket) for bucket in buckets]
        self._peek = client.register_script(queue_scripts.PEEK)
        self._take = client.register_script(queue_scripts.TAKE)
        self._tidy = client.register_script(queue_scripts.TIDY)
        self._tidied = dict.fromkeys(self._streams, "")

    def peek(self, count: int = LOOK_AHEAD) -> list[Waiting]:
        """Who is next, without taking anything."""
        found = self._peek(keys=[keys.QUEUE], args=[count, max(count, REACH), *self._buckets])
        return [_waiting([None if text is None else text.decode() for text in row]) for row in found]

    def take(self, render_ids: Sequence[str]) -> list[Entry]:
        """Those of them that still wait; they are ours now, in this order."""
        if not render_ids:
            return []
        found = self._take(args=[self._group, self._consumer, *render_ids])
        rows = [[text.decode() for text in row] for row in found]
        return [Entry(stream, entry_id, render_id, int(attempt)) for stream, entry_id, render_id, attempt in rows]

    def tidy(self) -> int:
        """Drops entries that belong to no render, a few hundred a call; returns how many."""
        total = 0
        for lane, after in self._tidied.items():
            last, dropped = self._tidy(keys=[lane], args=[self._group, after, TIDIED])
            self._tidied[lane] = last.decode()
            total += len(dropped)
            for entry_id in dropped:
                log.warning("dropped entry %s of %s: it belongs to no render", entry_id.decode(), lane)
        return total


class Backlog:
    """What stands before a newcomer, at the same cost however many wait."""

    def __init__(self, client: redis.Redis) -> None:
        self._ahead = client.register_script(queue_scripts.AHEAD)

    def ahead_of(self, owner: str, look: int = CAREFUL_LOOK) -> Ahead:
        unfinished, running_s, before, seen = self._ahead(args=[owner, look])
        return Ahead(int(unfinished), float(running_s), int(before), tuple(_claim(row) for row in seen))


def _claim(row: Sequence[bytes | None]) -> Claim:
    """What follows denoising is taken off the deadline, since a claim is of the denoising alone."""
    render_id, *rest = ("null" if text is None else text.decode() for text in row)
    work_s, created_s, limit_s, gpu_s = (json.loads(text) for text in rest)
    if limit_s is None:
        return claim_of(render_id, work_s, created_s, NO_DEADLINE)
    return claim_of(render_id, work_s, created_s, created_s + limit_s - max(0.0, (gpu_s or 0.0) - work_s))


def _waiting(row: Sequence[str | None]) -> Waiting:
    render_id, bucket, attempt, rows, steps, images, created_s, deadline_s = (text or "null" for text in row)
    arrived_s, limit_s = float(json.loads(created_s)), json.loads(deadline_s)
    task = Task(
        id=render_id,
        bucket=bucket,
        rows=int(json.loads(rows) or 1),
        steps=int(json.loads(steps)),
        images=int(json.loads(images)),
        arrived_s=arrived_s,
        due_s=NO_DEADLINE if limit_s is None else arrived_s + float(limit_s),
    )
    return Waiting(task, int(attempt))
