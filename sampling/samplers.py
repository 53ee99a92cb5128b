"""Samplers as pure steps in sigma space: x = x0 + sigma * noise.

Every step takes rows that may stand at different noise levels.
Shapes: x, denoised, noise [n, C, h, w]; sigma, sigma_next [n, 1, 1, 1]. sigma_next is 0 at a row's last step.
Source: k-diffusion (Karras et al. 2022); DPM-Solver++ (Lu et al. 2022); Latent Consistency Models (Luo et al. 2023).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from core.recipe import Sampler

BOUNDARY_SIGMA_DATA = 0.5
BOUNDARY_TIMESTEP_SCALE = 10.0


@dataclass(frozen=True, slots=True)
class History:
    """The step before. Shapes: as x and sigma; a row's first step has its own denoised here and an infinite sigma."""

    denoised: Tensor
    sigma: Tensor


Step = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None, History | None], Tensor]


@dataclass(frozen=True, slots=True)
class SamplerRule:
    """A step and what it wants.

    unit_start: the first x is noise * sqrt(1 + sigma²) (unit variance to the network), else noise * sigma.
    consistency: the denoiser's answer passes through the consistency boundary first.
    """

    step: Step
    needs_noise: bool = False
    needs_history: bool = False
    unit_start: bool = False
    consistency: bool = False


def euler(
    x: Tensor, denoised: Tensor, sigma: Tensor, sigma_next: Tensor, noise: Tensor | None, history: History | None
) -> Tensor:
    """Euler's step of the probability flow; in sigma space also DDIM with eta 0."""
    return x + (x - denoised) * ((sigma_next - sigma) / sigma)


def euler_ancestral(
    x: Tensor, denoised: Tensor, sigma: Tensor, sigma_next: Tensor, noise: Tensor | None, history: History | None
) -> Tensor:
    """Steps below the target level, then adds fresh noise up to it."""
    up = sigma_next * (1 - (sigma_next / sigma) ** 2).sqrt()
    down = sigma_next**2 / sigma
    stepped = x + (x - denoised) * ((down - sigma) / sigma)
    return stepped if noise is None else stepped + noise * up


def dpmpp_2m(
    x: Tensor, denoised: Tensor, sigma: Tensor, sigma_next: Tensor, noise: Tensor | None, history: History | None
) -> Tensor:
    """Second order in log sigma (midpoint); first order at a row's first and last step."""
    if history is not None:
        h, h_last = (sigma / sigma_next).log(), (history.sigma / sigma).log()
        extrapolation = torch.where(sigma_next > 0, h / (2 * h_last), torch.zeros_like(h))
        denoised = denoised + (denoised - history.denoised) * extrapolation
    ratio = sigma_next / sigma
    return ratio * x + (1 - ratio) * denoised


def lcm(
    x: Tensor, denoised: Tensor, sigma: Tensor, sigma_next: Tensor, noise: Tensor | None, history: History | None
) -> Tensor:
    """Jumps to the picture and noises it again to the next level."""
    return denoised if noise is None else denoised + noise * sigma_next


def consistency_boundary(x: Tensor, denoised: Tensor, sigma: Tensor, timestep: Tensor) -> Tensor:
    """c_skip * x + c_out * denoised with x at unit variance, so that timestep 0 is the identity.

    Shapes: timestep as sigma.
    """
    scaled = timestep * BOUNDARY_TIMESTEP_SCALE
    total = scaled**2 + BOUNDARY_SIGMA_DATA**2
    return x * (BOUNDARY_SIGMA_DATA**2 / total / (1 + sigma**2).sqrt()) + denoised * (scaled / total.sqrt())


SAMPLERS: Mapping[Sampler, SamplerRule] = MappingProxyType(
    {
        Sampler.EULER: SamplerRule(euler),
        Sampler.EULER_A: SamplerRule(euler_ancestral, needs_noise=True),
        Sampler.DPMPP_2M: SamplerRule(dpmpp_2m, needs_history=True, unit_start=True),
        Sampler.DDIM: SamplerRule(euler, unit_start=True),
        Sampler.LCM: SamplerRule(lcm, needs_noise=True, unit_start=True, consistency=True),
    }
)
