"""The scheduler on many simulated GPUs: the same policies and the same arithmetic, with the costs of an H200.

python -m benchmarks.simulate [--requests 1000000] [--gpus 1 4 16 64]

Beside the runs it measures what the queue in a real server takes of a step boundary, with 10,000 renders waiting: that
and the policy's own time say how many GPUs one queue feeds.

Costs: FLOPs of SDXL's parts at 790 TFLOP/s; at 1024 squared a batch gains a few percent, at 512 squared a single row
leaves most of the device idle. A fleet has one queue. All running requests move one step in each round.
"""

from __future__ import annotations

import argparse
import heapq
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import islice
from pathlib import Path
from time import thread_time
from typing import Any, cast

import redis

from benchmarks.charts import charts
from benchmarks.loads import Arrival, capacity, poisson
from benchmarks.report import emit, percentile
from core.cost import ANY, CostMeter, CostTable, Part
from core.profile import Bucket, Pool
from core.recipe import Recipe, Sampler
from core.render import State
from core.scheduler import BatchingMode, Claim, Forecast, Task, claim_of, policy_of
from final_engine.door import Door, RenderWish
from shared_cache.connect import connect
from shared_cache.embedded import EmbeddedRedis
from shared_cache.lanes import STANDARD, lane_name
from shared_cache.queue import CAREFUL_LOOK, Ahead, Lanes, look_ahead
from shared_cache.renders import Record, Renders

TERA_S = 1 / 790  # seconds of an H200 for 10^12 operations
LARGE = ("1024x1024", "1152x896", "896x1152", "1216x832", "832x1216")
SMALL = "512x512"
MAX_ROWS = 16
SLACK = (2.0, 6.0)
WISH = Recipe("", "", 0, 1024, 1024, 30, 5.0, Sampler.EULER, (), "sdxl", "1.0")
POOL = Pool(WISH.sampler, WISH.steps, WISH.guidance_scale, tuple(map(Bucket.parse, (*LARGE, SMALL))))
DOCS = Path(__file__).resolve().parent.parent / "docs"


def h200() -> CostTable:
    """Steps on a line through what one row and sixteen take."""
    large = {1: 6.76 * TERA_S * 1.09, MAX_ROWS: MAX_ROWS * 6.76 * TERA_S}
    small = {1: 1.59 * TERA_S * 3.0, MAX_ROWS: MAX_ROWS * 1.59 * TERA_S * 1.1}
    return CostTable(
        {
            Part.ENCODE: {ANY: {1: 0.003}},
            Part.STEP: {**dict.fromkeys(LARGE, large), SMALL: small},
            Part.DECODE: {**{bucket: {1: 10.5 * TERA_S} for bucket in LARGE}, SMALL: {1: 2.5 * TERA_S}},
            Part.SAFETY: {ANY: {1: 0.01}},
            Part.PUBLISH: {ANY: {1: 0.05}},
        }
    )


@dataclass(slots=True)
class Outcome:
    """Of a whole run. Units: seconds."""

    latencies_s: list[float] = field(default_factory=list)
    start_delays_s: list[float] = field(default_factory=list)
    in_time: int = 0
    refused: int = 0
    doomed: int = 0
    doomed_steps: int = 0
    ended_s: float = 0.0
    decisions: int = 0
    deciding_s: float = 0.0
    busy_s: float = 0.0


class Fleet:
    """GPUs before one queue. batching None is a stock server: one request at a time, in order, none refused."""

    def __init__(self, gpus: int, table: CostTable, batching: BatchingMode | None) -> None:
        self._gpus = gpus
        self._table = table
        self._policy = policy_of(batching, table, MAX_ROWS, gpus) if batching is not None else None
        self._waiting: dict[str, Task] = {}
        self._running: list[dict[str, Task]] = [{} for _ in range(gpus)]
        self._idle = set(range(gpus))
        self._turns: list[tuple[float, int]] = []
        self._forecast = Forecast(table, MAX_ROWS)
        self._request_s = cache(table.request_s)
        self._meter = CostMeter(table)
        self.outcome = Outcome()

    def play(self, arrivals: Iterable[Arrival]) -> Outcome:
        for arrival in arrivals:
            self._play_until(arrival.at_s)
            self._arrive(arrival)
        self._play_until(math.inf)
        return self.outcome

    def _play_until(self, end_s: float) -> None:
        while self._turns and self._turns[0][0] <= end_s:
            now_s, gpu = heapq.heappop(self._turns)
            self._turn(gpu, now_s)

    def _arrive(self, arrival: Arrival) -> None:
        task = Task(
            id=str(arrival.number),
            bucket=arrival.bucket,
            rows=arrival.rows,
            steps=arrival.steps,
            arrived_s=arrival.at_s,
            due_s=arrival.at_s + arrival.limit_s,
        )
        if self._policy is not None and not self._promise_kept(arrival):
            self.outcome.refused += 1
            return
        self._waiting[task.id] = task
        if self._idle:
            heapq.heappush(self._turns, (arrival.at_s, self._idle.pop()))

    def _turn(self, gpu: int, now_s: float) -> None:
        running = self._running[gpu]
        self._admit(running, now_s)
        if not running:
            self._idle.add(gpu)
            return
        took_s = self._forecast.round_s(running.values())
        for task in list(running.values()):
            moved = replace(task, steps=task.steps - 1)
            if moved.steps > 0:
                running[task.id] = moved
            else:
                del running[task.id]
                took_s += self._table.of(Part.DECODE, 1, task.bucket)
                self._end(task, now_s + took_s)
        self.outcome.busy_s += took_s
        heapq.heappush(self._turns, (now_s + took_s, gpu))

    def _admit(self, running: dict[str, Task], now_s: float) -> None:
        if self._policy is None:
            admitted = [] if running else list(islice(self._waiting, 1))
        else:
            seen = list(islice(self._waiting.values(), look_ahead(self._gpus)))
            started_s = thread_time()
            decision = self._policy.decide(list(running.values()), seen, now_s)
            self.outcome.deciding_s += thread_time() - started_s
            self.outcome.decisions += 1
            for task_id in decision.doomed:
                self._doom(task_id, running)
            admitted = list(decision.admit)
        for task_id in admitted:
            task = self._waiting.pop(task_id)
            running[task_id] = task
            self.outcome.start_delays_s.append(now_s - task.arrived_s)

    def _promise_kept(self, arrival: Arrival) -> bool:
        """As the door of the real queue: it looks at the first waiting ones, and at the work of all the running."""
        seen = [self._claim(task) for task in islice(self._waiting.values(), CAREFUL_LOOK)]
        running = [task for tasks in self._running for task in tasks.values()]
        claims, rows = tuple(self._claim(task) for task in running), sum(task.rows for task in running)
        ahead = Ahead(0, 0, len(self._waiting), claims, rows, tuple(seen))
        wish = RenderWish(replace(WISH, steps=arrival.steps), deadline_s=arrival.limit_s)
        door = Door(self._meter.table(), ahead, self._gpus, MAX_ROWS, arrival.at_s, POOL)
        return door.promise(wish, Bucket.parse(arrival.bucket)).kept

    def _claim(self, task: Task) -> Claim:
        work_s = self._forecast.work_s(task)
        tail_s = self._request_s(task.bucket, task.steps, task.rows) - work_s
        return claim_of(task.id, work_s, task.arrived_s, task.due_s - tail_s)

    def _doom(self, task_id: str, running: dict[str, Task]) -> None:
        self.outcome.doomed += 1
        self._meter.observe_promise(kept=False)
        self._waiting.pop(task_id, None)
        running.pop(task_id, None)

    def _end(self, task: Task, now_s: float) -> None:
        done_s = now_s + self._table.of(Part.SAFETY) + self._table.of(Part.PUBLISH)
        self.outcome.latencies_s.append(done_s - task.arrived_s)
        self.outcome.in_time += done_s <= task.due_s
        self._meter.observe_promise(kept=done_s <= task.due_s)
        self.outcome.ended_s = max(self.outcome.ended_s, done_s)


def run(gpus: int, load: float, batching: BatchingMode | None, count: int) -> dict[str, float]:
    """load 1.0 is as many requests as the fleet renders one after the other."""
    table = h200()
    buckets = (*LARGE, SMALL, SMALL)
    rate = load * gpus * capacity(table, buckets)
    fleet = Fleet(gpus, table, batching)
    arrivals = poisson(seed=gpus, count=count, rate=rate, buckets=buckets, table=table, slack=SLACK, owners=1000)
    outcome = fleet.play(arrivals)
    decide_us = 1e6 * outcome.deciding_s / max(1, outcome.decisions)
    return {
        "gpus": gpus,
        "load": load,
        "requests": count,
        "goodput": round(outcome.in_time / count, 4),
        "refused": round(outcome.refused / count, 4),
        "doomed": round(outcome.doomed / count, 4),
        "p50_s": round(percentile(outcome.latencies_s, 0.5), 3),
        "p95_s": round(percentile(outcome.latencies_s, 0.95), 3),
        "start_p95_s": round(percentile(outcome.start_delays_s, 0.95), 3),
        "busy": round(outcome.busy_s / (gpus * outcome.ended_s), 3),
        "decide_us": round(decide_us, 1),
        "boundaries_s": round(outcome.decisions / outcome.ended_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1_000_000, help="over all runs of the step policy together")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.9, 1.2, 1.5])
    given = parser.parse_args()
    share = given.requests / (sum(given.gpus) * len(given.loads))
    kinds: Sequence[BatchingMode | None] = (BatchingMode.STEP, BatchingMode.COHORT, None)
    compared = given.gpus[min(2, len(given.gpus) - 1)]  # one size of fleet is enough to compare policies by
    runs = [
        (gpus, load, kind, max(200, int(share * gpus)))
        for gpus in given.gpus
        for load in given.loads
        for kind in kinds
        if kind is BatchingMode.STEP or gpus == compared
    ]
    lines: list[dict[str, Any]] = []
    with ProcessPoolExecutor() as pool:
        for (_, _, kind, _), figures in zip(runs, pool.map(run, *zip(*runs, strict=True)), strict=True):
            lines.append({"policy": "stock" if kind is None else kind.value, **figures})
            print(lines[-1], flush=True)
    columns = list(lines[0])
    queue_us = boundary_us()
    per_gpu = max(line["boundaries_s"] / line["gpus"] for line in lines if line["policy"] == BatchingMode.STEP)
    limits = {"queue_us": round(queue_us, 1), "boundaries_s_of_one_gpu": round(per_gpu, 1)}
    limits["gpus_of_one_queue"] = round(1e6 / (queue_us * per_gpu))
    config = {"device": "H200, simulated", "max_rows": MAX_ROWS, "slack": SLACK}
    emit("simulate", config, {"limits": limits, "runs": lines}, columns, [[*line.values()] for line in lines])
    plot(lines, DOCS / "simulation.svg")


def boundary_us(waiting: int = 10_000, rounds: int = 300) -> float:
    """Microseconds of the server's core for one boundary: look at the queue, take one render, note its step."""
    with tempfile.TemporaryDirectory() as folder, served(Path(folder)) as client:
        renders, lanes = Renders(client), Lanes(client, [LARGE[0]], "bench")
        for number in range(waiting):
            renders.create(_record(number), lane_name(STANDARD, LARGE[0]))
        began_s = _core_s(client)
        for _ in range(rounds):
            (entry,) = lanes.take([lanes.peek()[0].id])
            record = renders.claim(entry.render_id, 3)
            assert record is not None
            renders.progress(record.id, record.attempt, 1, 1)
        return 1e6 * (_core_s(client) - began_s) / rounds


def _core_s(client: redis.Redis) -> float:
    used = cast("dict[str, float]", client.info("cpu"))
    return used["used_cpu_sys"] + used["used_cpu_user"]


@contextmanager
def served(folder: Path) -> Iterator[redis.Redis]:
    server = EmbeddedRedis(folder)
    try:
        yield connect(server.start())
    finally:
        server.stop()


def _record(number: int) -> Record:
    return Record(
        id=f"r{number}",
        owner=f"owner{number % 1000}",
        state=State.QUEUED,
        recipe=WISH,
        bucket=LARGE[0],
        n=1,
        preview_id=None,
        attempt=0,
        created_s=float(number),
        step=0,
        steps=WISH.steps,
        predicted_s=1.0,
        rows=2,
        work_s=1.0,
        deadline_s=1e6,
    )


def plot(lines: Sequence[Any], path: Path) -> None:
    """Goodput and p95 over the load, a curve for each fleet and policy."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        count = f"{line['gpus']} GPU" + ("s" if line["gpus"] > 1 else "")
        curves.setdefault(f"{line['policy']}, {count}", []).append(line)
    panels = [("done in time, of all asked", "goodput", 1.0), ("95th percentile, seconds", "p95_s", 6.0)]
    path.write_text(charts(curves, panels, x="load", x_label="load of the fleet"), encoding="utf-8")


if __name__ == "__main__":
    main()
