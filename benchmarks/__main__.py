"""Runs every benchmark, each in a process of its own: python -m benchmarks [NAME …]."""

from __future__ import annotations

import subprocess
import sys

NAMES = (
    "engine_overhead",
    "handoff",
    "startup",
    "preview_latency",
    "mixed_styles",
    "cache",
    "prediction",
    "compiled",
    "throughput",
    "goodput",
    "simulate",
    "growth",
    "chaos",
)


def main() -> None:
    for name in sys.argv[1:] or NAMES:
        subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=True)


if __name__ == "__main__":
    main()
