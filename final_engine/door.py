"""What a render is promised: when it would be done, and whether that keeps every deadline. No torch, no I/O."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from core.cost import CostTable
from core.profile import Bucket, Pool
from core.recipe import Recipe
from core.scheduler import by_deadline, claim_of, done_at_s, late_in
from shared_cache.queue import Ahead

NEWCOMER = ""  # no render has this id
CLEARLY_SMALLER = 0.8  # of the area: what another shape of the same area saves is nothing to offer
LEAST_STEPS = 4  # of the steps asked for, one in so many


@dataclass(frozen=True, slots=True)
class RenderWish:
    """A render as asked for, before it is admitted. Units: deadline_s in seconds from now."""

    recipe: Recipe
    n: int = 1
    preview_id: str | None = None
    deadline_s: float | None = None

    def rows(self, pool: Pool) -> int:
        """Network rows of one of its steps in the pool that paints it."""
        return self.n * pool.network_rows(self.recipe.guidance_scale)


@dataclass(frozen=True, slots=True)
class Promise:
    """total_s until done; gpu_s of the device when it runs alone; work_s of the device at full batches.

    kept: whether it is in time and makes nobody late who would not be late without it.
    """

    total_s: float
    gpu_s: float
    work_s: float
    kept: bool


class Door:
    """One look at the queue and the costs. Units: now_s on the clock of the records' created_s."""

    def __init__(self, table: CostTable, ahead: Ahead, workers: int, max_rows: int, now_s: float, pool: Pool) -> None:
        self._table = table
        self._pool = pool
        self.ahead = ahead
        self._workers = max(1, workers)
        self._max_rows = max_rows
        self._now_s = now_s

    @property
    def waits_s(self) -> float:
        """Until what runs and what goes before a newcomer is done."""
        if self._idle(self.ahead.before):
            return 0.0
        return self._frees_s(self.ahead.before) + self._table.stretch * self.ahead.work_before_s() / self._workers

    def promise(self, wish: RenderWish, bucket: Bucket) -> Promise:
        """In its fair place if that is soon enough, else as soon as it can be without making others late."""
        gpu_s = self._table.request_s(str(bucket), wish.recipe.steps, wish.rows(self._pool), wish.n)
        work_s = self._table.work_s(str(bucket), wish.recipe.steps, wish.rows(self._pool), self._max_rows)
        fair_s = self.waits_s + gpu_s + self._slower_s(wish, bucket, 0)
        if wish.deadline_s is None:
            return Promise(fair_s, gpu_s, work_s, kept=True)
        soonest_s = self._alone_or_joined_s(wish, bucket, gpu_s)
        room_s = self._room_s(wish.deadline_s, gpu_s, work_s) if soonest_s <= wish.deadline_s else None
        kept = room_s is not None
        urgent_s = fair_s if room_s is None else max(soonest_s, room_s)
        return Promise(fair_s if fair_s <= wish.deadline_s else urgent_s, gpu_s, work_s, kept)

    def nearest_fit(self, wish: RenderWish) -> dict[str, int] | None:
        """The nearest recipe whose deadline can be met: a clearly smaller size at all its steps, else fewer steps.

        Nearest in shape, then the largest. Never below a quarter of the steps, which is another picture.
        """
        recipe = wish.recipe
        bucket = self._pool.nearest_bucket(recipe.width, recipe.height)
        smaller = [b for b in self._pool.buckets if b.area <= CLEARLY_SMALLER * bucket.area]
        for other in sorted(smaller, key=lambda b: (b.unlikeness(recipe.width, recipe.height), -b.area)):
            if self.promise(wish, other).kept:
                return {"width": other.width, "height": other.height}
        fits = 0
        low, high = math.ceil(recipe.steps / LEAST_STEPS), recipe.steps - 1
        while low <= high:  # fewer steps never fit worse
            middle = (low + high) // 2
            if self.promise(replace(wish, recipe=replace(recipe, steps=middle)), bucket).kept:
                fits, low = middle, middle + 1
            else:
                high = middle - 1
        return {"steps": fits} if fits else None

    def _alone_or_joined_s(self, wish: RenderWish, bucket: Bucket, gpu_s: float) -> float:
        """Until it is done if it goes first: it joins what runs, or begins as soon as a worker is free."""
        after_s = self._frees_s(0) + gpu_s + self._slower_s(wish, bucket, 0)
        rows = math.ceil(self.ahead.running_rows / self._workers)
        if self._idle(0) or rows + wish.rows(self._pool) > self._max_rows:
            return after_s
        return min(after_s, gpu_s + self._slower_s(wish, bucket, rows))

    def _slower_s(self, wish: RenderWish, bucket: Bucket, rows: int) -> float:
        """What it takes beyond its time alone on a device that it shares with previews, and with so many rows."""
        alone_s = self._table.step_s(str(bucket), wish.rows(self._pool))
        return wish.recipe.steps * (
            self._table.stretch * self._table.step_s(str(bucket), wish.rows(self._pool) + rows) - alone_s
        )

    def _room_s(self, deadline_s: float, gpu_s: float, work_s: float) -> float | None:
        """Until it is done if all that runs and waits makes room for it, in the order of deadlines at a cautious pace.

        None where that makes it late, or another that would be in time without it.
        """
        if self._idle(len(self.ahead.waiting)):
            return gpu_s
        pace = self._workers / (self._table.stretch * self._table.caution)
        asked = [*self.ahead.running, *self.ahead.waiting]
        others = by_deadline(c for c in asked if self._now_s + c.work_s <= c.due_s)  # the rest is lost anyhow
        beyond_s = max(0.0, gpu_s - work_s)
        newcomer = claim_of(NEWCOMER, work_s, self._now_s, self._now_s + deadline_s - beyond_s)
        order = by_deadline([*others, newcomer])
        unavoidable = late_in(others, self._now_s, pace)
        if not late_in(order, self._now_s, pace) <= unavoidable:
            return None
        return done_at_s(order, self._now_s, pace)[NEWCOMER] - self._now_s + beyond_s

    def _idle(self, before: int) -> bool:
        return len(self.ahead.running) + before < self._workers

    def _frees_s(self, before: int) -> float:
        """Until a worker is free for one with so many before it.

        Of workers with amounts left spread evenly up to twice their mean, the k-th is free after 2k / (workers + 1)
        means; behind half of them, all that is left counts.
        """
        if self._idle(before):
            return 0.0
        mean_s = self._table.stretch * self.ahead.running_s / self._workers
        return mean_s * min(1.0, 2 * (before + 1) / (self._workers + 1))
