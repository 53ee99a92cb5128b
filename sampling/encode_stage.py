"""The encode stage: prompts become embeddings beside the step loop, never on it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter

from core.recipe import Recipe
from sampling.embedding import Embedding
from sampling.encoder import Encoder


@dataclass(frozen=True, slots=True)
class Encoded:
    """Units: encode_s is the time in the encoder, waiting not counted. error is set when encoding failed."""

    tag: Hashable
    positive: Embedding | None
    negative: Embedding | None
    encode_s: float
    error: Exception | None = None


class EncodeStage:
    """One thread that encodes what an engine submits; the engine collects at its next step boundary.

    notify is called when something is ready, so that a device loop that sleeps wakes up.
    """

    def __init__(self, encoder: Encoder, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._encoder = encoder
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="encode")
        self._lock = threading.Lock()
        self._ready: list[Encoded] = []

    def submit(self, tag: Hashable, recipe: Recipe) -> None:
        self._pool.submit(self._encode, tag, recipe).add_done_callback(self._collect)

    def ready(self) -> list[Encoded]:
        """What was encoded since the last call."""
        with self._lock:
            done, self._ready = self._ready, []
        return done

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _encode(self, tag: Hashable, recipe: Recipe) -> Encoded:
        started_s = perf_counter()
        try:
            positive = self._encoder.encode(recipe.prompt, recipe.styles)
            guided = self._encoder.negatives and recipe.guidance_scale > 1
            negative = self._encoder.encode(recipe.negative_prompt, recipe.styles) if guided else None
        except Exception as error:  # the row fails, the stage goes on
            return Encoded(tag, None, None, perf_counter() - started_s, error)
        return Encoded(tag, positive, negative, perf_counter() - started_s)

    def _collect(self, future: Future[Encoded]) -> None:
        if future.cancelled():
            return
        with self._lock:
            self._ready.append(future.result())
        self._notify()
