"""SDXL at its full size, or much smaller for a rehearsal, with random weights made where they are used.

Random weights change neither speed nor memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_tiny import AutoencoderTiny
from safetensors.torch import save_file
from transformers import CLIPTokenizer

from core.profile import Bucket, Limits, ModelProfile, Pool
from core.recipe import Sampler
from sampling.families import SDXL_FAMILY
from sampling.layout import SDXL, TOKENIZERS, Part, read_json
from sampling.model import Model, schedule_of
from sampling.slots import layer_shapes
from sampling.text import Text, TextTower
from sampling.tuning import Compile, Tuning
from sampling.weights import empty

SMALL: Mapping[str, Mapping[str, Any]] = {
    "unet": {
        "block_out_channels": [32, 64, 64],
        "attention_head_dim": [2, 4, 4],
        "transformer_layers_per_block": [1, 1, 2],
        "cross_attention_dim": 128,
        "projection_class_embeddings_input_dim": 64 + 6 * 256,
    },
    "vae": {"block_out_channels": [32, 32, 32, 32], "layers_per_block": 1},
    "text_encoder": {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": 2},
    "text_encoder_2": {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "projection_dim": 64,
    },
}


@dataclass(frozen=True, slots=True)
class Scale:
    """What is run. Units: sides in pixels; rank of the styles."""

    small_side: int
    large_side: int
    step_rows: tuple[int, ...]
    batches: tuple[int, ...]
    steps: int
    rank: int
    rounds: int


FULL = Scale(512, 1024, (1, 2, 4, 8), (1, 2, 4, 8, 16), 30, 32, 10)
REHEARSAL = Scale(64, 128, (1, 2), (1, 2), 3, 8, 2)


def random_model(device: torch.device, dtype: torch.dtype, scale: Scale) -> Model:
    """Both pools on one UNet; previews are shown by a small decoder."""
    torch.manual_seed(0)
    small = scale is not FULL
    parts = {name: _network(name, device, dtype, small) for name in SMALL}
    with torch.device(device):
        tiny = AutoencoderTiny(scaling_factor=1.0).to(dtype).eval().requires_grad_(False)
    first, second = (CLIPTokenizer.from_pretrained(SDXL / name, local_files_only=True) for name in TOKENIZERS)
    towers = TextTower(first, parts["text_encoder"]), TextTower(second, parts["text_encoder_2"])
    text = Text(towers, "random", zero_empty=True)
    schedule = schedule_of(read_json(SDXL / "scheduler" / "scheduler_config.json"), SDXL_FAMILY)
    name = str(dtype).removeprefix("torch.")
    return Model(
        profile=_profile(scale),
        family=SDXL_FAMILY,
        device=device,
        dtype=dtype,
        texts={"preview": text, "final": text},
        schedules={"preview": schedule, "final": schedule},
        network_preview=parts["unet"],
        network_final=parts["unet"],
        vae=parts["vae"],
        vae_preview=tiny,
        latent_channels=4,
        vae_scale=8,
        tuning=Tuning(dtype=name, compile=Compile.OFF),
    )


def write_styles(folder: Path, unet: torch.nn.Module, count: int, rank: int) -> dict[str, Path]:
    """LoRAs on all attention layers, in PEFT's layout; by the style's id."""
    paths = {f"style-{i}": folder / f"style-{i}.safetensors" for i in range(count)}
    shapes = {name: shape for name, shape in layer_shapes(unet).items() if ".attn" in name and len(shape) == 2}
    for path in paths.values():
        tensors = {}
        for name, (out, inner) in shapes.items():
            tensors[f"unet.{name}.lora_A.weight"] = torch.randn(rank, inner).mul_(0.01).bfloat16()
            tensors[f"unet.{name}.lora_B.weight"] = torch.randn(out, rank).mul_(0.01).bfloat16()
        save_file(tensors, path)
    return paths


def _profile(scale: Scale) -> ModelProfile:
    sizes = tuple(Bucket(side, side) for side in (scale.large_side, scale.small_side))
    final = Pool(Sampler.EULER, scale.steps, 5.0, sizes)
    preview = Pool(Sampler.EULER_A, 1, 0.0, sizes[1:])
    return ModelProfile("gpu-check", "random", preview, final, Limits(max_side=scale.large_side))


def _network(name: str, device: torch.device, dtype: torch.dtype, small: bool) -> Any:
    config = read_json(SDXL / name / "config.json") | dict(SMALL[name] if small else {})
    network = empty(Part(name, config, ())).to(dtype).to_empty(device=device)
    for weight in network.parameters():
        _fill(weight.data)
    for name, buffer in network.named_buffers():
        assert name.endswith("position_ids")  # the one buffer of these networks
        buffer.copy_(torch.arange(buffer.shape[-1], device=device).expand(buffer.shape))
    for name, weight in network.named_parameters():
        if name.endswith("bias"):
            weight.data.zero_()
    network.to(memory_format=torch.channels_last)
    return network.eval().requires_grad_(False)


def _fill(weight: torch.Tensor) -> None:
    """Matrices that keep the size of what passes through them, and norms of 1."""
    if weight.ndim < 2:
        weight.fill_(1.0)
    else:
        weight.normal_(0, 1 / math.sqrt(math.prod(weight.shape[1:])))
