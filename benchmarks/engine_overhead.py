"""What the step loop costs beside the UNet forwards it makes and beside diffusers' own, alternating in one run.

python -m benchmarks.engine_overhead [--model-dir models/storybook/bundle] [--rounds 8]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.report import emit
from core.recipe import Sampler
from sampling.bank import Bank
from sampling.denoiser import Denoiser
from sampling.embedding import Embedding
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import Model, load_model
from sampling.rows import Row
from sampling.threads import use_threads
from sampling.traced import TracedUNet, can_trace
from shared_cache.embeddings import ByteLRU

BUDGET_S = 24.0  # for both batch sizes together
MAX_STEPS = 48  # the rows have 50
TARGET_RATIO = 1.08


def rows_of(model: Model, count: int, embedding: Embedding, steps: int) -> list[Row]:
    """Unguided rows of every sampler in turn, so that a batch mixes them."""
    row = Row("", model.profile.final.buckets[0], steps, 1.0, Sampler.EULER, 0, (), embedding)
    kinds = list(Sampler)
    return [replace(row, id=str(i), seed=i, sampler=kinds[i % len(kinds)]) for i in range(count)]


class Forwards:
    """One forward with all inputs ready: replayed as the loop makes it, and as diffusers makes it."""

    def __init__(self, model: Model, count: int, embedding: Embedding) -> None:
        unet = model.network("final")
        bucket = model.profile.final.buckets[0]
        size = [float(side) for side in (bucket.height, bucket.width, 0, 0, bucket.height, bucket.width)]
        shape = (count, model.latent_channels, bucket.height // model.vae_scale, bucket.width // model.vae_scale)
        self._inputs = (
            torch.randn(shape, device=model.device, dtype=model.dtype),
            torch.full((count,), 500.0, device=model.device),
            embedding.prompt_embeds.expand(count, -1, -1).contiguous(),
            embedding.pooled.expand(count, -1).contiguous(),
            torch.tensor([size] * count, device=model.device, dtype=model.dtype),
        )
        network = TracedUNet(unet)
        self.stock = network.eager
        self.ours = network if can_trace(unet) else network.eager

    @torch.no_grad()
    def seconds(self, forward: Callable[..., Tensor]) -> float:
        return _seconds(lambda: forward(self._inputs, None), self._inputs[0].device)


def measure(model: Model, count: int, embedding: Embedding, rounds: int, budget_s: float) -> dict[str, float]:
    """Medians over rounds of one loop step, one bare forward and one stock forward, each first in its turn.

    best_ratio compares the fastest of each, which other work on the machine disturbs least.
    """
    loop = StepLoop(Denoiser(model, "final"), Bank(model, {}, 1, lambda: None), count, time.perf_counter)
    for row in rows_of(model, count, embedding, 50):
        loop.join(row)
    forwards = Forwards(model, count, embedding)
    jobs: dict[str, Callable[[], float]] = {
        "loop": lambda: _seconds(loop.step, model.device),
        "bare": lambda: forwards.seconds(forwards.ours),
        "stock": lambda: forwards.seconds(forwards.stock),
    }
    for job in jobs.values():
        job()
    times: dict[str, list[float]] = {name: [] for name in jobs}
    end_s = time.perf_counter() + budget_s
    while (done := len(times["loop"])) < min(rounds, MAX_STEPS) and (done < 3 or time.perf_counter() < end_s):
        names = [*jobs][done % 3 :] + [*jobs][: done % 3]
        for name in names:
            times[name].append(jobs[name]())
    return {
        "rows": count,
        **{f"{name}_ms": round(statistics.median(values) * 1000, 2) for name, values in times.items()},
        "ratio": _ratio(times["loop"], times["bare"]),
        "best_ratio": round(min(times["loop"]) / min(times["bare"]), 3),
        "ratio_to_stock": _ratio(times["loop"], times["stock"]),
        "rounds": done,
    }


def _ratio(ours: list[float], others: list[float]) -> float:
    return round(statistics.median(mine / theirs for mine, theirs in zip(ours, others, strict=True)), 3)


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    started_s = time.perf_counter()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="storybook", help="as FIRSTLIGHT_MODEL")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, help="threads of a forward; as many as a worker uses by default")
    given = parser.parse_args()
    use_threads(given.threads)
    model = load_model(given.model, device=given.device, roles=("final",))
    embedding = Encoder(model, ByteLRU(1 << 20)).encode("a cat on the beach")
    figures = [measure(model, count, embedding, given.rounds, BUDGET_S / 2) for count in (1, 8)]
    config = {
        "model": model.profile.id,
        "device": str(model.device),
        "dtype": str(model.dtype),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "target_ratio": TARGET_RATIO,
    }
    columns = ["rows", "loop_ms", "bare_ms", "stock_ms", "ratio", "best_ratio", "ratio_to_stock", "rounds"]
    rows = [[line[column] for column in columns] for line in figures]
    emit("engine_overhead", config, {"by_rows": figures}, columns, rows)


if __name__ == "__main__":
    main()
