"""Timesteps and noise levels, against the stock schedulers' trailing spacing."""

from __future__ import annotations

from itertools import pairwise

import pytest
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler, LCMScheduler

from core.errors import InvalidInput
from core.recipe import Sampler
from sampling.model import Model
from sampling.schedule import Spacing, sigmas_for, timesteps_for

STOCK = {
    Sampler.EULER: EulerDiscreteScheduler,
    Sampler.EULER_A: EulerDiscreteScheduler,
    Sampler.DPMPP_2M: DPMSolverMultistepScheduler,
    Sampler.DDIM: DDIMScheduler,
    Sampler.LCM: LCMScheduler,
}


@pytest.mark.parametrize("sampler", Sampler)
def test_timesteps_start_at_999_for_any_step_count(sampler: Sampler) -> None:
    most = 50 if sampler is Sampler.LCM else 100
    for steps in range(1, most + 1):
        timesteps = timesteps_for(sampler, steps)
        assert (timesteps[0], len(timesteps)) == (999, steps)
        assert all(later < earlier for earlier, later in pairwise(timesteps))


@pytest.mark.parametrize("sampler", Sampler)
@pytest.mark.parametrize("steps", [1, 2, 4, 7, 8, 20, 25, 30, 50])
def test_timesteps_equal_the_stock_scheduler(sampler: Sampler, steps: int) -> None:
    stock = STOCK[sampler](timestep_spacing="trailing")
    stock.set_timesteps(steps)
    assert timesteps_for(sampler, steps) == [int(t) for t in stock.timesteps]


@pytest.mark.parametrize("sampler", [Sampler.EULER, Sampler.EULER_A, Sampler.DPMPP_2M, Sampler.DDIM])
@pytest.mark.parametrize("spacing", Spacing)
def test_timesteps_equal_the_stock_scheduler_in_every_spacing(sampler: Sampler, spacing: Spacing) -> None:
    """Published bases of SDXL are leading with an offset of 1."""
    for steps in (2, 4, 7, 20, 25, 50):
        stock = STOCK[sampler](timestep_spacing=spacing.value, steps_offset=1)
        stock.set_timesteps(steps)
        assert timesteps_for(sampler, steps, 1.0, spacing, 1) == pytest.approx(stock.timesteps.tolist(), abs=1e-3)


@pytest.mark.parametrize("spacing", Spacing)
def test_single_step_starts_where_all_is_noise_unless_leading(spacing: Spacing) -> None:
    """Leading spacing is for many steps; the others must not begin a single step near the picture."""
    first = timesteps_for(Sampler.EULER, 1, 1.0, spacing, 1)[0]
    assert first == (1 if spacing is Spacing.LEADING else 999)


@pytest.mark.parametrize("sampler", Sampler)
@pytest.mark.parametrize("strength", [0.1, 0.35, 0.58, 0.6, 0.999])
def test_timesteps_keep_the_step_count_when_strength_is_below_one(sampler: Sampler, strength: float) -> None:
    steps = 5 if sampler is Sampler.LCM else 40
    timesteps = timesteps_for(sampler, steps, strength)
    assert len(timesteps) == len(set(timesteps)) == steps
    stride = 20 if sampler is Sampler.LCM else 1
    assert 1000 * strength - stride - 1 <= timesteps[0] <= 1000 * strength


@pytest.mark.parametrize(
    ("sampler", "steps", "strength"),
    [(Sampler.EULER, 0, 1.0), (Sampler.EULER, -1, 1.0), (Sampler.LCM, 1001, 1.0), (Sampler.DDIM, 101, 0.1)],
)
def test_timesteps_refuse_what_the_grid_cannot_hold(sampler: Sampler, steps: int, strength: float) -> None:
    with pytest.raises(InvalidInput, match="steps"):
        timesteps_for(sampler, steps, strength)


def test_lcm_leaves_its_grid_only_when_it_asks_for_more_steps_than_that_has() -> None:
    assert timesteps_for(Sampler.LCM, 25, 0.5)[:2] == [499, 479]
    finer = timesteps_for(Sampler.LCM, 100, 0.5)
    assert finer[0] == 499 and len(set(finer)) == 100


@pytest.mark.parametrize("strength", [0.0, -0.5, 1.5, float("nan")])
def test_timesteps_refuse_a_strength_out_of_bounds(strength: float) -> None:
    with pytest.raises(InvalidInput, match="strength"):
        timesteps_for(Sampler.EULER, 4, strength)


def test_sigmas_equal_the_stock_scheduler_and_end_at_zero(model: Model) -> None:
    stock = EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", timestep_spacing="trailing"
    )
    stock.set_timesteps(8)
    assert sigmas_for(timesteps_for(Sampler.EULER, 8), model.schedules["final"].alphas_cumprod) == pytest.approx(
        stock.sigmas.tolist(), rel=1e-5
    )


def test_sigmas_stay_finite_when_the_last_alpha_is_zero() -> None:
    assert sigmas_for([1], [0.9, 0.0]) == pytest.approx([4096.0, 0.0], rel=1e-6)
