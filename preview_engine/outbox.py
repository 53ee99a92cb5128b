"""From finished latents to a frame on its way to the browser: decode, check, fit, JPEG, reply."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter, time

import redis
import torch

from core.errors import NonFinite
from core.metrics import Metrics
from core.wire import PreviewRequest, pack_frame
from preview_engine.failures import failure_frame
from sampling.decode import Decoder
from sampling.embedding import Embedding
from sampling.picture import Pixels, fit, to_jpeg
from sampling.safety import ImageClassifier
from shared_cache.latents import pack
from shared_cache.mailbox import Replies
from shared_cache.previews import Previews, StoredPreview

log = logging.getLogger(__name__)
WITHHELD = {"code": "withheld", "message": "this picture was withheld by the safety check; change the text or the seed"}


@dataclass(frozen=True, slots=True)
class Finished:
    """Shapes: latents [C,h,w], denoised. Units: times in seconds."""

    request: PreviewRequest
    latents: torch.Tensor
    embedding: Embedding
    times: dict[str, float] = field(default_factory=dict)


class Outbox:
    """One thread; of several waiting previews of a session only the newest is decoded."""

    def __init__(
        self,
        *,
        decoder: Decoder,
        classifier: ImageClassifier,
        previews: Previews,
        replies: Replies,
        metrics: Metrics,
        clock: Callable[[], float] = time,
    ) -> None:
        self._decoder = decoder
        self._classifier = classifier
        self._previews = previews
        self._replies = replies
        self._metrics = metrics
        self._clock = clock
        self._queue: queue.SimpleQueue[Finished | None] = queue.SimpleQueue()
        self._waiting: dict[str, Finished] = {}  # by session, the longest waiting first
        self._thread = threading.Thread(target=self._run, name="preview-outbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, finished: Finished) -> None:
        self._queue.put(finished)

    def close(self) -> None:
        """Publishes what was put before, and ends."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        closing = False
        while self._waiting or not closing:
            while not closing and (not self._waiting or not self._queue.empty()):
                finished = self._queue.get()
                closing = finished is None
                if finished is not None:
                    self._keep(finished)
            if self._waiting:
                self._publish(self._take())

    def _keep(self, finished: Finished) -> None:
        session = finished.request.session
        known = self._waiting.get(session)
        if known is not None:
            older, finished = sorted((known, finished), key=lambda one: one.request.rev)
            self._metrics.superseded(older.request.recipe.steps)
        self._waiting[session] = finished  # in the place of the older one

    def _take(self) -> list[Finished]:
        """The one that waits longest and those that can be decoded with it."""
        shape = next(iter(self._waiting.values())).latents.shape
        alike = [session for session, finished in self._waiting.items() if finished.latents.shape == shape]
        return [self._waiting.pop(session) for session in alike[: self._decoder.max_rows]]

    def _publish(self, group: list[Finished]) -> None:
        """What fails fails alone: a group that cannot be decoded is decoded one by one."""
        try:
            started_s = perf_counter()
            pictures = self._decoder.decode(torch.stack([finished.latents for finished in group]))
            decode_s = perf_counter() - started_s
        except Exception as error:
            if len(group) == 1:
                self._fail(group[0], error)
            else:
                for finished in group:
                    self._publish([finished])
            return
        for finished, picture in zip(group, pictures, strict=True):
            try:
                self._publish_one(finished, picture, {**finished.times, "decode": decode_s})
            except redis.RedisError:  # an outage; the web process asks again where nothing comes
                self._metrics.previewed("failed")
            except Exception as error:  # the thread goes on
                self._fail(finished, error)

    def _fail(self, finished: Finished, error: Exception) -> None:
        request = finished.request
        log.error("preview %s failed after denoising", request.preview_id, exc_info=error)
        self._metrics.previewed("failed")
        told = NonFinite.of(error.message, request.recipe.styles) if isinstance(error, NonFinite) else error
        with suppress(redis.RedisError):  # the web process asks again where nothing comes
            self._replies.push(request.reply_to, failure_frame(request, told))

    def _publish_one(self, finished: Finished, picture: Pixels, times: dict[str, float]) -> None:
        started_s = perf_counter()
        allowed = self._classifier.allows(picture)
        times["safety"] = perf_counter() - started_s
        if not allowed:
            self._reply(finished, {"blocked": WITHHELD})
            self._metrics.previewed("withheld")
            return
        request, recipe = finished.request, finished.request.recipe
        jpeg = to_jpeg(fit(picture, recipe.width, recipe.height))
        times["encode_jpeg"] = perf_counter() - started_s - times["safety"]
        stored = StoredPreview(request.owner, recipe, pack({"latents": finished.latents.cpu().numpy()}), jpeg)
        self._previews.put(request.preview_id, stored)
        times["total"] = self._clock() - request.sent_s
        self._reply(
            finished,
            {
                "seed": recipe.seed,
                "steps": recipe.steps,
                "width": recipe.width,
                "height": recipe.height,
                "format": "jpeg",
                "tokens": finished.embedding.token_count,
                "tokens_unread": finished.embedding.tokens_unread,
                "timings_ms": {name: round(1000 * seconds, 1) for name, seconds in times.items()},
            },
            jpeg,
        )
        self._measure(times)

    def _measure(self, times: dict[str, float]) -> None:
        self._metrics.previewed("shown")
        self._metrics.answered("preview", times["total"])
        for stage, seconds in times.items():
            if stage != "total":
                self._metrics.stage("preview", stage, seconds)

    def _reply(self, finished: Finished, body: dict[str, object], payload: bytes = b"") -> None:
        request = finished.request
        header = {"session": request.session, "rev": request.rev, "preview_id": request.preview_id, **body}
        self._replies.push(request.reply_to, pack_frame(header, payload))
