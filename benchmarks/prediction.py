"""Are promised times kept? Predicted over actual, request by request, on a machine that does nothing else.

python -m benchmarks.prediction [--count 24]

Each render is asked for twice in a row. How far the second is from the first, the very same work a moment later, is
what this machine's own speed leaves of any prediction.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.bundle import prompts
from benchmarks.loads import poisson
from benchmarks.report import emit, percentile
from benchmarks.site import await_ends, calibrated, site, submit
from core.cost import Part
from shared_cache.records import Record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=24)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = calibrated(Path(folder))
        buckets = list(table.seconds[Part.STEP])
        load = poisson(
            seed=3,
            count=given.count,
            rate=1.0,
            buckets=buckets,
            table=table,
            slack=None,
            styles=(None,),
        )
        records: list[Record] = []
        again: list[Record] = []
        with site(Path(folder)) as context:
            for arrival, text in zip(load, prompts(given.count), strict=True):
                for into in (records, again):
                    record = submit(context, arrival, text)
                    assert record is not None
                    into += await_ends(context, [record.id])
    gpu_s, total_s = ([r.timings_ms[kind] / 1000 for r in records] for kind in ("gpu", "total"))
    figures: dict[str, Any] = {
        "gpu": errors([r.predicted_gpu_s for r in records], gpu_s),
        "total": errors([r.predicted_s for r in records], total_s),
        "the same render again, gpu": errors(gpu_s, [r.timings_ms["gpu"] / 1000 for r in again]),
    }
    rows = [[kind, *values.values()] for kind, values in figures.items()]
    emit("prediction", {"count": given.count}, figures, ["time", "median error", "p95 error", "median ratio"], rows)


def errors(predicted: Sequence[float], actual: Sequence[float]) -> dict[str, float]:
    """Of all renders; median_ratio is predicted over actual."""
    pairs = list(zip(predicted, actual, strict=True))
    found = [abs(p - a) / a for p, a in pairs]
    return {
        "median_error": round(percentile(found, 0.5), 4),
        "p95_error": round(percentile(found, 0.95), 4),
        "median_ratio": round(percentile([p / a for p, a in pairs], 0.5), 4),
    }


if __name__ == "__main__":
    main()
