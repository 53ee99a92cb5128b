"""LoRA files for tests, in every layout that trainers write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sampling.lora import LoraLayer
from sampling.lora_names import TEXT, TEXT_2
from sampling.model import Model

Layers = Mapping[str, LoraLayer]


def random_layers(shapes: Mapping[str, tuple[int, ...]], names: list[str], rank: int, seed: int) -> dict[str, Tensor]:
    """`down` and `up` of some layers, by name and half. Shapes: as the file has them."""
    rng = torch.Generator().manual_seed(seed)
    made = {}
    for name in names:
        out, inside, *kernel = shapes[name]
        made[f"{name}|down"] = torch.randn(rank, inside, *kernel, generator=rng) / (inside * max(1, len(kernel))) ** 0.5
        made[f"{name}|up"] = torch.randn(out, rank, *[1] * len(kernel), generator=rng) * 0.1
    return made


def text_style(model: Model, path: Path, seed: int = 0, rank: int = 4, strength: float = 5.0) -> Path:
    """A style that acts on both text encoders alone, in PEFT's layout."""
    tensors = {}
    for component in (TEXT, TEXT_2):
        shapes = model.networks().shapes[component]
        names = [name for name in shapes if "q_proj" in name or "fc1" in name]
        for key, tensor in random_layers(shapes, names, rank, seed).items():
            name, half = key.split("|")
            kind, factor = ("lora_A", 1.0) if half == "down" else ("lora_B", strength)
            tensors[f"{component}.{name}.{kind}.weight"] = tensor * factor
    save_file(tensors, path)
    return path


def changed(source: Path, path: Path, factor: float) -> Path:
    """The same style with another strength, in a file of the same size."""
    save_file({key: tensor * factor if "lora_B" in key else tensor for key, tensor in load_file(source).items()}, path)
    return path
