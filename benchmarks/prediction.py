"""Are promised times kept? Predicted over actual, request by request, on a machine that does nothing else.

python -m benchmarks.prediction [--count 40]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.bundle import prompts
from benchmarks.loads import poisson
from benchmarks.report import emit, percentile
from benchmarks.site import await_ends, calibrated, site, submit
from core.cost import Part


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=40)
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
        records = []
        with site(Path(folder)) as context:
            for arrival, text in zip(load, prompts(given.count), strict=True):
                record = submit(context, arrival, text)
                assert record is not None
                records += await_ends(context, [record.id])
    figures: dict[str, Any] = {}
    for kind, predicted, actual in (
        ("gpu", [r.predicted_gpu_s for r in records], [r.timings_ms["gpu"] / 1000 for r in records]),
        ("total", [r.predicted_s for r in records], [r.timings_ms["total"] / 1000 for r in records]),
    ):
        errors = sorted(abs(p - a) / a for p, a in zip(predicted, actual, strict=True))
        bias = percentile([p / a for p, a in zip(predicted, actual, strict=True)], 0.5)
        figures[kind] = {
            "median_error": round(percentile(errors, 0.5), 4),
            "p95_error": round(percentile(errors, 0.95), 4),
            "median_ratio": round(bias, 4),
        }
    rows = [[kind, *values.values()] for kind, values in figures.items()]
    emit("prediction", {"count": given.count}, figures, ["time", "median error", "p95 error", "median ratio"], rows)


if __name__ == "__main__":
    main()
