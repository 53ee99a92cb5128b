"""What the step loop costs beside the bare UNet forwards of the same shapes, alternating in one run.

python -m benchmarks.engine_overhead [--model-dir models/storybook/bundle] [--rounds 8]
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.report import emit
from core.recipe import Sampler
from sampling.adapters import Adapters
from sampling.denoiser import Denoiser
from sampling.encoder import Embedding, Encoder
from sampling.loop import StepLoop
from sampling.model import Model, load_model
from sampling.rows import Row
from shared_cache.embeddings import ByteLRU

ROOT = Path(__file__).resolve().parent.parent
BUDGET_S = 24.0  # for both batch sizes together
MAX_STEPS = 48  # the rows have 50
TARGET_RATIO = 1.08


def rows_of(model: Model, count: int, embedding: Embedding, steps: int) -> list[Row]:
    """Unguided rows of every sampler in turn, so that a batch mixes them."""
    row = Row("", model.profile.buckets[0], steps, 1.0, Sampler.EULER, 0, (), embedding)
    kinds = list(Sampler)
    return [replace(row, id=str(i), seed=i, sampler=kinds[i % len(kinds)]) for i in range(count)]


def bare_step_s(model: Model, count: int, embedding: Embedding) -> float:
    """Seconds of one forward, all inputs ready."""
    bucket = model.profile.buckets[0]
    size = [float(side) for side in (bucket.height, bucket.width, 0, 0, bucket.height, bucket.width)]
    shape = (count, model.latent_channels, bucket.height // model.vae_scale, bucket.width // model.vae_scale)
    sample = torch.randn(shape, device=model.device, dtype=model.dtype)
    text = embedding.prompt_embeds.expand(count, -1, -1).contiguous()
    pooled = embedding.pooled.expand(count, -1).contiguous()
    given = {"text_embeds": pooled, "time_ids": torch.tensor([size] * count, device=model.device, dtype=model.dtype)}
    timestep = torch.full((count,), 500.0, device=model.device)
    with torch.no_grad():
        started_s = time.perf_counter()
        model.unet("final")(sample, timestep, encoder_hidden_states=text, added_cond_kwargs=given, return_dict=False)
        _synchronise(model)
    return time.perf_counter() - started_s


def _synchronise(model: Model) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize()


def measure(model: Model, count: int, embedding: Embedding, rounds: int, budget_s: float) -> dict[str, float]:
    """Medians over pairs of a bare forward and a loop step, in turn one or the other first.

    best_ratio compares the fastest of each, which other work on the machine disturbs least.
    """
    loop = StepLoop(Denoiser(model, "final"), Adapters(model.unet("final"), {}), count, time.perf_counter)
    for row in rows_of(model, count, embedding, 50):
        loop.join(row)
    bare_step_s(model, count, embedding)
    loop.step()
    pairs: list[tuple[float, float]] = []
    end_s = time.perf_counter() + budget_s
    while len(pairs) < min(rounds, MAX_STEPS) and (len(pairs) < 3 or time.perf_counter() < end_s):
        bare_first = len(pairs) % 2 == 0
        before_s = bare_step_s(model, count, embedding) if bare_first else 0.0
        ours_s = _loop_step_s(model, loop)
        pairs.append((before_s if bare_first else bare_step_s(model, count, embedding), ours_s))
    bare, ours = zip(*pairs, strict=True)
    return {
        "rows": count,
        "bare_ms": round(statistics.median(bare) * 1000, 2),
        "loop_ms": round(statistics.median(ours) * 1000, 2),
        "ratio": round(statistics.median(o / b for b, o in pairs), 3),
        "best_ratio": round(min(ours) / min(bare), 3),
        "pairs": len(pairs),
    }


def _loop_step_s(model: Model, loop: StepLoop) -> float:
    started_s = time.perf_counter()
    loop.step()
    _synchronise(model)
    return time.perf_counter() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model-dir", type=Path, default=ROOT / "models" / "storybook" / "bundle")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    model = load_model(given.model_dir, device=given.device, roles=("final",))
    embedding = Encoder(model, ByteLRU(1 << 20)).encode("a cat on the beach")
    figures = [measure(model, count, embedding, given.rounds, BUDGET_S / 2) for count in (1, 8)]
    config = {
        "model": model.profile.id,
        "device": str(model.device),
        "dtype": str(model.dtype),
        "threads": given.threads,
        "torch": torch.__version__,
        "target_ratio": TARGET_RATIO,
    }
    columns = ["rows", "bare_ms", "loop_ms", "ratio", "best_ratio", "pairs"]
    rows = [[line[column] for column in columns] for line in figures]
    emit("engine_overhead", config, {"by_rows": figures}, columns, rows)


if __name__ == "__main__":
    main()
