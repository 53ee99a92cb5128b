"""Runs every benchmark: python -m benchmarks [NAME …]."""

from __future__ import annotations

import importlib
import sys

NAMES = ("engine_overhead", "handoff", "startup", "preview_latency")


def main() -> None:
    for name in sys.argv[1:] or NAMES:
        importlib.import_module(f"benchmarks.{name}").main()


if __name__ == "__main__":
    main()
