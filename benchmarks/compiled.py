"""What compiling does to a step on this processor: its time, what it costs at the start, and whether the picture stays.

python -m benchmarks.compiled. The network replayed from a trace, as ever, beside the same compiled by blocks and whole.
"""

from __future__ import annotations

import statistics
from contextlib import nullcontext
from time import perf_counter
from typing import Any

import torch

from benchmarks.bundle import SQUARE, run
from benchmarks.report import emit
from core.recipe import Sampler
from sampling.bank import Bank
from sampling.compiled import compilations
from sampling.denoiser import Denoiser
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import load_model
from sampling.rows import Row
from sampling.tuning import Compile, Tuning
from shared_cache.embeddings import ByteLRU

COUNTS, STEPS = (1, 2), 12


def main() -> None:
    found = {mode: measure(mode) for mode in Compile}
    base = found[Compile.OFF]
    rows, figures = [], {}
    for mode, one in found.items():
        away = max(float((one["latents"][n] - base["latents"][n]).abs().max()) for n in COUNTS)
        ratios = {str(n): round(one["step_s"][n] / base["step_s"][n], 2) for n in COUNTS}
        figures[mode.value] = {
            "compile_s": round(one["compile_s"], 1),
            "recompiled": one["recompiled"],
            "latents_off_by": away,
            "step_over_replay": ratios,
        }
        rows.append([mode.value, round(one["compile_s"], 1), one["recompiled"], f"{away:.0e}", *ratios.values()])
    columns = ["compiled", "compile s", "recompiled", "latents off by", *(f"step, {n} guided" for n in COUNTS)]
    emit("compiled", {"bucket": str(SQUARE), "rows": COUNTS, "steps": STEPS}, figures, columns, rows)


def measure(mode: Compile) -> dict[str, Any]:
    """One way to run the bundled model's UNet; every shape is seen once before it is timed."""
    model = load_model("storybook", "cpu", roles=("final",), tuning=Tuning(compile=mode))
    encoder, denoiser = Encoder(model, ByteLRU(2**24), {}), Denoiser(model, "final")
    loop = StepLoop(denoiser, Bank(model, {}, 1, lambda: None), 2 * max(COUNTS), perf_counter)
    started_s = perf_counter()
    with nullcontext() if denoiser.compiled is None else denoiser.compiled.compiling():
        for count in COUNTS:
            paint(loop, encoder, count)
    compile_s = 0.0 if denoiser.compiled is None else perf_counter() - started_s
    before = compilations()
    painted = {count: paint(loop, encoder, count) for count in COUNTS}
    return {
        "compile_s": compile_s,
        "recompiled": compilations() - before,
        "latents": {count: latents for count, (latents, _) in painted.items()},
        "step_s": {count: step_s for count, (_, step_s) in painted.items()},
    }


def paint(loop: StepLoop, encoder: Encoder, count: int) -> tuple[torch.Tensor, float]:
    """Latents of so many guided pictures in one batch, and the median seconds of a step."""
    prompt, negative = encoder.encode("a cat on the beach"), encoder.encode("")
    rows = [
        Row(
            id=f"{count}-{i}",
            bucket=SQUARE,
            steps=STEPS,
            guidance_scale=3.0,
            sampler=Sampler.EULER,
            seed=i,
            styles=(),
            embedding=prompt,
            negative=negative,
        )
        for i in range(count)
    ]
    seconds = run(loop, rows)
    return torch.stack([row.latents for row in rows]), statistics.median(seconds)


if __name__ == "__main__":
    main()
