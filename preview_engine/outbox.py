"""From finished latents to a frame on its way to the browser: decode, check, fit, JPEG, reply."""

from __future__ import annotations

import logging
import queue
import threading
from dataclasses import dataclass, field
from time import perf_counter, time

import torch

from core.wire import PreviewRequest, pack_frame
from sampling.decode import Decoder
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
    token_count: int
    times: dict[str, float] = field(default_factory=dict)


class Outbox:
    """One thread; of several waiting previews of a session only the newest is decoded."""

    def __init__(
        self, *, decoder: Decoder, classifier: ImageClassifier, previews: Previews, replies: Replies, max_batch: int = 8
    ) -> None:
        self._decoder = decoder
        self._classifier = classifier
        self._previews = previews
        self._replies = replies
        self._max_batch = max_batch
        self._queue: queue.SimpleQueue[Finished | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="preview-outbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, finished: Finished) -> None:
        self._queue.put(finished)

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            waiting, closing = [first], False
            while not self._queue.empty() and len(waiting) < self._max_batch:
                item = self._queue.get()
                closing = item is None
                if item is None:
                    break
                waiting.append(item)
            self._publish(newest_of_each_session(waiting))
            if closing:
                return

    def _publish(self, batch: list[Finished]) -> None:
        groups: dict[tuple[int, ...], list[Finished]] = {}
        for finished in batch:
            groups.setdefault(tuple(finished.latents.shape), []).append(finished)
        for group in groups.values():
            try:
                self._publish_group(group)
            except Exception as error:  # a batch fails, the thread goes on
                log.exception("previews failed after denoising")
                for finished in group:
                    self._reply(finished, {"error": {"code": getattr(error, "code", "failed"), "message": str(error)}})

    def _publish_group(self, group: list[Finished]) -> None:
        started_s = perf_counter()
        pictures = self._decoder.decode(torch.stack([finished.latents for finished in group]))
        decode_s = perf_counter() - started_s
        for finished, picture in zip(group, pictures, strict=True):
            self._publish_one(finished, picture, {**finished.times, "decode": decode_s})

    def _publish_one(self, finished: Finished, picture: Pixels, times: dict[str, float]) -> None:
        started_s = perf_counter()
        allowed = self._classifier.allows(picture)
        times["safety"] = perf_counter() - started_s
        if not allowed:
            self._reply(finished, {"blocked": WITHHELD})
            return
        request, recipe = finished.request, finished.request.recipe
        jpeg = to_jpeg(fit(picture, recipe.width, recipe.height))
        times["encode_jpeg"] = perf_counter() - started_s - times["safety"]
        stored = StoredPreview(request.owner, recipe, pack({"latents": finished.latents.numpy()}), jpeg)
        self._previews.put(request.preview_id, stored)
        times["total"] = time() - request.sent_s
        self._reply(
            finished,
            {
                "seed": recipe.seed,
                "steps": recipe.steps,
                "width": recipe.width,
                "height": recipe.height,
                "format": "jpeg",
                "tokens": finished.token_count,
                "timings_ms": {name: round(1000 * seconds, 1) for name, seconds in times.items()},
            },
            jpeg,
        )

    def _reply(self, finished: Finished, body: dict[str, object], payload: bytes = b"") -> None:
        request = finished.request
        header = {"session": request.session, "rev": request.rev, "preview_id": request.preview_id, **body}
        self._replies.push(request.reply_to, pack_frame(header, payload))


def newest_of_each_session(waiting: list[Finished]) -> list[Finished]:
    newest: dict[str, Finished] = {}
    for finished in waiting:
        known = newest.get(finished.request.session)
        if known is None or finished.request.rev >= known.request.rev:
            newest[finished.request.session] = finished
    return list(newest.values())
