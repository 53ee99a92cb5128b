"""Admission: check, predict, and write the render into its lane, or say why not. No torch."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import dataclass
from time import time

from core.cost import CostTable
from core.errors import InvalidInput, Overloaded
from core.profile import Bucket, ModelProfile
from core.prompt_rules import check_prompt
from core.recipe import Handoff, Recipe
from core.render import State
from core.validate import check_int, check_recipe
from shared_cache.costs import Costs
from shared_cache.lanes import lane_name
from shared_cache.previews import Previews, StoredPreview
from shared_cache.renders import Record, Renders

PRIORITY = "standard"
MIN_RETRY_S = 1.0


@dataclass(frozen=True, slots=True)
class RenderWish:
    """A render as asked for, before it is admitted. Units: deadline_s in seconds from now."""

    recipe: Recipe
    n: int = 1
    preview_id: str | None = None
    deadline_s: float | None = None
    priority: str = PRIORITY


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
        capacity: int,
        max_rows: int,
        clock: Callable[[], float] = time,
    ) -> None:
        self._renders = renders
        self._previews = previews
        self._kept = kept
        self._costs = costs
        self._profile = profile
        self._style_ids = style_ids
        self._capacity = capacity
        self._max_rows = max_rows
        self._clock = clock

    def check_preview(self, owner: str, preview_id: str) -> StoredPreview:
        """Raises: InvalidInput when the preview is unknown, another owner's, or older than an hour."""
        stored = self._previews.get(preview_id)
        if stored is None or stored.owner != owner:
            raise InvalidInput("preview_id", "no such preview; it may be older than an hour, so preview the text again")
        return stored

    def submit(self, owner: str, wish: RenderWish, idempotency: tuple[str, str] | None = None) -> Record:
        """The queued record, or the earlier one of the same Idempotency-Key.

        Raises: InvalidInput, BlockedPrompt, Conflict (key used for another body), Overloaded (no room, or the deadline
        cannot be met).
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
        bucket = self._profile.nearest_bucket(recipe.width, recipe.height)
        predicted_s = self._predict(wish, bucket)
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
            predicted_s=predicted_s,
            timings_ms={},
            batch_sizes=[],
            handoff={"mode": recipe.handoff.value, "similarity": None},
            images=[],
            error=None,
            deadline_s=wish.deadline_s,
        )
        if stored is not None:
            self._kept.put(record.id, stored)
        return self._renders.create(record, lane_name(wish.priority, record.bucket), idempotency)

    def _predict(self, wish: RenderWish, bucket: Bucket) -> float:
        """Seconds until done: what waits ahead at full batches, then this one. Raises: Overloaded."""
        table = self._costs.load()
        ahead = self._renders.unfinished()
        ahead_s = sum(self._share_s(table, other) for other in ahead)
        rows = network_rows(wish.recipe, wish.n)
        own_s = table.request_s(str(bucket), wish.recipe.steps, rows, wish.n)
        predicted_s = ahead_s + own_s
        if len(ahead) >= self._capacity:
            retry_s = max(MIN_RETRY_S, ahead_s / len(ahead))
            raise Overloaded(
                f"{len(ahead)} renders wait already, which is all there is room for",
                retry_after_s=retry_s,
                predicted_s=predicted_s,
            )
        if wish.deadline_s is not None and predicted_s > wish.deadline_s:
            raise self._too_late(table, wish, bucket, predicted_s, ahead_s)
        return predicted_s

    def _share_s(self, table: CostTable, other: Record) -> float:
        """Seconds of the device that a waiting render takes when batches are full."""
        rows = network_rows(other.recipe, other.n)
        full = max(self._max_rows, rows)
        step_s = table.one_step_s(other.bucket, full) * rows / full
        return (other.recipe.steps - other.step) * step_s

    def _too_late(
        self, table: CostTable, wish: RenderWish, bucket: Bucket, predicted_s: float, ahead_s: float
    ) -> Overloaded:
        assert wish.deadline_s is not None
        rows = network_rows(wish.recipe, wish.n)
        fixed_s = table.request_s(str(bucket), 0, rows, wish.n)
        steps = int((wish.deadline_s - ahead_s - fixed_s) / table.one_step_s(str(bucket), rows))
        fits = {"steps": steps} if steps >= 1 else None
        hint = f"; {steps} steps would fit" if fits else ""
        return Overloaded(
            f"would be done in {predicted_s:.1f} s, later than deadline_s {wish.deadline_s:g}{hint}",
            retry_after_s=max(MIN_RETRY_S, predicted_s - wish.deadline_s),
            predicted_s=predicted_s,
            fits=fits,
        )


def network_rows(recipe: Recipe, n: int) -> int:
    return n * (2 if recipe.guidance_scale > 1 else 1)
