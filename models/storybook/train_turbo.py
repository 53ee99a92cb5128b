"""Train the single-step adapter: from noise straight to the picture that the guided base paints from that noise.

Where noise and picture are a fixed pair, the clean picture is the same at every time on the straight line between
them, so one step finds it and more steps only refine it; preview and final of one seed are one picture.
Source: Liu et al. 2023, "InstaFlow" (reflow on pairs of the teacher), here on the variance-preserving line.
"""

import argparse
from random import Random

import adapters
import pairs
import torch
from family import WORK, Family, alphas_cumprod, denoise, encode, signal_noise
from torch import Tensor, nn

NAME = "preview_turbo"
OUTPUT = WORK / "preview_turbo.safetensors"
_RANK = 32
_FIRST_SHARE = 0.4  # every preview starts at the last timestep
_HUBER = 0.05


def loss_of(family: Family, batch: pairs.Pairs, alphas: Tensor) -> Tensor:
    """Return the distance of the clean picture seen from anywhere on the line (pseudo-Huber)."""
    count = len(batch.captions)
    with torch.no_grad():
        condition = encode(family, batch.captions, batch.size_hw)
    last = len(alphas) - 1
    timesteps = torch.where(torch.rand(count) < _FIRST_SHARE, last, torch.randint(100, last + 1, (count,)))
    signal, noise_level = signal_noise(alphas, timesteps)
    noisy = signal * batch.latents + noise_level * batch.noise
    start = (timesteps == last).view(-1, 1, 1, 1)
    noisy = torch.where(start, batch.noise, noisy)  # samplers start from noise alone
    seen = signal * noisy - noise_level * denoise(family.unet, noisy, timesteps, condition)
    error = seen - batch.latents
    return ((error.square() + _HUBER**2).sqrt() - _HUBER).mean()


class Store:
    """Draws batches from the chunks on disk, all of them in memory."""

    def __init__(self, seed: int) -> None:
        self._chunks = [pairs.load(path) for path in sorted(pairs.FOLDER.glob("*.pt"))]
        if not self._chunks:
            raise SystemExit("no pairs yet: run pairs.py first")
        self._rng = Random(seed)

    def draw(self, count: int) -> pairs.Pairs:
        """Draw a batch of one size."""
        chunk = self._rng.choice(self._chunks)
        rows = self._rng.sample(range(len(chunk.captions)), count)
        captions = [chunk.captions[i] for i in rows]
        return pairs.Pairs(chunk.noise[rows].float(), chunk.latents[rows].float(), captions, chunk.size_hw)


def work(rank: int, family: Family, parameters: list[nn.Parameter], budget: adapters.Budget) -> None:
    """Run one worker; see train_base for why there are two. The leading one writes the adapter."""
    torch.set_num_threads(1)
    torch.manual_seed(50 + rank)
    alphas, store = alphas_cumprod(), Store(52 + rank)
    adapters.fit(parameters, lambda: loss_of(family, store.draw(budget.batch), alphas), budget, leads=rank == 0)
    if rank == 0:
        adapters.save(family, NAME, OUTPUT)


def main() -> None:
    """Read the budget and train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    adapters.add_budget(parser, steps=1500, rate=1e-3)
    budget = adapters.Budget(**vars(parser.parse_args()))
    adapters.distil(work, NAME, _RANK, budget)


if __name__ == "__main__":
    main()
