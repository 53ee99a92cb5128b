"""Noise that depends on the seed alone: drawn on the CPU in fp32, whatever device and batch the row runs in."""

from __future__ import annotations

import torch


def row_generator(seed: int) -> torch.Generator:
    """A row's own CPU generator; generators are not handed between processes, seeds are."""
    return torch.Generator(device="cpu").manual_seed(seed)


def initial_noise(seed: int, shape: tuple[int, int, int]) -> torch.Tensor:
    """The unit noise that a row of this seed starts from.

    Shapes: shape is (C, h, w), and so is the result; fp32 on the CPU.
    """
    return torch.randn(shape, generator=row_generator(seed), dtype=torch.float32)
