"""The final engine: accepted renders from their lanes, batched by step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import time

import torch

from core.cost import CostTable
from core.profile import Bucket
from core.render import State
from final_engine.glimpse import Glimpses
from final_engine.handoff import start_of
from sampling.encode_stage import Encoded, EncodeStage
from sampling.loop import StepLoop, StepReport
from sampling.rows import Row
from shared_cache.costs import Costs
from shared_cache.lanes import Entry, Lanes
from shared_cache.latents import pack, unpack
from shared_cache.previews import Previews
from shared_cache.renders import Record, Renders

log = logging.getLogger(__name__)
COST_SAVE_S = 2.0


@dataclass(slots=True)
class Job:
    """A claimed render. Units: seconds of the wall clock."""

    entry: Entry
    record: Record
    claimed_s: float
    joined_s: float = 0.0
    encode_s: float = 0.0
    rows: dict[str, Row] = field(default_factory=dict)
    done: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return min((row.step_index for row in self.rows.values()), default=0)


class FinalEngine:
    """Owned by the device thread. A tick is: drain, admit, step, retire."""

    def __init__(
        self,
        *,
        loop: StepLoop,
        encode: EncodeStage,
        lanes: Lanes,
        renders: Renders,
        kept: Previews,
        costs: Costs,
        glimpses: Glimpses,
        latent_scale: int,
        max_rows: int,
        lease_s: float,
        max_attempts: int,
        clock: Callable[[], float] = time,
    ) -> None:
        self._loop = loop
        self._encode = encode
        self._lanes = lanes
        self._renders = renders
        self._kept = kept
        self._costs = costs
        self._table: CostTable = costs.load()
        self._glimpses = glimpses
        self._latent_scale = latent_scale
        self._max_rows = max_rows
        self._lease_s = lease_s
        self._max_attempts = max_attempts
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._beat_s = self._saved_s = 0.0

    def tick(self) -> bool:
        """One step of the final pool; False when there was nothing to step."""
        self._keep_leases()
        self._admit()
        report = self._loop.step()
        if report.batch_size == 0:
            return False
        self._retire(report)
        return True

    def _keep_leases(self) -> None:
        """Heartbeats for what is held; takes over what another worker has left."""
        now_s = self._clock()
        if 0 <= now_s - self._beat_s < self._lease_s / 4:
            return
        self._beat_s = now_s
        self._lanes.heartbeat([job.entry for job in self._jobs.values()])
        held = {job.entry.entry_id for job in self._jobs.values()}
        for entry in self._lanes.take_over(self._lease_s):
            if entry.entry_id not in held:
                self._claim(entry)

    def _admit(self) -> None:
        free = self._max_rows - sum(job.record.n for job in self._jobs.values())
        if free > 0:
            for entry in self._lanes.pull(free):
                self._claim(entry)
        for encoded in self._encode.ready():
            job = self._jobs.get(str(encoded.tag))
            if job is not None:
                self._join(job, encoded)

    def _claim(self, entry: Entry) -> None:
        record = self._renders.claim(entry.render_id, self._max_attempts)
        if record is None:
            self._lanes.ack(entry)
            return
        self._jobs[record.id] = Job(entry, record, self._clock())
        self._encode.submit(record.id, record.recipe)

    def _join(self, job: Job, encoded: Encoded) -> None:
        record, recipe = job.record, job.record.recipe
        if encoded.error is not None or encoded.positive is None:
            self._fail(job, encoded.error)
            return
        bucket = Bucket.parse(record.bucket)
        latent_hw = (bucket.height // self._latent_scale, bucket.width // self._latent_scale)
        start = start_of(recipe.handoff, self._preview_latents(record), latent_hw)
        job.encode_s, job.joined_s = encoded.encode_s, self._clock()
        for index in range(record.n):
            row = Row(
                id=f"{record.id}/{index}",
                bucket=bucket,
                steps=recipe.steps,
                guidance_scale=recipe.guidance_scale,
                sampler=recipe.sampler,
                seed=recipe.seed + index,
                styles=recipe.styles,
                embedding=encoded.positive,
                negative=encoded.negative,
                strength=start.strength,
                init_latents=start.init_latents,
            )
            job.rows[row.id] = row
            self._loop.join(row)

    def _preview_latents(self, record: Record) -> torch.Tensor | None:
        stored = self._kept.get(record.id) if record.preview_id else None
        return None if stored is None else torch.from_numpy(unpack(stored.latents)["latents"])

    def _retire(self, report: StepReport) -> None:
        stepped = {row.id.split("/")[0] for row in report.stepped}
        jobs = [self._jobs[render_id] for render_id in stepped if render_id in self._jobs]
        alive = self._renders.progress_many(
            [(job.record.id, job.record.attempt, job.step, report.batch_size) for job in jobs]
        )
        for job, wanted in zip(jobs, alive, strict=True):
            if not wanted:
                self._leave(job)
            else:
                self._glimpses.offer(job.record, job.step, next(iter(job.rows.values())))
        for row, error in report.failed:
            if (failed := self._jobs.get(row.id.split("/")[0])) is not None:
                self._fail(failed, error)
        for row in report.finished:
            if (finished := self._jobs.get(row.id.split("/")[0])) is not None:
                finished.done[row.id] = row.latents
                if len(finished.done) == finished.record.n:
                    self._hand_over(finished)
        self._measure(report)

    def _hand_over(self, job: Job) -> None:
        record, now_s = job.record, self._clock()
        stacked = torch.stack([job.done[row_id] for row_id in job.rows])
        timings_ms = {
            "queue": round(1000 * (job.claimed_s - record.created_s), 1),
            "encode": round(1000 * job.encode_s, 1),
            "denoise": round(1000 * (now_s - job.joined_s), 1),
        }
        self._renders.hand_over(
            job.entry,
            record.attempt,
            "decode",
            State.DECODING,
            record.id,
            pack({"latents": stacked.float().numpy()}),
            {"timings_ms": timings_ms},
        )
        del self._jobs[record.id]

    def _leave(self, job: Job) -> None:
        """The render was cancelled or belongs to another worker now."""
        for row_id in job.rows:
            self._loop.leave(row_id)
        self._lanes.ack(job.entry)
        del self._jobs[job.record.id]

    def _fail(self, job: Job, error: Exception | None) -> None:
        log.error("render %s failed: %s", job.record.id, error, exc_info=error)
        body = {"code": getattr(error, "code", "failed"), "message": str(error) or type(error).__name__}
        self._renders.finish(job.record.id, job.record.attempt, State.FAILED, error=body)
        self._leave(job)

    def _measure(self, report: StepReport) -> None:
        self._table = self._table.observed(str(report.bucket), report.network_rows, report.seconds)
        if self._clock() - self._saved_s > COST_SAVE_S:
            self._saved_s = self._clock()
            self._costs.save(self._table)
