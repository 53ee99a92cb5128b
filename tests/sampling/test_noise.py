"""Noise of a seed."""

from __future__ import annotations

import torch

from core.recipe import MAX_SEED
from sampling.noise import initial_noise, row_generator


def test_noise_depends_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = initial_noise(7, (8, 16, 16))
    torch.manual_seed(2)
    assert torch.equal(first, initial_noise(7, (8, 16, 16)))
    assert not torch.equal(first, initial_noise(8, (8, 16, 16)))


def test_noise_takes_the_largest_seed() -> None:
    assert not torch.equal(initial_noise(MAX_SEED, (1, 2, 2)), initial_noise(MAX_SEED - 1, (1, 2, 2)))


def test_noise_is_what_a_stock_pipeline_draws_first() -> None:
    stock = torch.randn((1, 8, 16, 16), generator=row_generator(3))
    assert torch.equal(initial_noise(3, (8, 16, 16)), stock[0])
