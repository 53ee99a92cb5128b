"""Distil the base into the few-step preview adapter: latent consistency with the guidance folded in.

The teacher is the base itself with the adapter off, guided, taking one deterministic step of a sixteenth of the
schedule. The student is the base with the adapter on; its clean picture at the noisier time must equal its own
(held still) clean picture at the time the teacher reached.
"""

import argparse

import adapters
import torch
from data import icons
from family import WORK, Condition, Family, alphas_cumprod, denoise, encode, signal_noise
from pool import Batch, Pool
from torch import Tensor, nn

NAME = "preview_lcm"
OUTPUT = WORK / "preview_lcm.safetensors"
_RANK = 48
_GUIDANCE = 1.5
_STRIDE = 62
_FIRST_STEP_SHARE = 0.2
_TIMESTEP_SCALING = 10.0
_SIGMA_DATA = 0.5
_OBJECT_WEIGHT = 3.0


def clean(family: Family, latents: Tensor, timesteps: Tensor, condition: Condition, alphas: Tensor) -> Tensor:
    """Return the clean latents the network sees, with the LCM boundary: at time zero the input itself."""
    signal, noise_level = signal_noise(alphas, timesteps)
    guess = signal * latents - noise_level * denoise(family.unet, latents, timesteps, condition)
    scaled = (timesteps.float() * _TIMESTEP_SCALING).view(-1, 1, 1, 1)
    skip = _SIGMA_DATA**2 / (scaled**2 + _SIGMA_DATA**2)
    out = scaled / (scaled**2 + _SIGMA_DATA**2).sqrt()
    return skip * latents + out * guess


@torch.no_grad()
def teacher_step(
    family: Family, noisy: Tensor, times: tuple[Tensor, Tensor], both: Condition, guidance: float, alphas: Tensor
) -> Tensor:
    """Take the guided teacher's deterministic step between two times; `both` holds empty captions, then captions."""
    start, end = times
    velocity = denoise(family.unet, noisy.repeat(2, 1, 1, 1), start.repeat(2), both)
    plain, captioned = velocity.chunk(2)
    velocity = plain + guidance * (captioned - plain)
    signal, noise_level = signal_noise(alphas, start)
    latents, noise = signal * noisy - noise_level * velocity, noise_level * noisy + signal * velocity
    signal, noise_level = signal_noise(alphas, end)
    return signal * latents + noise_level * noise


def loss_of(family: Family, batch: Batch, alphas: Tensor, guidance: float) -> Tensor:
    """Return the consistency loss of one batch (pseudo-Huber, weighted inside the objects)."""
    count = len(batch.captions)
    with torch.no_grad():
        both = encode(family, [""] * count + batch.captions, batch.size_hw)
    condition = Condition(both.hidden[count:], both.pooled[count:], both.time_ids[count:])
    start = torch.randint(1, len(alphas), (count,))
    start = torch.where(torch.rand(count) < _FIRST_STEP_SHARE, len(alphas) - 1, start)  # every preview starts there
    end = (start - _STRIDE).clamp(min=0)
    signal, noise_level = signal_noise(alphas, start)
    noisy = signal * batch.latents + noise_level * torch.randn_like(batch.latents)
    family.unet.disable_adapters()
    reached = teacher_step(family, noisy, (start, end), both, guidance, alphas)
    family.unet.enable_adapters()
    with torch.no_grad():
        target = clean(family, reached, end, condition, alphas)
    error = clean(family, noisy, start, condition, alphas) - target
    weight = 1 + (_OBJECT_WEIGHT - 1) * batch.mask
    return (weight * ((error.square() + 0.03**2).sqrt() - 0.03)).mean()


def work(rank: int, family: Family, parameters: list[nn.Parameter], budget: adapters.Budget) -> None:
    """Run one worker; see train_base for why there are two. The leading one writes the adapter."""
    torch.set_num_threads(1)
    torch.manual_seed(20 + rank)
    alphas, pool = alphas_cumprod(), Pool(family, icons("flat"), capacity=1600, seed=22 + rank)

    def next_loss() -> Tensor:
        return loss_of(family, pool.draw(budget.batch), alphas, _GUIDANCE)

    adapters.fit(parameters, next_loss, budget, leads=rank == 0)
    if rank == 0:
        adapters.save(family, NAME, OUTPUT)


def main() -> None:
    """Read the budget and distil."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    adapters.add_budget(parser, steps=600, rate=1.5e-4)
    budget = adapters.Budget(**vars(parser.parse_args()))
    adapters.distil(work, NAME, _RANK, budget)


if __name__ == "__main__":
    main()
