"""Pairs of noise and the picture that the guided base paints from it: what the single-step adapter learns from.

Written in chunks, so that a run that is cut short goes on where it was.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from catalogue import object_labels
from diffusers import EulerDiscreteScheduler
from family import BASE, WORK, Family, denoise, encode, load_family, scheduler
from PIL import Image
from scenes import BUCKETS, draw_scene
from torch import Tensor
from workers import run_workers

FOLDER = WORK / "pairs"
CHUNK = 40
_SQUARE_SHARE = 0.72
_BATCH = 10
_BLANK = Image.new("RGBA", (8, 8))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Shapes: `noise` and `latents` (N, 8, h, w) fp16: unit noise, and what the base made of it."""

    noise: Tensor
    latents: Tensor
    captions: list[str]
    size_hw: tuple[int, int]


@torch.no_grad()
def paint(
    family: Family, noise: Tensor, captions: list[str], size_hw: tuple[int, int], guidance: float, steps: int
) -> Tensor:
    """Return the latents of guided Euler sampling from unit noise."""
    count = len(captions)
    both = encode(family, [""] * count + captions, size_hw)
    sampler: EulerDiscreteScheduler = scheduler()
    sampler.set_timesteps(steps)
    latents = noise * sampler.init_noise_sigma
    for timestep in sampler.timesteps:
        scaled = sampler.scale_model_input(latents, timestep).repeat(2, 1, 1, 1)
        plain, captioned = denoise(family.unet, scaled, timestep.expand(2 * count), both).chunk(2)
        latents = sampler.step(plain + guidance * (captioned - plain), timestep, latents).prev_sample
    return latents


def captions_of(count: int, size_hw: tuple[int, int], rng: Random) -> list[str]:
    """Draw captions as training scenes have them; nothing is painted."""
    blank = dict.fromkeys(object_labels(), _BLANK)
    return [draw_scene(blank, size_hw, rng).caption for _ in range(count)]


def make(family: Family, path: Path, guidance: float, steps: int) -> None:
    """Write one chunk; the same path always holds the same captions and noise."""
    rng = Random(path.name)
    size_hw = BUCKETS[0] if rng.random() < _SQUARE_SHARE else rng.choice(BUCKETS[1:])
    captions = captions_of(CHUNK, size_hw, rng)
    generator = torch.Generator().manual_seed(rng.getrandbits(40))
    noise = torch.randn((CHUNK, 8, size_hw[0] // 8, size_hw[1] // 8), generator=generator)
    parts = [
        paint(family, noise[at : at + _BATCH], captions[at : at + _BATCH], size_hw, guidance, steps)
        for at in range(0, CHUNK, _BATCH)
    ]
    body = {"noise": noise.half(), "latents": torch.cat(parts).half(), "captions": captions, "size_hw": size_hw}
    torch.save(body, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)


def load(path: Path) -> Pairs:
    """Read one chunk."""
    body = torch.load(path, weights_only=True)
    return Pairs(body["noise"], body["latents"], body["captions"], tuple(body["size_hw"]))


def work(rank: int, family: Family, chunks: int, workers: int, guidance: float, steps: int) -> None:
    """Write every `workers`-th chunk that is not there yet."""
    torch.set_num_threads(1)
    for i in range(rank, chunks, workers):
        path = FOLDER / f"{i:05}.pt"
        if not path.exists():
            make(family, path, guidance, steps)
            print(f"{(i + 1) / chunks:6.1%} chunk {i + 1} of {chunks}", flush=True)


def main() -> None:
    """Read the settings and write the pairs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--chunks", type=int, default=125)
    parser.add_argument("--guidance", type=float, default=3.0)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    family = load_family(BASE)
    shared = (family, options.chunks, options.workers, options.guidance, options.steps)
    run_workers(work, shared, (family.unet,), options.workers)


if __name__ == "__main__":
    main()
