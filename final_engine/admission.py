"""Admission: check, predict, and write the render into its lane, or say why not. No torch."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from statistics import fmean
from time import time

from core.errors import InvalidInput, Overloaded, OverQuota
from core.profile import Bucket, ModelProfile
from core.prompt_rules import check_prompt
from core.recipe import Handoff
from core.render import State
from core.validate import check_int, check_recipe
from final_engine.door import Door, Promise, RenderWish
from shared_cache.costs import Costs
from shared_cache.lanes import STANDARD, lane_name
from shared_cache.previews import Previews, StoredPreview
from shared_cache.queue import Ahead, Backlog, Room
from shared_cache.renders import Record, Renders

MIN_RETRY_S = 1.0
NOBODY = "no worker is ready to paint, so no deadline can be promised; leave deadline_s out to wait for one"
NOBODY_RETRY_S = 5.0  # a worker that restarts is back in some seconds
UNKNOWN_RETRY_S = 30.0  # where nobody works on what waits


class Admission:
    """The one door into the lanes."""

    def __init__(
        self,
        *,
        renders: Renders,
        previews: Previews,
        kept: Previews,
        costs: Costs,
        profile: ModelProfile,
        style_ids: Collection[str],
        room: Room,
        max_rows: int,
        backlog: Backlog,
        workers: Callable[[], int],
        clock: Callable[[], float] = time,
    ) -> None:
        self._renders = renders
        self._previews = previews
        self._kept = kept
        self._costs = costs
        self._profile = profile
        self._style_ids = style_ids
        self._room = room
        self._max_rows = max_rows
        self._backlog = backlog
        self._workers = workers
        self._clock = clock

    def check_preview(self, owner: str, preview_id: str) -> StoredPreview:
        """Raises: InvalidInput when the preview is unknown, another owner's, or older than an hour."""
        stored = self._previews.get(preview_id)
        if stored is None or stored.owner != owner:
            raise InvalidInput("preview_id", "no such preview; it may be older than an hour, so preview the text again")
        return stored

    def submit(self, owner: str, wish: RenderWish, idempotency: tuple[str, str] | None = None) -> Record:
        """The queued record, or the earlier one of the same Idempotency-Key.

        Raises: InvalidInput, BlockedPrompt, Conflict (key used for another body), OverQuota (too many of this owner's),
        Overloaded (no room, or the deadline cannot be met or nobody is there to meet it).
        """
        recipe = wish.recipe
        check_recipe(recipe, self._profile, self._style_ids, "final")
        check_int(wish.n, "n", 1, self._profile.limits.max_images)
        check_prompt(recipe.prompt)
        if idempotency is not None and (earlier := self._renders.find(owner, idempotency)) is not None:
            return earlier
        stored = self.check_preview(owner, wish.preview_id) if wish.preview_id else None
        if stored is None and recipe.handoff is not Handoff.FRESH:
            raise InvalidInput("handoff", f"{recipe.handoff.value} follows a preview; give preview_id or choose fresh")
        bucket = self._profile.final.nearest_bucket(recipe.width, recipe.height)
        promise = self._promise(owner, wish, bucket)
        record = Record(
            id=secrets.token_hex(12),
            owner=owner,
            state=State.QUEUED,
            recipe=recipe,
            bucket=str(bucket),
            n=wish.n,
            preview_id=wish.preview_id,
            attempt=0,
            created_s=self._clock(),
            step=0,
            steps=recipe.steps,
            predicted_s=promise.total_s,
            predicted_gpu_s=promise.gpu_s,
            rows=wish.rows(self._profile.final),
            work_s=promise.work_s,
            handoff={"mode": recipe.handoff.value, "similarity": None},
            deadline_s=wish.deadline_s,
        )
        if stored is not None:
            self._kept.put(record.id, stored)
        return self._renders.create(record, lane_name(STANDARD, record.bucket), idempotency, self._room)

    def _promise(self, owner: str, wish: RenderWish, bucket: Bucket) -> Promise:
        """Raises: OverQuota; Overloaded when there is no room, or a deadline would not be kept."""
        table, workers = self._costs.load(), self._workers()
        ahead = self._backlog.ahead_of(owner)
        door = Door(table, ahead, workers, self._max_rows, self._clock(), self._profile.final)
        promise = door.promise(wish, bucket)
        lack = self._lack(ahead)
        if lack is not None:
            kind, why = lack
            raise kind(why, retry_after_s=_place_in_s(ahead, workers, table.stretch), predicted_s=promise.total_s)
        if wish.deadline_s is not None and workers == 0:
            raise Overloaded(NOBODY, retry_after_s=NOBODY_RETRY_S, predicted_s=promise.total_s)
        if wish.deadline_s is not None and not promise.kept:
            fits = door.nearest_fit(wish)
            hint = "" if fits is None else "; this would fit: " + ", ".join(f"{n} {v}" for n, v in fits.items())
            raise Overloaded(
                _why_refused(promise, wish.deadline_s) + hint,
                retry_after_s=max(MIN_RETRY_S, promise.total_s - wish.deadline_s),
                predicted_s=promise.total_s,
                fits=fits,
            )
        return promise

    def _lack(self, ahead: Ahead) -> tuple[type[Overloaded], str] | None:
        """Of what there is no more room, and the sentence about it; None where there is."""
        if ahead.own >= self._room.owner:
            return OverQuota, f"{ahead.own} of yours wait already, which is all that one may have; cancel some or wait"
        if ahead.unfinished >= self._room.total:
            return Overloaded, f"{ahead.unfinished} renders wait already, which is all there is room for"
        return None


def _why_refused(promise: Promise, deadline_s: float) -> str:
    if promise.gpu_s > deadline_s:
        return f"deadline_s {deadline_s:g} is shorter than the work itself, {promise.gpu_s:.2f} s; waiting is no help"
    if promise.total_s > deadline_s:
        return f"would be done in {promise.total_s:.1f} s, later than deadline_s {deadline_s:g}"
    return "would make renders late that were promised"


def _place_in_s(ahead: Ahead, workers: int, stretch: float) -> float:
    """Until one of them is likely done, and leaves its place."""
    works_s = [claim.work_s for claim in (*ahead.running, *ahead.waiting)]
    if workers == 0 or not works_s:
        return UNKNOWN_RETRY_S
    return max(MIN_RETRY_S, stretch * fmean(works_s) / workers)
