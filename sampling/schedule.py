"""Which noise levels a row visits."""

from __future__ import annotations

import math
from collections.abc import Sequence

from core.errors import InvalidInput
from core.recipe import Sampler

TRAIN_STEPS = 1000
LCM_ORIGIN_STEPS = 50  # the grid that consistency models are distilled on
SMALLEST_ALPHA = 2.0**-24  # stands in for 0 where the schedule has zero terminal SNR, so that sigma stays finite


def timesteps_for(sampler: Sampler, steps: int, strength: float = 1.0) -> list[int]:
    """Exactly `steps` falling timesteps from 1000 * strength - 1; with strength 1 the first is 999.

    LCM stays on the grid that it was distilled on as long as that has enough points.

    Raises: InvalidInput when the grid below that start has fewer points than steps.
    Source: "Common Diffusion Noise Schedules and Sample Steps are Flawed" (trailing spacing); LCMScheduler's grid.
    """
    if not 0.0 < strength <= 1.0:
        raise InvalidInput("strength", f"must be above 0 and at most 1, got {strength:g}")
    if sampler is Sampler.LCM and 1 <= steps <= LCM_ORIGIN_STEPS * strength:
        grid = _lcm_grid(strength)
        return [grid[-1 - i * len(grid) // steps] for i in range(steps)]
    count = round(TRAIN_STEPS * strength)
    if not 1 <= steps <= count:
        raise InvalidInput("steps", f"must be 1…{count} from strength {strength:g}")
    return [round(count - i * count / steps) - 1 for i in range(steps)]


def sigmas_for(timesteps: Sequence[int], alphas_cumprod: Sequence[float]) -> list[float]:
    """Noise level of each timestep, then a final 0.

    Units: sigma is noise over signal, sqrt((1 - alpha) / alpha) of the cumulated alpha.
    """
    alphas = (max(alphas_cumprod[t], SMALLEST_ALPHA) for t in timesteps)
    return [math.sqrt((1.0 - alpha) / alpha) for alpha in alphas] + [0.0]


def _lcm_grid(strength: float) -> list[int]:
    stride = TRAIN_STEPS // LCM_ORIGIN_STEPS
    count = math.floor(LCM_ORIGIN_STEPS * strength + 1e-9)
    return [stride * i - 1 for i in range(1, count + 1)]
