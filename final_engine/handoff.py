"""The hand-off: where a render starts from, so that it follows the preview that was accepted.

The initial noise is a function of the seed and the latent grid alone, so preview and render share it. `match` and
`balanced` also start from the preview's latents, noised to a strength, as SDEdit does (Meng et al. 2021): the lower
the strength, the more of the preview stands. `fresh` keeps only prompt and seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from core.recipe import Handoff

STRENGTH = {Handoff.MATCH: 0.5, Handoff.BALANCED: 0.75, Handoff.FRESH: 1.0}


@dataclass(frozen=True, slots=True)
class Start:
    """strength in 0…1 of the noise schedule; init_latents [C,h,w] denoised, None when starting from noise alone."""

    strength: float
    init_latents: torch.Tensor | None


def start_of(handoff: Handoff, preview_latents: torch.Tensor | None, latent_hw: tuple[int, int]) -> Start:
    """Shapes: preview_latents [C,h',w'] is carried to latent_hw by bicubic interpolation where the grids differ."""
    strength = STRENGTH[handoff]
    if preview_latents is None or strength >= 1:
        return Start(1.0, None)
    latents = preview_latents.float()
    if tuple(latents.shape[-2:]) != latent_hw:
        latents = F.interpolate(latents[None], size=latent_hw, mode="bicubic", align_corners=False)[0]
    return Start(strength, latents)
