"""Noise of a seed."""

from __future__ import annotations

import torch

from core.recipe import MAX_SEED
from sampling.noise import row_generator


def noise(seed: int) -> torch.Tensor:
    return torch.randn((8, 16, 16), generator=row_generator(seed))


def test_noise_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = noise(7)
    torch.manual_seed(2)
    assert torch.equal(first, noise(7))
    assert not torch.equal(first, noise(8))


def test_noise_takes_the_largest_seed() -> None:
    assert not torch.equal(noise(MAX_SEED), noise(MAX_SEED - 1))
