"""Open loop: requests come when they come. How many are done in time, ours by step, ours by cohort, and stock?

python -m benchmarks.goodput [--count 40] [--loads 0.5 0.9 1.5]

Load 1.0 is what one request after the other would keep the network busy with, by the calibrated costs. The stock side
is one pipeline that takes requests in order and refuses none, on the same machine, after ours has stopped.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.bundle import prompts
from benchmarks.loads import Arrival, capacity, poisson
from benchmarks.report import emit, percentile
from benchmarks.site import Stock, await_ends, calibrated, site, submit
from core.cost import CostTable, Part
from core.render import State
from core.scheduler import BatchingMode

SLACK = (2.0, 6.0)
STYLES = (None, None, "ink", "noto")


def arrivals_of(table: CostTable, load: float, count: int) -> list[Arrival]:
    buckets = list(table.seconds[Part.STEP])
    rate = load * capacity(table, buckets)
    return list(
        poisson(seed=7, count=count, rate=rate, buckets=buckets, table=table, slack=SLACK, styles=STYLES, owners=8)
    )


def in_time_with(arrivals: Sequence[Arrival], act: Callable[[Arrival, str], None]) -> float:
    """Calls act at each arrival's moment; returns when the load began."""
    texts = prompts(len(arrivals))
    began_s = time.monotonic()
    for arrival, text in zip(arrivals, texts, strict=True):
        time.sleep(max(0.0, began_s + arrival.at_s - time.monotonic()))
        act(arrival, text)
    return began_s


def ours(costs: Path, batching: BatchingMode, arrivals: Sequence[Arrival]) -> dict[str, Any]:
    with site(costs, batching=batching.value) as context:
        ids: list[str] = []

        def act(arrival: Arrival, text: str) -> None:
            record = submit(context, arrival, text)
            if record is not None:
                ids.append(record.id)

        in_time_with(arrivals, act)
        records = await_ends(context, ids)
    done = [record for record in records if record.state is State.DONE]
    totals_s = [record.timings_ms["total"] / 1000 for record in done]
    in_time = sum(
        total_s <= record.deadline_s for record, total_s in zip(done, totals_s, strict=True) if record.deadline_s
    )
    return {
        "goodput": round(in_time / len(arrivals), 3),
        "refused": round(1 - len(ids) / len(arrivals), 3),
        "doomed": round(sum(record.state is State.REJECTED for record in records) / len(arrivals), 3),
        "p50_s": _share(totals_s, 0.5),
        "p95_s": _share(totals_s, 0.95),
        "p99_s": _share(totals_s, 0.99),
        "start_p50_s": round(statistics.median(record.timings_ms["queue"] / 1000 for record in done), 3)
        if done
        else None,
        "mean_batch": round(statistics.fmean(size for record in done for size in record.batch_sizes), 2)
        if done
        else None,
    }


def stock(arrivals: Sequence[Arrival]) -> dict[str, Any]:
    pipeline = Stock(["ink", "noto"])
    texts = prompts(len(arrivals))
    pipeline.render(arrivals[0], texts[0])
    began_s = time.monotonic()
    totals_s, starts_s = [], []
    for arrival, text in zip(arrivals, texts, strict=True):
        time.sleep(max(0.0, began_s + arrival.at_s - time.monotonic()))
        starts_s.append(time.monotonic() - began_s - arrival.at_s)
        pipeline.render(arrival, text)
        totals_s.append(time.monotonic() - began_s - arrival.at_s)
    in_time = sum(total_s <= arrival.limit_s for total_s, arrival in zip(totals_s, arrivals, strict=True))
    return {
        "goodput": round(in_time / len(arrivals), 3),
        "refused": 0.0,
        "doomed": 0.0,
        "p50_s": _share(totals_s, 0.5),
        "p95_s": _share(totals_s, 0.95),
        "p99_s": _share(totals_s, 0.99),
        "start_p50_s": round(statistics.median(starts_s), 3),
        "mean_batch": 1.0,
    }


def _share(values: Sequence[float], share: float) -> float | None:
    return round(percentile(values, share), 3) if values else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40, help="requests of each run")
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.9, 1.5])
    given = parser.parse_args()
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        table = calibrated(Path(folder))
        for load in given.loads:
            arrivals = arrivals_of(table, load, given.count)
            for mode in BatchingMode:
                lines.append({"load": load, "server": mode.value, **ours(Path(folder), mode, arrivals)})
                print(lines[-1], flush=True)
            lines.append({"load": load, "server": "stock", **stock(arrivals)})
            print(lines[-1], flush=True)
    config = {"count": given.count, "slack": SLACK, "styles": [*STYLES], "steps": "10…50", "guidance": True}
    emit("goodput", config, {"runs": lines}, list(lines[0]), [[*line.values()] for line in lines])


if __name__ == "__main__":
    main()
