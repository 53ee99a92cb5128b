"""Which noise levels a row visits after flow matching: x = (1 - sigma) * x0 + sigma * noise."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler

from core.errors import InvalidInput
from core.recipe import Sampler

MAX_STEPS = 1000


@dataclass(frozen=True, slots=True)
class FlowSchedule:
    """config: of the flow matching scheduler in the model's folder. patch: latents a side of a token.

    Source: diffusers' FlowMatchEulerDiscreteScheduler, and calculate_shift of its FluxPipeline: the larger the picture,
    the longer the noise stays high, where the config asks for it (dynamic shifting).
    """

    config: Mapping[str, Any]
    patch: int

    def visits(self, sampler: Sampler, steps: int, strength: float, latents: int) -> tuple[list[float], list[float]]:
        """Exactly `steps` timesteps from the strength down, and the noise level of each, then a final 0.

        Units: latents is height times width. Raises: InvalidInput when steps or strength are out of bounds.
        """
        if not 0.0 < strength <= 1.0:
            raise InvalidInput("strength", f"must be above 0 and at most 1, got {strength:g}")
        if not 1 <= steps <= MAX_STEPS:
            raise InvalidInput("steps", f"must be 1…{MAX_STEPS}")
        scheduler = FlowMatchEulerDiscreteScheduler.from_config(dict(self.config))
        points = strength * np.linspace(1.0, 1 / steps, steps)
        scheduler.set_timesteps(sigmas=points.tolist(), mu=_shift(latents // self.patch**2, scheduler.config))
        return scheduler.timesteps.tolist(), scheduler.sigmas.tolist()

    def signal(self, sigma: float) -> float:
        """How much of x0 is in x = signal * x0 + sigma * noise."""
        return 1.0 - sigma

    def first_scale(self, sigma: float, unit_rule: bool) -> float:
        """What the first noise is multiplied by: a row without a picture to follow starts from noise alone."""
        return 1.0


def _shift(tokens: int, config: Any) -> float:
    """A line through the shifts of the smallest and the largest picture that the network was trained for."""
    slope = (config.max_shift - config.base_shift) / (config.max_image_seq_len - config.base_image_seq_len)
    return float(tokens * slope + (config.base_shift - slope * config.base_image_seq_len))
