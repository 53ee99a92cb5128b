"""Which noise levels a row visits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from core.errors import InvalidInput
from core.recipe import Sampler

TRAIN_STEPS = 1000
LCM_ORIGIN_STEPS = 50  # the grid that consistency models are distilled on
SMALLEST_ALPHA = 2.0**-24  # stands in for 0 where the schedule has zero terminal SNR, so that sigma stays finite


class Spacing(StrEnum):
    """Where on the training grid the timesteps lie, as scheduler configs name it."""

    TRAILING = "trailing"
    LEADING = "leading"
    LINSPACE = "linspace"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The noise schedule that one network was trained on, and how it is to be sampled, as its folder says.

    Source: diffusers' schedulers, whose timesteps and sigmas these are; "Common Diffusion Noise Schedules and Sample
    Steps are Flawed" (Lin et al. 2023), table 2, for the spacings.
    """

    alphas_cumprod: tuple[float, ...]
    predicts_v: bool
    spacing: Spacing = Spacing.TRAILING
    offset: int = 0

    def visits(self, sampler: Sampler, steps: int, strength: float, latents: int) -> tuple[list[float], list[float]]:
        """Timesteps, and the noise level of each, then a final 0; the same for pictures of any number of latents.

        Raises: InvalidInput as timesteps_for.
        """
        timesteps = timesteps_for(sampler, steps, strength, self.spacing, self.offset)
        return timesteps, sigmas_for(timesteps, self.alphas_cumprod)

    def signal(self, sigma: float) -> float:
        """How much of x0 is in x = signal * x0 + sigma * noise."""
        return 1.0

    def first_scale(self, sigma: float, unit_rule: bool) -> float:
        """What the first noise is multiplied by, to unit variance as the network sees it or to the level itself;
        leading spacing starts below the last level."""
        return math.sqrt(1 + sigma**2) if unit_rule or self.spacing is Spacing.LEADING else sigma


def timesteps_for(
    sampler: Sampler, steps: int, strength: float = 1.0, spacing: Spacing = Spacing.TRAILING, offset: int = 0
) -> list[float]:
    """Exactly `steps` falling timesteps; trailing ones begin at 1000 * strength - 1.

    LCM stays on the grid that it was distilled on as long as that has enough points, whatever the spacing.

    Raises: InvalidInput when the grid below that start has fewer points than steps.
    """
    if not 0.0 < strength <= 1.0:
        raise InvalidInput("strength", f"must be above 0 and at most 1, got {strength:g}")
    if sampler is Sampler.LCM and 1 <= steps <= LCM_ORIGIN_STEPS * strength:
        grid = _lcm_grid(strength)
        return [grid[-1 - i * len(grid) // steps] for i in range(steps)]
    count = round(TRAIN_STEPS * strength)
    if not 1 <= steps <= count:
        raise InvalidInput("steps", f"must be 1…{count} from strength {strength:g}")
    if spacing is Spacing.TRAILING or sampler is Sampler.LCM:
        return [round(count - i * count / steps) - 1 for i in range(steps)]
    skipped = 1 if sampler is Sampler.DPMPP_2M and steps < count else 0  # it leaves out the lowest point
    falling = range(steps - 1 + skipped, skipped - 1, -1)
    if spacing is Spacing.LEADING:
        stride = count // (steps + skipped)
        return [min(stride * i + offset, TRAIN_STEPS - 1) for i in falling]
    last = max(1, steps - 1 + skipped)
    points = [count - 1.0] if steps == 1 else [(count - 1) * i / last for i in falling]
    return points if sampler in (Sampler.EULER, Sampler.EULER_A) else [round(point) for point in points]


def sigmas_for(timesteps: Sequence[float], alphas_cumprod: Sequence[float]) -> list[float]:
    """Noise level of each timestep, between two of the grid in a straight line, then a final 0.

    Units: sigma is noise over signal, sqrt((1 - alpha) / alpha) of the cumulated alpha.
    """

    def level(t: int) -> float:
        alpha = max(alphas_cumprod[t], SMALLEST_ALPHA)
        return math.sqrt((1.0 - alpha) / alpha)

    below = [math.floor(t) for t in timesteps]
    parts = [t - low for t, low in zip(timesteps, below, strict=True)]
    return [
        level(low) if part == 0 else (1 - part) * level(low) + part * level(low + 1)
        for low, part in zip(below, parts, strict=True)
    ] + [0.0]


def _lcm_grid(strength: float) -> list[int]:
    stride = TRAIN_STEPS // LCM_ORIGIN_STEPS
    count = math.floor(LCM_ORIGIN_STEPS * strength + 1e-9)
    return [stride * i - 1 for i in range(1, count + 1)]
