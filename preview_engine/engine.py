"""The preview engine: newest request of each session, batched by step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import time

from core.profile import ModelProfile
from core.wire import PreviewRequest, pack_frame
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
    """One request on its way; row is None while its prompt is being encoded."""

    request: PreviewRequest
    taken_s: float
    row: Row | None = None
    encode_s: float = 0.0
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
        clock: Callable[[], float] = time,
    ) -> None:
        self._loop = loop
        self._encode = encode
        self._mailbox = mailbox
        self._replies = replies
        self._outbox = outbox
        self._profile = profile
        self._max_rows = max_rows
        self._clock = clock
        self._work: dict[str, Work] = {}  # by session
        self._held: dict[str, PreviewRequest] = {}  # newest request of a session whose row is still running
        self._step_s = FIRST_GUESS_STEP_S
        self.steps_run = 0
        self.steps_wasted = 0

    def tick(self) -> bool:
        """One step of the preview pool; False when there was nothing to step."""
        self._drain()
        self._admit()
        report = self._loop.step()
        if report.batch_size == 0:
            return False
        self._retire(report)
        return True

    def _drain(self) -> None:
        """Sessions that closed leave; newer requests replace older ones or wait behind a row that is nearly done."""
        for request in self._mailbox.take(self._max_rows):
            self._held[request.session] = request
        for session in self._mailbox.closed([*self._work, *self._held]):
            self._held.pop(session, None)
            if session in self._work:
                self._drop(session)
        for session in [s for s in self._held if s in self._work]:
            row = self._work[session].row
            if row is None or superseded(row.step_index, row.steps, self._step_s):
                self._drop(session)

    def _admit(self) -> None:
        for session in [s for s in self._held if s not in self._work]:
            if len(self._work) >= self._max_rows:
                break
            request = self._held.pop(session)
            self._work[session] = Work(request, taken_s=self._clock())
            self._encode.submit(request.preview_id, request.recipe)
        for encoded in self._encode.ready():
            work = next((w for w in self._work.values() if w.request.preview_id == encoded.tag), None)
            if work is not None:
                self._join(work, encoded)

    def _join(self, work: Work, encoded: Encoded) -> None:
        request, recipe = work.request, work.request.recipe
        if encoded.error is not None or encoded.positive is None:
            self._fail(request, encoded.error)
            return
        work.encode_s = encoded.encode_s
        work.joined_s = self._clock()
        work.row = Row(
            id=request.preview_id,
            bucket=self._profile.nearest_bucket(recipe.width, recipe.height),
            steps=recipe.steps,
            guidance_scale=recipe.guidance_scale,
            sampler=recipe.sampler,
            seed=recipe.seed,
            styles=recipe.styles,
            embedding=encoded.positive,
            negative=encoded.negative,
        )
        self._loop.join(work.row)

    def _retire(self, report: StepReport) -> None:
        self._step_s += 0.2 * (report.seconds - self._step_s)
        self.steps_run += report.batch_size
        by_row = {w.request.preview_id: w for w in self._work.values()}
        for row in report.finished:
            work = by_row[row.id]
            del self._work[work.request.session]
            times = {
                "queue": work.taken_s - work.request.sent_s,
                "encode": work.encode_s,
                "denoise": self._clock() - work.joined_s,
            }
            self._outbox.put(Finished(work.request, row.latents, row.embedding.token_count, times))
        for row, error in report.failed:
            self._fail(by_row[row.id].request, error)

    def _drop(self, session: str) -> None:
        work = self._work.pop(session)
        if work.row is not None:
            self.steps_wasted += work.row.step_index
            self._loop.leave(work.row.id)

    def _fail(self, request: PreviewRequest, error: Exception | None) -> None:
        log.error("preview %s failed: %s", request.preview_id, error, exc_info=error)
        self._work.pop(request.session, None)
        self._replies.push(request.reply_to, pack_frame(failure_header(request, error)))


def failure_header(request: PreviewRequest, error: Exception | None) -> dict[str, object]:
    body = {"code": getattr(error, "code", "failed"), "message": "the preview could not be made; type on to try again"}
    return {"session": request.session, "rev": request.rev, "preview_id": request.preview_id, "error": body}
