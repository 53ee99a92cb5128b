"""Glimpses: small pictures of a render on its way, checked like any other picture before they are shown."""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass

import redis
import torch

from core.recipe import Recipe
from sampling.decode import Decoder
from sampling.picture import fit, to_jpeg
from sampling.rows import Row
from sampling.safety import ImageClassifier
from shared_cache.events import Events
from shared_cache.renders import Record

log = logging.getLogger(__name__)
PARTS = 4  # a glimpse after each quarter of the steps but the last


@dataclass(frozen=True, slots=True)
class _Offer:
    render_id: str
    attempt: int
    step: int
    recipe: Recipe
    latents: torch.Tensor


class Glimpses:
    """One thread with room for one waiting offer: when it is busy, a glimpse is skipped, never queued up."""

    def __init__(self, *, decoder: Decoder, classifier: ImageClassifier, events: Events) -> None:
        self._decoder = decoder
        self._classifier = classifier
        self._events = events
        self._queue: queue.Queue[_Offer | None] = queue.Queue(maxsize=1)
        self._thread = threading.Thread(target=self._run, name="glimpses", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def offer(self, record: Record, step: int, row: Row) -> None:
        """Takes the row's current estimate of the picture when a quarter of the steps has just passed."""
        steps = record.recipe.steps
        if steps < PARTS or step >= steps or row.denoised is None or self._queue.full():
            return
        if step * PARTS // steps > (step - 1) * PARTS // steps:
            latents = row.denoised.detach().clone()
            self._queue.put(_Offer(record.id, record.attempt, step, record.recipe, latents))

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (offer := self._queue.get()) is not None:
            try:
                picture = self._decoder.decode(offer.latents[None])[0]
                if self._classifier.allows(picture):
                    jpeg = to_jpeg(fit(picture, offer.recipe.width, offer.recipe.height))
                    self._events.glimpse(offer.render_id, offer.attempt, offer.step, jpeg)
            except redis.RedisError:  # a glimpse is a courtesy; the render goes on without it
                continue
            except Exception:
                log.exception("no glimpse of render %s", offer.render_id)
