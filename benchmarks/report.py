"""How a benchmark reports: a table for people, a JSON line for the record."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).resolve().parent / "results"


def emit(
    name: str,
    config: dict[str, Any],
    figures: dict[str, Any],
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    keep: bool = True,
) -> None:
    """Prints the table, then the JSON line, which is also kept under benchmarks/results."""
    table = Table(*columns, title=name)
    for row in rows:
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row))
    Console(width=120).print(table)
    line = json.dumps(
        {
            "benchmark": name,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "commit": commit(),
            "machine": machine(),
            "config": config,
            "figures": figures,
        }
    )
    print(line)
    if not keep:
        return
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / f"{name}.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def machine() -> str:
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return f"{os.cpu_count()} cores {model}, no GPU, Python {platform.python_version()}"


def commit() -> str:
    """The short hash, marked + when the tree holds changes to source."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results")
    return (git("rev-parse", "--short", "HEAD") or "none") + ("+" if changed else "")


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which a share (0…1) of the values lies, interpolated."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[min(98, max(0, round(share * 100) - 1))]
