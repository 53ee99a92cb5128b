"""LoRA adapters on the UNet: add them, read their parameters, save them as ordinary files."""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import StableDiffusionXLPipeline, UNet2DConditionModel
from family import BASE, load_family
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from torch import Tensor, nn
from train_base import rate_at
from workers import run_workers

ATTENTION = ["to_q", "to_k", "to_v", "to_out.0", "proj_in", "proj_out", "ff.net.0.proj", "ff.net.2"]
EVERYWHERE = [*ATTENTION, "conv1", "conv2", "time_emb_proj"]


@dataclass(frozen=True, slots=True)
class Budget:
    """A run ends at `steps` or after `minutes`, whichever comes first."""

    steps: int
    minutes: float
    batch: int
    rate: float
    workers: int


def add_budget(parser: argparse.ArgumentParser, steps: int, rate: float) -> None:
    """Let the command line change a budget."""
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--rate", type=float, default=rate)
    parser.add_argument("--workers", type=int, default=2)


def distil(work: Callable[..., None], name: str, rank: int, budget: Budget) -> None:
    """Run the workers of one adapter on the base: each is work(rank of the worker, family, parameters, budget)."""
    torch.set_num_threads(1)
    family = load_family(BASE)
    parameters = add(family.unet, name, rank, EVERYWHERE)
    run_workers(work, (family, parameters, budget), (family.unet,), budget.workers)


def add(unet: UNet2DConditionModel, name: str, rank: int, targets: list[str]) -> list[nn.Parameter]:
    """Add a fresh adapter, switch it on, and return its parameters; all else is frozen."""
    unet.requires_grad_(False)
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=targets, init_lora_weights="gaussian")
    unet.add_adapter(config, adapter_name=name)
    return [p for key, p in unet.named_parameters() if f".{name}." in key]


def save(unet: UNet2DConditionModel, name: str, path: Path) -> None:
    """Write one adapter in fp16 with the keys the stock pipeline reads."""
    layers = {k: v.half().contiguous() for k, v in get_peft_model_state_dict(unet, adapter_name=name).items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    StableDiffusionXLPipeline.save_lora_weights(path.parent, unet_lora_layers=layers, weight_name=path.name)
    path.chmod(0o644)


def fit(parameters: list[nn.Parameter], next_loss: Callable[[], Tensor], budget: Budget, leads: bool) -> None:
    """Train shared parameters until the budget is spent; the leading worker leaves their average in place."""
    optimiser = torch.optim.AdamW(parameters, budget.rate, betas=(0.9, 0.99), weight_decay=0.0)
    average = [p.detach().clone() for p in parameters]
    started, step, progress, mean_loss = time.monotonic(), 0, 0.0, 0.0
    while progress < 1:
        loss = next_loss()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimiser.param_groups[0]["lr"] = rate_at(progress, step * 4, budget.rate)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step += 1
        torch._foreach_lerp_(average, [p.detach() for p in parameters], 1 - min(0.98, step / (step + 10)))
        progress = max(step / budget.steps, (time.monotonic() - started) / 60 / budget.minutes)
        mean_loss += (loss.item() - mean_loss) * max(0.02, 1 / step)
        if leads and step % 20 == 0:
            print(f"{progress:6.1%} step {step} loss {mean_loss:.4f}", flush=True)
    if leads:
        with torch.no_grad():
            for live, mean in zip(parameters, average, strict=True):
                live.copy_(mean)
