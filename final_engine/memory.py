"""Measures the most memory that a worker of all roles needs, and keeps it in the data folder. No torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from core.cost import Identity
from core.errors import StartupError
from core.memory import GUIDED_ROWS, MemoryPlan, Peak, plan_rows
from core.settings import Settings
from final_engine.machine_file import read_measured, write_measured

NAME = "memory.json"
COMMAND = "firstlight bench memory"


def measure(settings: Settings, headroom: float) -> tuple[Identity, MemoryPlan]:
    """In a process of its own, whose peak nothing else has raised: few rows, then as many as the settings allow.

    Raises: StartupError when that process does not come to its end.
    """
    pictures = max(settings.max_final_rows, settings.max_preview_rows) // GUIDED_ROWS
    counts = [GUIDED_ROWS, GUIDED_ROWS * max(2, pictures)]
    command = [sys.executable, "-m", "final_engine.memory_probe", *map(str, counts)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        why = ended.stderr.strip().splitlines()[-1:] or [f"exit code {ended.returncode}"]
        raise StartupError(f"{counts[1]} rows could not be measured: {why[0]}", "free memory, or allow fewer rows")
    said = json.loads(ended.stdout.splitlines()[-1])
    few, many = (Peak(rows, peak) for rows, peak in zip(counts, said["peak_bytes"], strict=True))
    return Identity(**said["identity"]), plan_rows(few, many, said["memory_bytes"], headroom)


def write_plan(folder: Path, identity: Identity, plan: MemoryPlan) -> Path:
    return write_measured(folder / NAME, identity, plan.as_dict())


def allowed_rows(folder: Path, identity: Identity) -> int | None:
    """Network rows that this machine's memory has room for; None where nobody has measured.

    Raises: StartupError where there is no room for one guided picture.
    """
    plan = read_measured(folder / NAME, identity, MemoryPlan.from_dict, COMMAND)
    if plan is None:
        return None
    if plan.missing_bytes:
        raise StartupError(
            f"this machine lacks {plan.missing_bytes / 2**30:.1f} GiB of memory for one picture with guidance",
            f"free memory or take a smaller model or precision, then measure again with: {COMMAND}",
        )
    return plan.rows
