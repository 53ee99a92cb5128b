"""The finish stage: check every picture, measure the hand-off, publish. No torch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from time import perf_counter, time

from core.cost import Part
from core.metrics import Metrics
from core.render import State
from final_engine.keys import image_object, preview_object
from final_engine.similarity import similarity
from sampling.picture import Pixels, fit, from_bytes, to_png
from sampling.safety import ImageClassifier
from shared_cache.costs import LiveCosts
from shared_cache.lanes import Entry
from shared_cache.latents import Latents, unpack
from shared_cache.objects import Objects
from shared_cache.previews import Previews
from shared_cache.renders import Record, Renders

WITHHELD = {"code": "withheld", "message": "the picture was withheld by the safety check; change the text or the seed"}


class FinishWork:
    def __init__(
        self,
        *,
        classifier: ImageClassifier,
        renders: Renders,
        latents: Latents,
        kept: Previews,
        objects: Objects,
        costs: LiveCosts,
        metrics: Metrics,
        clock: Callable[[], float] = time,
    ) -> None:
        self._classifier = classifier
        self._renders = renders
        self._latents = latents
        self._objects = objects
        self._kept = kept
        self._costs = costs
        self._metrics = metrics
        self._clock = clock

    def __call__(self, entry: Entry, record: Record) -> None:
        """The same call again does the same, so an outage of the object store may be waited out.

        Raises: LookupError when the pixels are gone, Unavailable when the object store cannot be reached.
        """
        started_s = perf_counter()
        stored = self._latents.get_bytes(record.id)
        if stored is None:
            raise LookupError("the pixels were gone before they could be published; render it again")
        pictures = unpack(stored)["pixels"]
        allowed = all(self._classifier.allows(picture) for picture in pictures)
        safety_s = perf_counter() - started_s
        if not allowed:
            if self._renders.finish(record.id, record.attempt, State.BLOCKED, error=WITHHELD):
                self._metrics.ended(State.BLOCKED)
        else:
            recipe = record.recipe
            fitted = [fit(picture, recipe.width, recipe.height) for picture in pictures]
            self._publish(record, fitted, safety_s)

    def _publish(self, record: Record, pictures: list[Pixels], safety_s: float) -> None:
        started_s = perf_counter()
        with ThreadPoolExecutor(len(pictures) + 1, "publish") as pool:  # a store far away answers all at once
            followed = pool.submit(self._follows, record, pictures[0])
            images = list(pool.map(self._put, repeat(record), range(len(pictures)), pictures))
        handoff = {**record.handoff, "similarity": followed.result()}
        publish_s = perf_counter() - started_s
        timings_ms = {
            "safety": round(1000 * safety_s, 1),
            "publish": round(1000 * publish_s, 1),
            "gpu": round(_before_ms(record) + 1000 * (safety_s + publish_s), 1),
            "total": round(1000 * (self._clock() - record.created_s), 1),
        }
        if self._renders.finish(
            record.id, record.attempt, State.DONE, images=images, handoff=handoff, timings_ms=timings_ms
        ):
            self._measure(record, {**record.timings_ms, **timings_ms})
        self._costs.observe(Part.SAFETY, safety_s / record.n)
        self._costs.observe(Part.PUBLISH, publish_s / record.n)

    def _measure(self, record: Record, timings_ms: dict[str, float]) -> None:
        """All that is known of a render that is done, whichever processes worked on it."""
        metrics, total_s = self._metrics, timings_ms["total"] / 1000
        metrics.ended(State.DONE)
        metrics.answered("final", total_s)
        metrics.predicted("total", record.predicted_s, total_s)
        if all(size == record.n for size in record.batch_sizes):  # what is predicted is a device of its own
            metrics.predicted("gpu", record.predicted_gpu_s, timings_ms["gpu"] / 1000)
        if record.deadline_s is not None and total_s > record.deadline_s:
            metrics.missed_deadline(record.steps * record.n)
        for stage, ms in timings_ms.items():
            if stage not in ("total", "gpu"):  # sums of the others
                metrics.stage("final", stage, ms / 1000)

    def _put(self, record: Record, index: int, picture: Pixels) -> dict[str, object]:
        recipe = record.recipe.with_seed(record.recipe.seed + index)
        png = to_png(picture, recipe)
        key = image_object(record.id, index)
        self._objects.put(key, png, "image/png")
        return {
            "key": key,
            "sha256": hashlib.sha256(png).hexdigest(),
            "seed": recipe.seed,
            "width": recipe.width,
            "height": recipe.height,
        }

    def _follows(self, record: Record, picture: Pixels) -> float | None:
        """Similarity to the accepted preview, which is published beside the picture; None without a preview."""
        stored = self._kept.get(record.id) if record.preview_id else None
        if stored is None:
            return None
        self._objects.put(preview_object(record.id), stored.jpeg, "image/jpeg")
        return round(similarity(from_bytes(stored.jpeg), picture), 4)


def _before_ms(record: Record) -> float:
    """What the render took of encoder, network and decoder."""
    return sum(record.timings_ms.get(name, 0.0) for name in ("encode", "steps", "decode"))
