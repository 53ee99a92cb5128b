"""Noise that depends on the seed alone: drawn on the CPU in fp32, whatever device and batch the row runs in."""

from __future__ import annotations

import torch


def row_generator(seed: int) -> torch.Generator:
    """A row's own CPU generator; generators are not handed between processes, seeds are."""
    return torch.Generator(device="cpu").manual_seed(seed)
