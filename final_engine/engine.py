"""The final engine: accepted renders from their lanes, batched by step."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from time import time

import redis
import torch

from core.cost import Part
from core.errors import InvalidInput
from core.metrics import Metrics
from core.profile import Bucket
from core.recipe import spelled
from core.render import State
from core.scheduler import NO_DEADLINE, BatchingMode, Task, policy_of
from final_engine.ends import claim, fail, reject
from final_engine.glimpse import Glimpses
from final_engine.handoff import start_of
from final_engine.routes import Routes
from sampling.encode_stage import Encoded, EncodeStage
from sampling.loop import StepLoop, StepReport
from sampling.rows import Row
from shared_cache.costs import LiveCosts
from shared_cache.lanes import Entry, decode_stage
from shared_cache.latents import pack, unpack
from shared_cache.previews import Previews
from shared_cache.queue import Lanes, look_ahead
from shared_cache.renders import Record, Renders

log = logging.getLogger(__name__)
TIDY_EVERY_S = 1.0
REAL_ENCODE_S = 0.002  # a prompt from the cache takes less, and says nothing about the next one
TOO_LATE = {"code": "deadline", "message": "it cannot be done by its deadline any more; ask again with a later one"}


@dataclass(slots=True)
class Job:
    """A claimed render. Units: seconds of the wall clock; steps_s is the device's own time in its steps."""

    entry: Entry
    record: Record
    claimed_s: float
    joined_s: float = 0.0
    encode_s: float = 0.0
    steps_s: float = 0.0
    rows: dict[str, Row] = field(default_factory=dict)
    done: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def step(self) -> int:
        return min((row.step_index for row in self.rows.values()), default=0)

    @property
    def task(self) -> Task:
        record = self.record
        due_s = NO_DEADLINE if record.due_s is None else record.due_s
        steps = record.recipe.steps - self.step
        return Task(record.id, record.bucket, record.rows, steps, record.n, record.created_s, due_s)


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
        costs: LiveCosts,
        batching: BatchingMode,
        glimpses: Glimpses,
        metrics: Metrics,
        routes: Routes,
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
        self._batching = batching
        self._glimpses = glimpses
        self._metrics = metrics
        self._routes = routes
        self._latent_scale = latent_scale
        self._max_rows = max_rows
        self._lease_s = lease_s
        self._max_attempts = max_attempts
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._beat_s = 0.0
        self._taking = True
        self._untold: StepReport | None = None  # a step that the queue has not heard of yet, for an outage
        self._encoded: list[Encoded] = []  # what has not joined the loop yet, likewise
        for bucket, counts in costs.table.seconds.get(Part.STEP, {}).items():
            for rows, seconds in counts.items():
                metrics.calibrated(bucket, rows, seconds)
        self._stepped_s: float | None = None  # when the last step ended, if another one was due

    def tick(self) -> bool:
        """One step of the final pool; False when there was nothing to step."""
        self._keep_leases()
        if self._taking:
            self._admit()
        self._join_encoded()
        report, self._untold = self._untold or self._loop.step(), None
        if report.batch_size == 0 and not report.failed:
            return False
        try:
            self._retire(report)
        except redis.RedisError:  # the loop has let its rows go, so it is told again, which is harmless
            self._untold = report
            raise
        return True

    def stop_taking(self) -> None:
        """What waits in the lanes stays there for others, and so does what others have left."""
        self._taking = False

    def idle(self) -> bool:
        return not self._jobs

    def hand_back(self) -> None:
        """Renders that are not done wait again where they waited, for any worker; the attempt is not counted."""
        jobs = list(self._jobs.values())
        given = self._lanes.hand_back({job.record.id: job.record.attempt for job in jobs})
        for job in jobs:
            self._drop_rows(job)
        self._jobs.clear()
        if given:
            log.info("handed back, unfinished: %s", ", ".join(given))

    def _keep_leases(self) -> None:
        """Heartbeats for what is held; takes over what another worker has left."""
        now_s = self._clock()
        if 0 <= now_s - self._beat_s < self._lease_s / 4:
            return
        self._beat_s = now_s
        self._lanes.heartbeat([job.entry for job in self._jobs.values()])
        if not self._taking:
            return
        self._lanes.tidy(every_s=TIDY_EVERY_S)
        held = {(job.entry.stream, job.entry.entry_id) for job in self._jobs.values()}  # two lanes may use one id
        for entry in self._lanes.take_over(self._lease_s):
            if (entry.stream, entry.entry_id) not in held:
                self._claim(entry)

    def _admit(self) -> None:
        """Takes what the policy lets join, and ends what cannot be in time."""
        now_s = self._clock()
        workers = self._routes.workers()
        seen = self._lanes.peek(look_ahead(workers))
        waiting = [task for task in seen if self._routes.mine(task, now_s)]
        policy = policy_of(self._batching, self._costs.table, self._max_rows, workers)
        running = [job.task for job in self._jobs.values()]
        decision = policy.decide(running, waiting, now_s)
        for render_id in decision.doomed:
            self._reject(render_id)
        for entry in self._lanes.take(decision.admit):
            self._claim(entry)

    def _join_encoded(self) -> None:
        """What is encoded joins the loop; it stays here while the queue cannot be asked for the preview."""
        self._encoded += self._encode.ready()
        while self._encoded:
            job = self._jobs.get(str(self._encoded[0].tag))
            if job is not None and not job.rows:
                try:
                    self._join(job, self._encoded[0])
                except redis.RedisError:
                    raise
                except Exception as error:  # this render fails, the engine goes on
                    self._fail(job, error)
            del self._encoded[0]

    def _reject(self, render_id: str) -> None:
        job = self._jobs.get(render_id)
        record = self._renders.get(render_id) if job is None else job.record
        attempt = 0 if record is None else record.attempt
        if reject(self._renders, self._metrics, render_id, attempt, TOO_LATE):  # else another worker has counted it
            self._costs.observe_promise(kept=False)
        if job is not None:
            self._metrics.missed_deadline(job.step * job.record.n)
            self._leave(job)

    def _claim(self, entry: Entry) -> None:
        held = self._jobs.get(entry.render_id)
        if held is not None and held.record.attempt == entry.attempt:  # its entry was lost, and made anew meanwhile
            held.entry = entry
            return
        record = claim(self._renders, self._metrics, entry.render_id, self._max_attempts, State.RUNNING)
        if record is None:
            self._lanes.ack(entry)
            return
        if held is not None:
            self._drop_rows(held)
            del self._jobs[record.id]
        if not self._routes.able(spelled(record.recipe.styles), record.created_s, self._clock()):
            self._lanes.hand_back({record.id: record.attempt})  # it was taken over, and its styles are not here
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
        if encoded.encode_s > REAL_ENCODE_S:
            self._costs.observe(Part.ENCODE, encoded.encode_s)
        for index in range(record.n):
            row = Row.of(
                f"{record.id}/{index}",
                recipe,
                bucket,
                encoded.positive,
                encoded.negative,
                number=index,
                styles=self._routes.styles(recipe),
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
        for job in jobs:
            job.steps_s += report.seconds
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
            "steps": round(1000 * job.steps_s, 1),
        }
        self._renders.hand_over(
            job.entry,
            record.attempt,
            decode_stage(record.recipe.model),
            State.DECODING,
            record.id,
            pack({"latents": stacked.float().cpu().numpy()}),
            {"timings_ms": timings_ms},
        )
        if record.due_s is not None:
            self._costs.observe_promise(kept=now_s <= record.due_s)
        del self._jobs[record.id]

    def _leave(self, job: Job) -> None:
        """The render was cancelled, failed, or belongs to another worker now."""
        self._drop_rows(job)
        self._lanes.ack(job.entry)
        del self._jobs[job.record.id]

    def _drop_rows(self, job: Job) -> None:
        self._metrics.wasted("final", job.step * job.record.n)
        for row_id in job.rows:
            self._loop.leave(row_id)

    def _fail(self, job: Job, error: Exception | None) -> None:
        ours = None if isinstance(error, InvalidInput) else error  # its sentence says all
        log.error("render %s failed: %s", job.record.id, error, exc_info=ours)
        fail(self._renders, self._metrics, job.record, error)
        self._leave(job)

    def _measure(self, report: StepReport) -> None:
        if report.bucket is None:
            return
        now_s, bucket = self._clock(), str(report.bucket)
        self._metrics.stepped("final", bucket, report.network_rows, report.batch_size, report.seconds)
        self._costs.observe(Part.STEP, report.seconds, report.network_rows, bucket)
        drift = self._costs.step_drift(bucket, report.network_rows)
        if drift is not None:
            self._metrics.drift(bucket, report.network_rows, drift)
        if self._stepped_s is not None:
            self._costs.observe_stretch((now_s - self._stepped_s) / report.seconds)
        self._stepped_s = now_s if self._loop.rows else None
