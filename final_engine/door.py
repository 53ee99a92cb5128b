"""What a render is promised: when it would be done, and whether that keeps every deadline. No torch, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, replace

from core.cost import CostTable
from core.profile import Bucket, ModelProfile
from core.recipe import Recipe
from core.scheduler import NO_DEADLINE, Claim, best_order, claim_of, done_at_s, late_in
from shared_cache.queue import Ahead

NEWCOMER = ""  # no render has this id


@dataclass(frozen=True, slots=True)
class RenderWish:
    """A render as asked for, before it is admitted. Units: deadline_s in seconds from now."""

    recipe: Recipe
    n: int = 1
    preview_id: str | None = None
    deadline_s: float | None = None

    @property
    def rows(self) -> int:
        """Network rows of one of its steps."""
        return self.n * (2 if self.recipe.guidance_scale > 1 else 1)


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

    def __init__(self, table: CostTable, ahead: Ahead, workers: int, max_rows: int, now_s: float) -> None:
        self._table = table
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
        """In its fair place if that keeps every deadline, else in the order of deadlines if that does."""
        steps = wish.recipe.steps
        gpu_s = self._table.request_s(str(bucket), steps, wish.rows, wish.n)
        stretched_s = (self._table.stretch - 1) * steps * self._table.step_s(str(bucket), wish.rows)
        work_s = self._table.work_s(str(bucket), steps, wish.rows, self._max_rows)
        total_s, kept = self._placed(wish, gpu_s + stretched_s, work_s)
        return Promise(total_s, gpu_s, work_s, kept)

    def nearest_fit(self, wish: RenderWish, profile: ModelProfile) -> dict[str, int] | None:
        """The nearest recipe whose deadline can be met: a smaller size at all its steps, else fewer steps."""
        recipe = wish.recipe
        bucket = profile.nearest_bucket(recipe.width, recipe.height)
        smaller = [b for b in profile.buckets if b.width * b.height < bucket.width * bucket.height]
        for other in sorted(smaller, key=lambda b: -b.width * b.height):
            if self.promise(wish, other).kept:
                return {"width": other.width, "height": other.height}
        fits = 0
        low, high = 1, recipe.steps - 1
        while low <= high:  # fewer steps never fit worse
            middle = (low + high) // 2
            if self.promise(replace(wish, recipe=replace(recipe, steps=middle)), bucket).kept:
                fits, low = middle, middle + 1
            else:
                high = middle - 1
        return {"steps": fits} if fits else None

    def _placed(self, wish: RenderWish, own_s: float, work_s: float) -> tuple[float, bool]:
        due_s = NO_DEADLINE if wish.deadline_s is None else self._now_s + wish.deadline_s
        total_s = self.waits_s + own_s
        if due_s == NO_DEADLINE:
            return total_s, True
        if not self.ahead.waiting:
            return total_s, self._now_s + total_s <= due_s
        newcomer = claim_of(NEWCOMER, work_s, self._now_s, due_s - (own_s - work_s))
        with_it = [*self.ahead.waiting[: self.ahead.before], newcomer, *self.ahead.waiting[self.ahead.before :]]
        order = best_order(with_it, self._start_s, self._workers)
        unavoidable = self._late(best_order(self.ahead.waiting, self._start_s, self._workers))
        if order == with_it:
            return total_s, self._now_s + total_s <= due_s and self._late(order) <= unavoidable
        done_s = done_at_s(order, self._start_s, self._workers)[NEWCOMER] + own_s - work_s
        return done_s - self._now_s, self._late(order) <= unavoidable

    @property
    def _start_s(self) -> float:
        return self._now_s + self._frees_s(0)

    def _idle(self, before: int) -> bool:
        return self.ahead.running + before < self._workers

    def _frees_s(self, before: int) -> float:
        """Until a worker is free for one with so many before it.

        Of workers with amounts left spread evenly up to twice their mean, the k-th is free after 2k / (workers + 1)
        means; behind half of them, all that is left counts.
        """
        if self._idle(before):
            return 0.0
        mean_s = self._table.stretch * self.ahead.running_s / self._workers
        return mean_s * min(1.0, 2 * (before + 1) / (self._workers + 1))

    def _late(self, order: list[Claim]) -> set[str]:
        return late_in(order, self._start_s, self._workers)
