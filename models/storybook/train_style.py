"""Train one style adapter: the base's objects and backgrounds, drawn another way, with the same captions.

A third of the batches run with the preview adapter on and at its four timesteps, so that a style also holds in
few-step previews.
"""

import argparse
from random import Random

import adapters
import distil_lcm
import torch
from data import icons
from family import BASE, WORK, Family, alphas_cumprod, encode, load_family
from pool import Batch, Pool
from safetensors.torch import load_file
from styling import STYLES
from torch import Tensor, nn
from train_base import some_left_out, velocity_loss
from workers import run_workers

_RANK, _TEXT_RANK = 16, 4
_WITH_TEXT = ("neon",)  # its words take other colours too: their encoders have an adapter of their own
_PREVIEW_SHARE = 0.3
_RENEWED = 4  # scenes each step
_PREVIEW_TIMESTEPS = (999, 759, 519, 279)


def loss_of(family: Family, batch: Batch, timesteps: Tensor, alphas: Tensor, rng: Random, with_text: bool) -> Tensor:
    """Return the base's loss of one batch; the text encoders stay as they are unless the style acts on them."""
    with torch.set_grad_enabled(with_text):
        condition = encode(family, some_left_out(batch.captions, rng), batch.size_hw)
    return velocity_loss(family, batch, timesteps, condition, alphas)


def choose(family: Family, style: str, preview: bool, count: int) -> Tensor:
    """Switch on the adapters of one batch and return its timesteps."""
    family.unet.set_adapters([style, distil_lcm.NAME] if preview else [style])
    for key, parameter in family.unet.named_parameters():
        parameter.requires_grad_(f".{style}." in key)
    if preview:
        return torch.tensor(_PREVIEW_TIMESTEPS)[torch.randint(0, len(_PREVIEW_TIMESTEPS), (count,))]
    return torch.randint(0, 1000, (count,))


def work(rank: int, style: str, family: Family, parameters: list[nn.Parameter], budget: adapters.Budget) -> None:
    """Run one worker; see train_base for why there are two. The leading one writes the style."""
    torch.set_num_threads(1)
    torch.manual_seed(30 + rank)
    alphas, rng = alphas_cumprod(), Random(31 + rank)
    pool = Pool(family, icons(style), capacity=1600, seed=33 + rank, style=style)

    def next_loss() -> Tensor:
        pool.renew(_RENEWED)
        timesteps = choose(family, style, rng.random() < _PREVIEW_SHARE, budget.batch)
        return loss_of(family, pool.draw(budget.batch), timesteps, alphas, rng, style in _WITH_TEXT)

    adapters.fit(parameters, next_loss, budget, leads=rank == 0)
    if rank == 0:
        adapters.save(family, style, WORK / "styles" / f"{style}.safetensors")


def main() -> None:
    """Read the budget and train the style."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("style", choices=STYLES[1:])
    adapters.add_budget(parser, steps=400, rate=2e-3)
    options = vars(parser.parse_args())
    style, budget = options.pop("style"), adapters.Budget(**options)
    torch.set_num_threads(1)
    family = load_family(BASE)
    family.unet.load_lora_adapter(load_file(distil_lcm.OUTPUT), prefix="unet", adapter_name=distil_lcm.NAME)
    parameters = adapters.add(family.unet, style, _RANK, adapters.EVERYWHERE, budget.start)
    if style in _WITH_TEXT:
        for text in (family.text_1, family.text_2):
            parameters += adapters.add_text(text, style, _TEXT_RANK)
    modules = (family.unet, family.text_1, family.text_2)
    run_workers(work, (style, family, parameters, budget), modules, budget.workers)


if __name__ == "__main__":
    main()
