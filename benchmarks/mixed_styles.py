"""Eight styles in one batch beside one style, the same in a dedicated worker's weights, none, and the stock pipeline.

The stock pipeline switches adapters for each request.

python -m benchmarks.mixed_styles [--steps 4] [--rounds 5] [--threads N]
"""

from __future__ import annotations

import argparse
import copy
import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline
from safetensors.torch import load_file, save_file

from benchmarks.bundle import SQUARE, prompts, run
from benchmarks.report import emit
from core.recipe import Sampler, StyleUse
from core.settings import BUNDLED_MODEL
from sampling import lora
from sampling.bank import Bank
from sampling.denoiser import Denoiser
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import Model, load_model
from sampling.rows import Row
from sampling.threads import use_threads
from shared_cache.embeddings import ByteLRU
from styles.catalogue import load_catalogue

ROWS = 8
GUIDANCE = (1.0, 3.0)
TARGET_TO_ONE, TARGET_TO_STOCK = 0.95, 3.0
PERTURBATION = 0.05


def style_files(folder: Path) -> tuple[dict[str, Path], int]:
    """Eight styles: the bundle's, then such with every number moved a little; and how many those are."""
    found = dict(list(load_catalogue(BUNDLED_MODEL / "styles").paths().items())[:ROWS])
    own, rng = list(found.values()), torch.Generator().manual_seed(0)
    for i in range(ROWS - len(own)):
        tensors = load_file(own[i % len(own)])
        moved = {
            key: (tensor.float() * (1 + PERTURBATION * torch.randn(tensor.shape, generator=rng))).to(tensor.dtype)
            for key, tensor in tensors.items()
        }
        found[f"moved{i}"] = folder / f"moved{i}.safetensors"
        save_file(moved, found[f"moved{i}"])
    return found, ROWS - len(own)


class Ours:
    """A step loop with all styles at hand, and no embedding kept."""

    def __init__(self, model: Model, paths: Mapping[str, Path], steps: int) -> None:
        self._encoder = Encoder(model, ByteLRU(0), paths)
        self._bank = Bank(model, paths, ROWS, lambda: None)
        self._loop = StepLoop(Denoiser(model, "final"), self._bank, 2 * ROWS, perf_counter)
        self._steps = steps

    def paint(self, styles: list[str], guidance: float) -> None:
        run(self._loop, [self._row(i, style, guidance) for i, style in enumerate(styles)])

    def _row(self, i: int, style: str, guidance: float) -> Row:
        styles = (StyleUse(style, 1.0),) if style else ()
        return Row(
            id=str(i),
            bucket=SQUARE,
            steps=self._steps,
            guidance_scale=guidance,
            sampler=Sampler.EULER,
            seed=i,
            styles=styles,
            embedding=self._encoder.encode(prompts(ROWS)[i], styles),
            negative=self._encoder.encode("", styles) if guidance > 1 else None,
        )

    def close(self) -> None:
        self._bank.close()


class Stock:
    """diffusers' pipeline with all adapters loaded, as an app would hold it."""

    def __init__(self, paths: Mapping[str, Path], steps: int) -> None:
        self._pipe = StableDiffusionXLPipeline.from_pretrained(BUNDLED_MODEL, torch_dtype=torch.float32)
        self._pipe.scheduler = EulerDiscreteScheduler.from_config(
            self._pipe.scheduler.config, timestep_spacing="trailing"
        )
        self._pipe.set_progress_bar_config(disable=True)
        for style, path in paths.items():
            self._pipe.load_lora_weights(load_file(path), adapter_name=style)
        self._steps = steps

    def paint(self, styles: list[str], guidance: float) -> None:
        for i, style in enumerate(styles):
            self._pipe.set_adapters([style], [1.0])
            self._pipe(
                prompts(ROWS)[i],
                width=SQUARE.width,
                height=SQUARE.height,
                num_inference_steps=self._steps,
                guidance_scale=guidance,
                generator=torch.Generator().manual_seed(i),
                output_type="latent",
            )


def dedicated(model: Model, path: Path, steps: int) -> Ours:
    """A worker whose UNet has one style in its weights."""
    unet = copy.deepcopy(model.network("final"))
    lora.fuse(unet, path)
    return Ours(replace(model, network_final=unet), {}, steps)


def measure(ours: Ours, fused: Ours, stock: Stock, styles: list[str], guidance: float, rounds: int) -> dict[str, float]:
    """Images a second, medians of rounds in which each is first in its turn."""
    jobs: dict[str, Callable[[], None]] = {
        "mixed": lambda: ours.paint(styles, guidance),
        "one_style": lambda: ours.paint(styles[:1] * ROWS, guidance),
        "fused": lambda: fused.paint([""] * ROWS, guidance),
        "none": lambda: ours.paint([""] * ROWS, guidance),
        "stock": lambda: stock.paint(styles, guidance),
    }
    for job in jobs.values():
        job()
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for done in range(rounds):
        first = done % len(jobs)
        for name in [*list(jobs)[first:], *list(jobs)[:first]]:
            started_s = perf_counter()
            jobs[name]()
            seconds[name].append(perf_counter() - started_s)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    rates = {f"{name}_images_s": round(ROWS / value, 3) for name, value in median.items()}
    ratios = {
        f"mixed_to_{name}": _ratio(seconds[name], seconds["mixed"]) for name in ("one_style", "fused", "none", "stock")
    }
    return {"guidance": guidance, **rates, **ratios}


def _ratio(others: list[float], mixed: list[float]) -> float:
    """How many times as fast as the others, median over rounds."""
    return round(statistics.median(other / mine for other, mine in zip(others, mixed, strict=True)), 3)


def swap_ms(model: Model, paths: Mapping[str, Path]) -> dict[str, float]:
    """Times until a style is in a slot that another had: file in the page cache, nothing else running."""
    bank = Bank(model, paths, 1, lambda: None)
    loop = StepLoop(Denoiser(model, "final"), bank, ROWS, perf_counter)
    embedding = Encoder(model, ByteLRU(0)).encode("a fox")
    waits = []
    for i, style in enumerate([*paths, *paths]):
        uses = (StyleUse(style, 1.0),)
        row = Row(str(i), SQUARE, 1, 1.0, Sampler.EULER, i, uses, embedding)
        started_s = perf_counter()
        loop.join(row)
        while not row.ready:
            bank.settle()
            sleep(0.0005)
        waits.append(1000 * (perf_counter() - started_s))
        loop.leave(row.id)
    bank.close()
    return {"median": round(statistics.median(waits), 1), "longest": round(max(waits), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="threads of a forward; as many as a worker uses by default")
    given = parser.parse_args()
    use_threads(given.threads)
    model = load_model(BUNDLED_MODEL, roles=("final",))
    with tempfile.TemporaryDirectory() as folder:
        paths, moved = style_files(Path(folder))
        ours, stock = Ours(model, paths, given.steps), Stock(paths, given.steps)
        fused = dedicated(model, next(iter(paths.values())), given.steps)
        lines = [measure(ours, fused, stock, list(paths), guidance, given.rounds) for guidance in GUIDANCE]
        ours.close()
        fused.close()
        swap = swap_ms(model, paths)
    config: dict[str, Any] = {
        "rows": ROWS,
        "steps": given.steps,
        "rounds": given.rounds,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "styles_of_the_bundle": ROWS - moved,
        "styles_moved_from_those": moved,
        "targets": {"mixed_to_one_style": TARGET_TO_ONE, "mixed_to_stock": TARGET_TO_STOCK},
    }
    columns = list(lines[0])
    emit("mixed_styles", config, {"by_guidance": lines, "swap_ms": swap}, columns, [[*line.values()] for line in lines])


if __name__ == "__main__":
    main()
