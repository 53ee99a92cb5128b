"""Puts the UNet part of a LoRA file on a UNet."""

from __future__ import annotations

from pathlib import Path

from diffusers.loaders.lora_pipeline import StableDiffusionXLLoraLoaderMixin
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from safetensors import SafetensorError
from safetensors.torch import load_file

from core.errors import InvalidInput


def attach(unet: UNet2DConditionModel, path: Path, name: str) -> int:
    """Loads a file unfused under an adapter name and says how many tensors it put on the UNet.

    Raises: InvalidInput when the file cannot be read, fits another network, or matches no key.
    """
    dtype = unet.dtype  # read once: diffusers looks through all modules for it
    try:
        tensors = {key: tensor.to(dtype) for key, tensor in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise InvalidInput("styles", f"{path.name} cannot be read: {error}") from error
    try:
        converted, alphas = StableDiffusionXLLoraLoaderMixin.lora_state_dict(tensors, unet_config=unet.config)
        unet.load_lora_adapter(converted, prefix="unet", adapter_name=name, network_alphas=alphas or None)
    except (ValueError, RuntimeError, KeyError) as error:
        raise InvalidInput("styles", f"{path.name} does not fit this model: {error}") from error
    matched = sum(f".{name}." in key for key in unet.state_dict())
    if matched == 0:
        raise InvalidInput("styles", f"{path.name}: 0 of {len(tensors)} keys matched this model's UNet")
    return matched


def fuse(unet: UNet2DConditionModel, path: Path) -> None:
    """Adds a file's delta to the weights for good and leaves no adapter layers behind.

    Raises: InvalidInput as attach does.
    """
    attach(unet, path, "fused")
    unet.fuse_lora(safe_fusing=True)
    unet.unload_lora()
