"""A row's life beside the network: its first latents, and what each answer of the network makes of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from core.errors import InvalidInput
from core.recipe import Sampler
from sampling.flow import FlowSchedule
from sampling.model import Model, PoolName
from sampling.noise import row_generator
from sampling.rows import Row
from sampling.samplers import SAMPLERS, History, consistency_boundary
from sampling.schedule import Schedule


def begin(row: Row, model: Model, pool: PoolName) -> None:
    """Gives a row its schedule, generator and first latents.

    Raises: InvalidInput for a schedule or latents that do not fit.
    """
    _check(row, model)
    schedule, scale = model.schedules[pool], model.vae_scale
    shape = (model.latent_channels, row.bucket.height // scale, row.bucket.width // scale)
    row.timesteps, row.sigmas = schedule.visits(row.sampler, row.steps, row.strength, shape[1] * shape[2])
    row.generator = row_generator(row.seed)
    noise = torch.randn(shape, generator=row.generator)
    row.step_index, row.denoised = 0, None
    row.latents = _start(row, noise, schedule).to(model.device)


def _check(row: Row, model: Model) -> None:
    if row.sampler not in model.family.samplers:
        known = ", ".join(model.family.samplers)
        raise InvalidInput("sampler", f"{row.sampler} is not for this model; possible: {known}")
    if model.family.negatives and row.guidance_scale > 1 and row.negative is None:
        raise InvalidInput("negative_prompt", "guidance above 1 needs a negative embedding, also of an empty text")
    if not model.family.negatives and row.negative is not None:
        raise InvalidInput("negative_prompt", "this model reads none")


@torch.no_grad()
def advance(rows: Sequence[Row], estimates: Sequence[Tensor]) -> None:
    """Moves every row one step, rows of one sampler together. Shapes: an x0 estimate [C, h, w] for each row."""
    by_sampler: dict[Sampler, list[int]] = {}
    for i, row in enumerate(rows):
        by_sampler.setdefault(row.sampler, []).append(i)
    for sampler, places in by_sampler.items():
        _advance_alike(sampler, [rows[i] for i in places], torch.stack([estimates[i] for i in places]))


def _start(row: Row, noise: Tensor, schedule: Schedule | FlowSchedule) -> Tensor:
    sigma = row.sigmas[0]
    if row.init_latents is None:
        return noise * schedule.first_scale(sigma, SAMPLERS[row.sampler].unit_start)
    if row.init_latents.shape != noise.shape:
        given, wanted = tuple(row.init_latents.shape), tuple(noise.shape)
        raise InvalidInput("init_latents", f"shape {given}, this bucket has {wanted}")
    return row.init_latents.float().cpu() * schedule.signal(sigma) + noise * sigma


def _advance_alike(sampler: Sampler, rows: Sequence[Row], denoised: Tensor) -> None:
    rule = SAMPLERS[sampler]
    x = torch.stack([row.latents for row in rows])
    sigma = _column([row.sigma for row in rows], x)
    sigma_next = _column([row.sigmas[row.step_index + 1] for row in rows], x)
    if rule.consistency:
        timestep = _column([row.timesteps[row.step_index] for row in rows], x)
        denoised = consistency_boundary(x, denoised, sigma, timestep)
    history = _history(rows, denoised) if rule.needs_history else None
    noise = _noise(rows).to(x.device) if rule.needs_noise else None
    moved = rule.step(x, denoised, sigma, sigma_next, noise, history)
    for row, latents, estimate in zip(rows, moved, denoised, strict=True):
        row.latents, row.denoised = latents, estimate
        row.step_index += 1


def _history(rows: Sequence[Row], denoised: Tensor) -> History:
    before = [now if row.denoised is None else row.denoised for row, now in zip(rows, denoised, strict=True)]
    return History(torch.stack(before), _column([row.last_sigma for row in rows], denoised))


def _noise(rows: Sequence[Row]) -> Tensor:
    """Fresh noise from each row's own generator. Shapes: [n, C, h, w]."""
    return torch.stack([torch.randn(row.latents.shape, generator=row.generator) for row in rows])


def _column(numbers: Sequence[float], like: Tensor) -> Tensor:
    """One number a row. Shapes: [n, 1, 1, 1] fp32."""
    return torch.tensor(numbers, dtype=torch.float32, device=like.device).view(-1, 1, 1, 1)
