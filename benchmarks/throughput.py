"""Closed loop: some clients each ask for the next picture when they have the last. Pictures a second, beside stock.

python -m benchmarks.throughput [--clients 1 4 16] [--seconds 45]
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from app.context import Context
from benchmarks.bundle import prompts
from benchmarks.loads import Arrival
from benchmarks.report import emit, percentile
from benchmarks.site import Stock, await_ends, calibrated, site, submit

STEPS = 25
BUCKET = "128x128"
STYLES = (None, "ink", "noto", None)


def request(number: int) -> Arrival:
    return Arrival(number, 0.0, f"client{number % 16}", BUCKET, STEPS, 2, STYLES[number % len(STYLES)], float("inf"))


def ours(context: Context, clients: int, seconds: float) -> dict[str, Any]:
    texts, latencies_s = prompts(64), [0.0]
    latencies_s.clear()
    ends_s = time.monotonic() + seconds

    def work(client: int) -> None:
        number = client
        while time.monotonic() < ends_s:
            started_s = time.monotonic()
            record = submit(context, request(number), texts[number % len(texts)])
            assert record is not None
            await_ends(context, [record.id])
            latencies_s.append(time.monotonic() - started_s)
            number += 16

    threads = [threading.Thread(target=work, args=(client,)) for client in range(clients)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _figures(latencies_s, time.monotonic() - began_s)


def stock(seconds: float) -> dict[str, Any]:
    pipeline, texts = Stock(["ink", "noto"]), prompts(64)
    pipeline.render(request(0), texts[0])
    latencies_s, number, began_s = [], 0, time.monotonic()
    while time.monotonic() - began_s < seconds:
        started_s = time.monotonic()
        pipeline.render(request(number), texts[number % len(texts)])
        latencies_s.append(time.monotonic() - started_s)
        number += 1
    return _figures(latencies_s, time.monotonic() - began_s)


def _figures(latencies_s: list[float], seconds: float) -> dict[str, Any]:
    return {
        "pictures_s": round(len(latencies_s) / seconds, 3),
        "p50_s": round(percentile(latencies_s, 0.5), 3),
        "p95_s": round(percentile(latencies_s, 0.95), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--seconds", type=float, default=45.0)
    given = parser.parse_args()
    lines: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        calibrated(Path(folder))
        with site(Path(folder)) as context:
            for clients in given.clients:
                lines.append({"server": "ours", "clients": clients, **ours(context, clients, given.seconds)})
    lines.append({"server": "stock", "clients": 1, **stock(given.seconds)})
    for line in lines:
        line["of_stock"] = round(line["pictures_s"] / lines[-1]["pictures_s"], 2)
    config = {"steps": STEPS, "bucket": BUCKET, "guidance": True, "styles": [*STYLES]}
    emit("throughput", config, {"runs": lines}, list(lines[0]), [[*line.values()] for line in lines])


if __name__ == "__main__":
    main()
