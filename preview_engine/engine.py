"""The preview engine: newest request of each session, batched by step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import time

from core.errors import InvalidInput
from core.metrics import Metrics
from core.profile import ModelProfile
from core.wire import PreviewRequest
from preview_engine.failures import failure_frame
from preview_engine.outbox import Finished, Outbox
from preview_engine.policy import superseded
from sampling.encode_stage import Encoded, EncodeStage
from sampling.loop import StepLoop, StepReport
from sampling.rows import Row
from shared_cache.mailbox import Mailbox, Replies

log = logging.getLogger(__name__)
FIRST_GUESS_STEP_S = 0.05


@dataclass(slots=True)
class Work:
    """One request on its way; encoded is None while its prompt is being encoded, row while it waits for its turn."""

    request: PreviewRequest
    encoded: Encoded | None = None
    row: Row | None = None
    joined_s: float = 0.0


class PreviewEngine:
    """Owned by the device thread. A tick is: drain, admit, step, retire."""

    def __init__(
        self,
        *,
        loop: StepLoop,
        encode: EncodeStage,
        mailbox: Mailbox,
        replies: Replies,
        outbox: Outbox,
        profile: ModelProfile,
        max_rows: int,
        metrics: Metrics,
        clock: Callable[[], float] = time,
    ) -> None:
        self._loop = loop
        self._encode = encode
        self._mailbox = mailbox
        self._replies = replies
        self._outbox = outbox
        self._profile = profile
        self._max_rows = max_rows
        self._metrics = metrics
        self._clock = clock
        self._running: dict[str, Work] = {}  # by session
        self._next: dict[str, Work] = {}  # being encoded, or encoded and waiting for their turn
        self._mail: dict[str, PreviewRequest] = {}  # newer than what is being encoded
        self._step_s = FIRST_GUESS_STEP_S
        self._taking = True

    def tick(self) -> bool:
        """One step of the preview pool; False when there was nothing to step."""
        self._drain()
        self._admit()
        report = self._loop.step()
        if report.batch_size == 0 and not report.failed:
            return False
        self._retire(report)
        return True

    def stop_taking(self) -> None:
        """What waits in the mailbox stays there for others."""
        self._taking = False

    def idle(self) -> bool:
        return not (self._running or self._next or self._mail)

    def hand_back(self) -> None:
        """Puts the newest request of each session back into the mailbox, where nothing newer came."""
        began = {session: work.request for session, work in {**self._running, **self._next}.items()}
        for request in {**began, **self._mail}.values():
            self._metrics.wasted("preview", self._drop(request.session))
            self._mailbox.post(request)
        self._next.clear()
        self._mail.clear()

    def _drain(self) -> None:
        """Sessions that closed leave; newer requests replace waiting ones, one encoding a session at a time.

        An encoding that has begun is never thrown away: where keys come faster than it, nothing would ever be shown.
        """
        for request in self._mailbox.take(self._max_rows) if self._taking else ():
            if request.session in self._mail:
                self._metrics.superseded(0)
            self._mail[request.session] = request
        for session in self._mailbox.closed([*{*self._running, *self._next, *self._mail}]):
            self._next.pop(session, None)
            self._mail.pop(session, None)
            self._metrics.wasted("preview", self._drop(session))
        for session, request in list(self._mail.items()):
            waiting = self._next.get(session)
            if waiting is None or waiting.encoded is not None:
                if waiting is not None:
                    self._metrics.superseded(0)
                del self._mail[session]
                self._next[session] = Work(request)
                self._encode.submit(request.preview_id, request.recipe)

    def _admit(self) -> None:
        """What is encoded joins, in place of its session's row where that is superseded, else after it."""
        by_id = {work.request.preview_id: work for work in self._next.values()}
        for encoded in self._encode.ready():
            if (work := by_id.get(str(encoded.tag))) is not None:
                work.encoded = encoded
        for session, work in list(self._next.items()):
            if work.encoded is None:
                continue
            running = self._running.get(session)
            if running is not None and running.row is not None:
                if not superseded(running.row.step_index, running.row.steps, self._step_s):
                    continue
                self._metrics.superseded(self._drop(session))
            if len(self._running) < self._max_rows:
                del self._next[session]
                self._join(work, work.encoded)

    def _join(self, work: Work, encoded: Encoded) -> None:
        request, recipe = work.request, work.request.recipe
        if encoded.error is not None or encoded.positive is None:
            self._fail(request, encoded.error)
            return
        work.joined_s = self._clock()
        bucket = self._profile.preview.nearest_bucket(recipe.width, recipe.height)
        work.row = Row.of(request.preview_id, recipe, bucket, encoded.positive, encoded.negative)
        self._running[request.session] = work
        self._loop.join(work.row)

    def _retire(self, report: StepReport) -> None:
        if report.bucket is not None:
            self._step_s += 0.2 * (report.seconds - self._step_s)
            self._metrics.stepped("preview", str(report.bucket), report.network_rows, report.batch_size, report.seconds)
        by_row = {work.request.preview_id: work for work in self._running.values()}
        for row in report.finished:
            work = by_row[row.id]
            del self._running[work.request.session]
            self._outbox.put(Finished(work.request, row.latents, row.embedding, self._times(work)))
        for row, error in report.failed:
            del self._running[by_row[row.id].request.session]
            self._fail(by_row[row.id].request, error)

    def _times(self, work: Work) -> dict[str, float]:
        encode_s = work.encoded.encode_s if work.encoded is not None else 0.0
        return {
            "queue": work.joined_s - work.request.sent_s - encode_s,
            "encode": encode_s,
            "denoise": self._clock() - work.joined_s,
        }

    def _drop(self, session: str) -> int:
        """Takes a session's row out of the loop; returns the steps that it had made."""
        work = self._running.pop(session, None)
        if work is None or work.row is None:
            return 0
        self._loop.leave(work.row.id)
        return work.row.step_index

    def _fail(self, request: PreviewRequest, error: Exception | None) -> None:
        ours = None if isinstance(error, InvalidInput) else error  # its sentence says all
        log.error("preview %s failed: %s", request.preview_id, error, exc_info=ours)
        self._metrics.previewed("failed")
        self._replies.push(request.reply_to, failure_frame(request, error))
