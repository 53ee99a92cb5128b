"""What one GPU makes of SDXL at its full size, in eight minutes: benchmarks/gpu_check.sh [--rehearse].

Sections run in the order of what they are worth, each within a time of its own; one that fails or runs out of it is
named with its error, and the others go on. Without a network and without weights: these are random.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import gpu_sections as sections
from benchmarks.gpu_model import FULL, REHEARSAL, random_model
from benchmarks.gpu_run import Check, Section
from benchmarks.report import emit
from sampling.device import device_of

WHOLE_S = 460.0  # of the eight minutes; the rest is for starting and for the table
AIMS = {
    "final": "30 steps with guidance: at most 0.88 s",
    "turbo": "one preview: at most 8 ms; batch 8 at least 3 times batch 1",
    "slots": "styles: at most 5 %",
}


SECTIONS: tuple[tuple[str, Section, float], ...] = (
    ("machine", sections.machine, 20),
    ("step", sections.step, 45),
    ("final", sections.final, 60),
    ("turbo", sections.turbo, 40),
    ("slots", sections.slots, 50),
    ("decode", sections.decode, 20),
    ("encode", sections.encode, 15),
    ("compiled", sections.compiled, 150),
    ("whole", sections.whole, 100),
    ("int8", sections.fewer_bits, 60),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0, or 1 where a section failed."""
    started_s = time.perf_counter()
    given = parse(arguments)
    scale = REHEARSAL if given.rehearse else FULL
    device = torch.device("cpu") if given.rehearse else device_of(given.device)
    dtype = torch.float32 if given.rehearse else torch.bfloat16
    signal.signal(signal.SIGTERM, _interrupted)
    with tempfile.TemporaryDirectory() as folder:
        check = Check(
            random_model(device, dtype, scale), scale, "eager" if given.rehearse else "inductor", Path(folder)
        )
        try:
            for name, section, limit_s in SECTIONS:
                if name in given.sections:
                    left_s = given.seconds - (time.perf_counter() - started_s)
                    check.run(name, section, max(1.0, min(limit_s, left_s)))
        except KeyboardInterrupt:
            check.errors["all"] = "stopped before the end"
        tell(check, given, time.perf_counter() - started_s)
    return 1 if check.errors else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [name for name, _, _ in SECTIONS]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="a much smaller model on the processor")
    parser.add_argument("--device", default="cuda", help="as FIRSTLIGHT_DEVICE")
    parser.add_argument("--seconds", type=float, default=WHOLE_S, help="for all sections")
    parser.add_argument("--keep", action="store_true", help="add the line to benchmarks/results")
    parser.add_argument("sections", nargs="*", metavar="section", help=f"of {', '.join(names)}; all by default")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.sections) - set(names))
    if unknown:
        parser.error(f"unknown section {', '.join(unknown)}; known are {', '.join(names)}")
    given.sections = given.sections or names
    return given


def tell(check: Check, given: argparse.Namespace, took_s: float) -> None:
    config: dict[str, Any] = {
        "rehearsal": given.rehearse,
        "device": device_name(check.model.device),
        "dtype": str(check.model.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "aims": AIMS,
    }
    figures = {**check.figures, "errors": check.errors, "seconds": round(took_s, 1)}
    emit("gpu_check", config, figures, ("section", "what", "figure", "unit"), check.rows, keep=given.keep)


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "processor"


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    raise SystemExit(main())
