"""SDXL's true architecture with random weights, written tensor by tensor in the layouts that people download."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_tiny import AutoencoderTiny
from torch import Tensor

from benchmarks.original_layout import original_text, original_text_2, original_unet, original_vae
from sampling.layout import NETWORKS, SDXL, part_of_config
from sampling.slots import layer_shapes
from sampling.weights import empty

Shapes = Mapping[str, tuple[int, ...]]
SHARD_BYTES = 2 * 10**9
BYTES = 2  # of a bfloat16
STEMS = {"unet": "diffusion_pytorch_model", "transformer": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model"}
VARIANT = "fp16"
RANK = 8
BLOCK = 1 << 22  # random numbers are drawn once and repeated from other places: drawing is what takes the time


def networks() -> dict[str, torch.nn.Module]:
    """All four without memory for their weights."""
    return {name: empty(part_of_config(SDXL, name)) for name in NETWORKS}


def parameters(network: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in network.parameters())


def write_published(folder: Path, shards: bool) -> None:
    """As the hub has it, of the variant fp16, the UNet in shards where asked for."""
    shutil.copytree(SDXL, folder)
    for name, network in networks().items():
        shapes = {key: tuple(tensor.shape) for key, tensor in network.state_dict().items()}
        stem = STEMS.get(name, "model")
        if shards and name == "unet":
            write_shards(folder / name, stem, shapes, f".{VARIANT}")
        else:
            write(folder / name / f"{stem}.{VARIANT}.safetensors", shapes)


def write_small_decoder(folder: Path) -> None:
    """Of the architecture of TAESDXL."""
    torch.manual_seed(0)
    AutoencoderTiny(scaling_factor=1.0).save_pretrained(folder)


def write_adapter(path: Path) -> None:
    """A LoRA of rank 8 on all attention layers of the UNet, in PEFT's layout."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (out, inner, *_) in layer_shapes(networks()["unet"]).items():
        if ".attn" in name:
            shapes[f"unet.{name}.lora_A.weight"] = (RANK, inner)
            shapes[f"unet.{name}.lora_B.weight"] = (out, RANK)
    write(path, shapes, scale=0.01)


def write_shards(folder: Path, stem: str, shapes: Shapes, variant: str = "") -> None:
    """variant: as it stands in the names of files, with its dot."""
    groups: list[dict[str, tuple[int, ...]]] = [{}]
    room = SHARD_BYTES
    for name, shape in shapes.items():
        size = BYTES * math.prod(shape)
        if size > room:
            groups.append({})
            room = SHARD_BYTES
        groups[-1][name] = shape
        room -= size
    files = [f"{stem}{variant}-{i + 1:05}-of-{len(groups):05}.safetensors" for i in range(len(groups))]
    for file, group in zip(files, groups, strict=True):
        write(folder / file, group)
    places = {name: file for file, group in zip(files, groups, strict=True) for name in group}
    index = {"metadata": {"total_size": BYTES * sum(map(math.prod, shapes.values()))}, "weight_map": places}
    (folder / f"{stem}.safetensors.index{variant}.json").write_text(json.dumps(index))


def write_single_file(path: Path) -> None:
    """As checkpoints are shared: all parts under the names of the original code."""
    made = networks()
    configs = {name: json.loads((SDXL / name / "config.json").read_text()) for name in ("unet", "vae")}
    states = {name: network.state_dict() for name, network in made.items()}
    named: dict[str, Tensor] = {
        **dict(original_unet(states["unet"], configs["unet"])),
        **dict(original_vae(states["vae"], configs["vae"])),
        **dict(original_text(states["text_encoder"])),
        **dict(original_text_2(states["text_encoder_2"])),
    }
    write(path, {name: tuple(tensor.shape) for name, tensor in named.items()})


def write(path: Path, shapes: Shapes, scale: float = 1.0) -> None:
    """A safetensors file whose tensors are made while it is written. Source: the format's documentation."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + BYTES * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    noise = torch.randn(BLOCK, generator=torch.Generator().manual_seed(0))
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for at, (name, shape) in enumerate(shapes.items()):
            for part in _values(name, shape, noise, at):
                file.write((scale * part).bfloat16().view(torch.int16).numpy().tobytes())


def _values(name: str, shape: tuple[int, ...], noise: Tensor, at: int) -> Iterator[Tensor]:
    """Matrices that keep the size of what passes through them, norms of 1, biases of 0: the picture stays finite."""
    count = math.prod(shape)
    if len(shape) < 2:
        value = 0.0 if name.endswith("bias") or "in_proj_bias" in name else 1.0
        yield torch.full((count,), value)
        return
    scale = 1 / math.sqrt(math.prod(shape[1:]))
    begin = 7919 * at % (BLOCK // 2)
    while count > 0:
        part = noise[begin : begin + min(count, BLOCK - begin)]
        yield part * scale
        count, begin = count - len(part), 0
