"""Each sampler through the step loop against the stock scheduler, on one smooth network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DPMSolverMultistepScheduler,
    EulerAncestralDiscreteScheduler,
    EulerDiscreteScheduler,
    LCMScheduler,
)
from torch import Tensor

from core.recipe import Sampler
from sampling.denoiser import Denoiser
from sampling.loop import StepLoop
from sampling.model import Model
from sampling.noise import row_generator
from sampling.rows import Row
from sampling.samplers import SAMPLERS
from sampling.schedule import Spacing
from tests.sampling.conftest import Clock, NoStyles, SmallUNet, embedding_of, row_of

TOLERANCE = 1e-4
STOCK: dict[Sampler, Any] = {
    Sampler.EULER: EulerDiscreteScheduler,
    Sampler.EULER_A: EulerAncestralDiscreteScheduler,
    Sampler.DPMPP_2M: DPMSolverMultistepScheduler,
    Sampler.DDIM: DDIMScheduler,
    Sampler.LCM: LCMScheduler,
}


def run(model: Model, rows: list[Row], unet: Any = None) -> list[Tensor]:
    given = model if unet is None else replace(model, network_final=unet)
    loop = StepLoop(Denoiser(given, "final"), NoStyles(), 64, Clock())  # type: ignore[arg-type]
    for row in rows:
        loop.join(row)
    while loop.rows:
        assert not loop.step().failed
    return [row.latents for row in rows]


def scheduled(model: Model, **changes: Any) -> Model:
    return replace(model, schedules={"final": replace(model.schedules["final"], **changes)})


def run_stock(
    sampler: Sampler, unet: SmallUNet, steps: int, seed: int, prediction_type: str, spacing: Spacing
) -> Tensor:
    """The loop of a stock pipeline with one generator."""
    options = {} if sampler not in (Sampler.DDIM, Sampler.LCM) else {"clip_sample": False}
    scheduler = STOCK[sampler](
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        timestep_spacing=spacing.value,
        prediction_type=prediction_type,
        **options,
    )
    scheduler.set_timesteps(steps)
    generator = row_generator(seed)
    x = torch.randn((1, 8, 16, 16), generator=generator) * scheduler.init_noise_sigma
    extra = {"generator": generator} if SAMPLERS[sampler].needs_noise else {}
    for t in scheduler.timesteps:
        sample = scheduler.scale_model_input(x, t)
        output = unet(sample, t[None].float(), encoder_hidden_states=embedding_of(0.1).prompt_embeds)[0]
        x = scheduler.step(output, t, x, **extra, return_dict=False)[0]
    latents: Tensor = x[0]
    return latents


@pytest.mark.parametrize("prediction_type", ["v_prediction", "epsilon"])
@pytest.mark.parametrize("steps", [1, 2, 4, 10, 20])
@pytest.mark.parametrize("sampler", Sampler)
def test_sampler_equals_the_stock_scheduler(
    small_model: Model, small_unet: SmallUNet, sampler: Sampler, steps: int, prediction_type: str
) -> None:
    model = scheduled(small_model, predicts_v=prediction_type == "v_prediction", spacing=Spacing.TRAILING)
    ours = run(model, [row_of(sampler=sampler, steps=steps, seed=11)])[0]
    stock = run_stock(sampler, small_unet, steps, 11, prediction_type, Spacing.TRAILING)
    scale = max(1.0, float(stock.abs().max()))
    assert float((ours - stock).abs().max()) <= TOLERANCE * scale


@pytest.mark.parametrize("spacing", [Spacing.LEADING, Spacing.LINSPACE])
@pytest.mark.parametrize("sampler", [Sampler.EULER, Sampler.EULER_A])
def test_sampler_equals_the_stock_scheduler_in_other_spacings(
    small_model: Model, small_unet: SmallUNet, sampler: Sampler, spacing: Spacing
) -> None:
    """Also where it starts: below the last noise level with leading spacing."""
    model = scheduled(small_model, predicts_v=False, spacing=spacing)
    ours = run(model, [row_of(sampler=sampler, steps=10, seed=11)])[0]
    stock = run_stock(sampler, small_unet, 10, 11, "epsilon", spacing)
    torch.testing.assert_close(ours, stock, atol=TOLERANCE * max(1.0, float(stock.abs().max())), rtol=0)


@pytest.mark.parametrize("sampler", Sampler)
def test_sampler_ends_at_the_estimate_when_it_takes_one_step(small_model: Model, sampler: Sampler) -> None:
    row = row_of(sampler=sampler, steps=1)
    latents = run(small_model, [row])[0]
    assert row.denoised is not None
    torch.testing.assert_close(latents, row.denoised, atol=1e-4, rtol=0)


@pytest.mark.parametrize("sampler", Sampler)
def test_sampler_follows_given_latents_when_strength_is_low(small_model: Model, sampler: Sampler) -> None:
    """The first x is init + sigma * the seed's own noise; exactly the asked steps are taken."""
    init = torch.full((8, 16, 16), 0.5)
    row = row_of(sampler=sampler, steps=3, strength=0.4, init_latents=init)
    denoiser = Denoiser(small_model, "final")
    denoiser.prepare(row)
    noise = torch.randn((8, 16, 16), generator=row_generator(row.seed))
    torch.testing.assert_close(row.latents, init + row.sigmas[0] * noise)
    assert len(row.timesteps) == 3
    assert row.timesteps[0] == 399


@pytest.mark.parametrize("sampler", [s for s in Sampler if SAMPLERS[s].needs_noise])
def test_sampler_draws_from_its_own_generator_when_batched(small_model: Model, sampler: Sampler) -> None:
    def rows() -> list[Row]:
        return [row_of(str(seed), sampler=sampler, seed=seed, steps=3 + seed) for seed in range(4)]

    together = run(small_model, rows())
    alone = [run(small_model, [row])[0] for row in rows()]
    for ours, theirs in zip(together, alone, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert not torch.allclose(together[0], together[1])
