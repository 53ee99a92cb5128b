"""LoRA adapters on the UNet: add them, read their parameters, save them as ordinary files."""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from diffusers import StableDiffusionXLPipeline, UNet2DConditionModel
from family import BASE, Family, load_family
from peft import LoraConfig, inject_adapter_in_model
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor, nn
from train_base import rate_at
from transformers import CLIPTextModel
from workers import run_workers

ATTENTION = ["to_q", "to_k", "to_v", "to_out.0", "proj_in", "proj_out", "ff.net.0.proj", "ff.net.2"]
TEXT_ATTENTION = ["q_proj", "k_proj", "v_proj", "out_proj"]
BLOCKS = [*ATTENTION, "conv1", "conv2", "time_emb_proj"]
EVERYWHERE = [*BLOCKS, "conv_in", "conv_out", "conv_shortcut", "conv"]  # colours are mixed at the network's ends


@dataclass(frozen=True, slots=True)
class Budget:
    """A run ends at `steps` or after `minutes`, whichever comes first."""

    steps: int
    minutes: float
    batch: int
    rate: float
    workers: int
    start: Path | None


def add_budget(parser: argparse.ArgumentParser, steps: int, rate: float) -> None:
    """Let the command line change a budget."""
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--batch", type=int, default=12)
    parser.add_argument("--rate", type=float, default=rate)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--start", type=Path, help="adapter to go on from, such as that of the version before")


def distil(work: Callable[..., None], name: str, rank: int, budget: Budget) -> None:
    """Run the workers of one adapter on the base: each is work(rank of the worker, family, parameters, budget)."""
    torch.set_num_threads(1)
    family = load_family(BASE)
    parameters = add(family.unet, name, rank, BLOCKS, budget.start)
    run_workers(work, (family, parameters, budget), (family.unet,), budget.workers)


def add(
    unet: UNet2DConditionModel, name: str, rank: int, targets: list[str], start: Path | None = None
) -> list[nn.Parameter]:
    """Add an adapter, switch it on, and return its parameters; all else is frozen.

    What a file to start from has of its layers begins as it is there. Raises: RuntimeError for another rank.
    """
    unet.requires_grad_(False)
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=targets, init_lora_weights="gaussian")
    unet.add_adapter(config, adapter_name=name)
    if start is not None:
        tensors = {key.removeprefix("unet."): tensor for key, tensor in load_file(start).items()}
        set_peft_model_state_dict(unet, tensors, adapter_name=name)
    return own(unet, name)


def add_text(text: CLIPTextModel, name: str, rank: int) -> list[nn.Parameter]:
    """Add a fresh adapter to the attention of a text encoder, and return its parameters; all else is frozen."""
    text.requires_grad_(False)
    config = LoraConfig(r=rank, lora_alpha=rank, target_modules=TEXT_ATTENTION, init_lora_weights="gaussian")
    inject_adapter_in_model(config, text, name)
    return own(text, name)


def own(network: nn.Module, name: str) -> list[nn.Parameter]:
    """Return the parameters of one adapter, switched on."""
    parameters = _of(network, name)
    for parameter in parameters:
        parameter.requires_grad_(True)
    return parameters


def save(family: Family, name: str, path: Path) -> None:
    """Write one adapter of all networks that have it in fp16, with the keys the stock pipeline reads."""
    networks = {"unet": family.unet, "text_encoder": family.text_1, "text_encoder_2": family.text_2}
    layers = {f"{key}_lora_layers": _layers(network, name) for key, network in networks.items() if _of(network, name)}
    path.parent.mkdir(parents=True, exist_ok=True)
    StableDiffusionXLPipeline.save_lora_weights(path.parent, weight_name=path.name, **layers)
    path.chmod(0o644)


def _of(network: nn.Module, name: str) -> list[nn.Parameter]:
    return [p for key, p in network.named_parameters() if f".{name}." in key]


def _layers(network: nn.Module, name: str) -> dict[str, Tensor]:
    return {k: v.half().contiguous() for k, v in get_peft_model_state_dict(network, adapter_name=name).items()}


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
