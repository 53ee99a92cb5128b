"""The queue in front of the lanes: waiting renders in the order in which they are due, owners taking turns.

Lanes stay the durable place of every render; the queue is an index over them that says who is next.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import redis

from core.profile import Bucket
from core.scheduler import NO_DEADLINE, Claim, Task, claim_of
from shared_cache import keys, queue_scripts
from shared_cache.lanes import FINAL_GROUP, STANDARD, Entry, Reader, lane_name

log = logging.getLogger(__name__)
LOOK_AHEAD, LOOK_OF_ONE = 32, 4  # waiting renders that a policy chooses from: at least, and for each worker
REACH = 512  # how far down to look for renders of the buckets that this worker runs
CAREFUL_LOOK = 64  # waiting renders whose deadlines a newcomer must not spoil
TIDIED = 50  # entries of a lane that are checked at a time


def look_ahead(workers: int) -> int:
    """How many waiting renders one of so many workers chooses from: an urgent one may stand behind many."""
    return min(REACH, max(LOOK_AHEAD, LOOK_OF_ONE * workers))


@dataclass(frozen=True, slots=True)
class Room:
    """How many renders may be unfinished at once: of all owners together, and of one."""

    total: int
    owner: int


@dataclass(frozen=True, slots=True)
class Ahead:
    """The queue as a newcomer meets it. Units: seconds of one device at full batches.

    own: how many of the unfinished are the newcomer's owner's; before: how many of the queue go before the newcomer.
    waiting: the first renders of the queue, in its order.
    running: what is left of those that run; running_rows: all their network rows.
    """

    unfinished: int
    own: int
    before: int
    running: tuple[Claim, ...]
    running_rows: int
    waiting: tuple[Claim, ...]

    @property
    def running_s(self) -> float:
        return sum(claim.work_s for claim in self.running)

    def work_before_s(self) -> float:
        """Of those that go before; beyond those that were looked at by their mean."""
        seen = self.waiting[: self.before]
        seen_s = sum(claim.work_s for claim in seen)
        return seen_s * self.before / len(seen) if seen else 0.0


class Lanes(Reader):
    """All lanes of some buckets, read in the order of the queue.

    styles: spelled as core.recipe does; a worker that names them is for renders of exactly these.
    model: the one of the worker, which is for renders that ask for it; None for any.
    """

    def __init__(
        self,
        client: redis.Redis,
        buckets: Sequence[str | Bucket],
        consumer: str,
        styles: str | None = None,
        model: str | None = None,
    ) -> None:
        lanes = [lane_name(STANDARD, bucket) for bucket in buckets]
        super().__init__(client, lanes, FINAL_GROUP, consumer, model, styles)
        self._buckets = [str(bucket) for bucket in buckets]
        self._look = client.register_script(queue_scripts.LOOK)
        self._take = client.register_script(queue_scripts.TAKE)
        self._hand_back = client.register_script(queue_scripts.HAND_BACK)
        self._tidy = client.register_script(queue_scripts.TIDY)
        self._known: dict[str, Task | None] = {}  # of the ids seen last; None for one that is not for this worker

    def peek(self, count: int = LOOK_AHEAD) -> list[Task]:
        """Who is next, without taking anything; renders that this worker cannot run are passed over.

        What is known of a waiting render is asked for once, so that a look costs the same however often it is taken.
        """
        found: list[Task] = []
        known: dict[str, Task | None] = {}
        for start in range(0, REACH, count):
            names = cast(list[bytes], self._client.zrange(keys.QUEUE, start, start + count - 1))
            ids = [name.decode() for name in names]
            known |= self._tasks(ids)
            found += [task for render_id in ids if (task := known[render_id]) is not None]
            if len(found) >= count or len(ids) < count:
                break
        self._known = known
        return found[:count]

    def _tasks(self, ids: Sequence[str]) -> dict[str, Task | None]:
        unknown = [render_id for render_id in ids if render_id not in self._known]
        rows = self._look(args=unknown) if unknown else []
        seen = {render_id: self._task(render_id, row) for render_id, row in zip(unknown, rows, strict=True)}
        return {render_id: seen[render_id] if render_id in seen else self._known[render_id] for render_id in ids}

    def _task(self, render_id: str, row: Sequence[bytes | None]) -> Task | None:
        """None for a render that is gone, or not for this worker."""
        model, bucket, styles, *numbers = ("null" if text is None else text.decode() for text in row)
        fits = bucket in self._buckets and self._model in (None, model)
        mine = fits and self._styles in (None, styles)
        return _task(render_id, bucket, styles, numbers) if mine else None

    def take(self, render_ids: Sequence[str]) -> list[Entry]:
        """Those of them that still wait; they are ours now, in this order."""
        if not render_ids:
            return []
        found = self._take(args=[self._group, self._consumer, *render_ids])
        rows = [[text.decode() for text in row] for row in found]
        return [Entry(stream, entry_id, render_id, int(attempt)) for stream, entry_id, render_id, attempt in rows]

    def hand_back(self, attempts: Mapping[str, int]) -> list[str]:
        """Gives up renders that we hold, by id and attempt: they wait again where they waited, at no attempt's cost.

        Returns those that were ours to give.
        """
        if not attempts:
            return []
        pairs = [text for render_id, attempt in attempts.items() for text in (render_id, attempt)]
        return [found.decode() for found in self._hand_back(args=[self._group, self._consumer, *pairs])]

    def tidy(self, every_s: float = 0.0) -> int:
        """Drops entries that belong to no render, once in every_s for all workers; returns how many.

        Looks at the next few of each lane, so that a call costs the same however many wait.
        """
        total = 0
        asked = (self._group, TIDIED, int(1000 * every_s))
        for lane, dropped in zip(self._streams, self._tidy(keys=self._streams, args=asked), strict=True):
            total += len(dropped)
            for entry_id in dropped:
                log.warning("dropped entry %s of %s: it belongs to no render", entry_id.decode(), lane)
        return total


class Backlog:
    """What stands before a newcomer, at the same cost however many wait."""

    def __init__(self, client: redis.Redis) -> None:
        self._ahead = client.register_script(queue_scripts.AHEAD)

    def ahead_of(self, owner: str, look: int = CAREFUL_LOOK) -> Ahead:
        unfinished, own, before, waiting, its_claims, running, steps, their_claims = self._ahead(args=[owner, look])
        at_work = [found for found in zip(running, their_claims, steps, strict=True) if found[1] is not None]
        return Ahead(
            unfinished=int(unfinished),
            own=int(own),
            before=int(before),
            running=tuple(_claim(render_id, text, int(step)) for render_id, text, step in at_work),
            running_rows=sum(json.loads(text)[-1] or 1 for _, text, _ in at_work),
            waiting=tuple(_claim(r, text) for r, text in zip(waiting, its_claims, strict=True) if text is not None),
        )


def _claim(render_id: bytes, text: bytes, step: int = 0) -> Claim:
    """What its time alone has beyond its share of full batches is taken off the deadline, as far as it is to come."""
    work_s, steps, created_s, limit_s, gpu_s, _ = json.loads(text)
    left = max(0.0, 1 - step / steps) if steps else 0.0
    due_s = NO_DEADLINE if limit_s is None else created_s + limit_s - left * max(0.0, (gpu_s or 0.0) - work_s)
    return claim_of(render_id.decode(), left * work_s, created_s, due_s)


def _task(render_id: str, bucket: str, styles: str, numbers: Sequence[str]) -> Task:
    rows, steps, images, created_s, limit_s = (json.loads(text) for text in numbers)
    return Task(
        id=render_id,
        bucket=bucket,
        rows=int(rows or 1),
        steps=int(steps),
        images=int(images),
        arrived_s=float(created_s),
        due_s=NO_DEADLINE if limit_s is None else float(created_s) + float(limit_s),
        styles=styles,
    )
