"""Puts the UNet part of a LoRA file on a UNet."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from diffusers.loaders.lora_pipeline import StableDiffusionXLLoraLoaderMixin
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from core.errors import InvalidInput

log = logging.getLogger(__name__)
OTHER_KINDS = {"hada_w": "LoHa", "lokr_w": "LoKr", "dora_scale": "DoRA", "oft_blocks": "OFT", "oft_diag": "OFT"}
TEXT_WIDTHS = {768: "SD 1.x", 1024: "SD 2.x", 2048: "SDXL"}
HALVES = (".lora_A.weight", ".lora_B.weight")


def attach(unet: UNet2DConditionModel, path: Path, name: str) -> int:
    """Loads a file unfused under an adapter name and says how many of its tensors act.

    Raises: InvalidInput when the file cannot be read, is not a LoRA, holds what is not finite, lacks half of a layer,
    fits another network, or matches no key.
    """
    tensors = _read(path, unet)
    try:
        converted, alphas = StableDiffusionXLLoraLoaderMixin.lora_state_dict(dict(tensors), unet_config=unet.config)
        _check_halves(path, converted)
        with _quiet():
            unet.load_lora_adapter(converted, prefix="unet", adapter_name=name, network_alphas=alphas or None)
    except InvalidInput:
        raise
    except Exception as error:  # the libraries raise what they happen to stumble over
        raise InvalidInput("styles", f"{path.name} does not fit this model: {_first_line(error)}") from error
    matched = sum(f".{name}." in key for key in unet.state_dict())
    if matched == 0:
        raise InvalidInput("styles", f"{path.name}: 0 of {len(tensors)} keys matched this model's UNet")
    halves = sum(key.endswith(HALVES) for key in converted)
    if matched < halves:
        log.warning("%s: %d of %d tensors act; the others are not of this UNet", path.name, matched, halves)
    return matched


def detach(unet: UNet2DConditionModel, name: str) -> None:
    """Takes an adapter off again."""
    with _quiet():
        unet.delete_adapters(name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the notices that there are several adapters and that one that acted is gone: both are meant."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Already found a `peft_config`")
        warnings.filterwarnings("ignore", message="Adapter .* was active which is now deleted")
        yield


def _read(path: Path, unet: UNet2DConditionModel) -> dict[str, Tensor]:
    dtype = unet.dtype  # read once: diffusers looks through all modules for it
    try:
        tensors = {key: tensor.to(dtype) for key, tensor in load_file(path).items()}
    except (SafetensorError, OSError) as error:
        raise InvalidInput("styles", f"{path.name} cannot be read: {error}") from error
    for key, tensor in tensors.items():
        kind = next((kind for mark, kind in OTHER_KINDS.items() if mark in key), None)
        if kind is not None:
            raise InvalidInput("styles", f"{path.name} is a {kind} file, which is not supported; bring it as LoRA")
        if not bool(tensor.isfinite().all()):
            raise InvalidInput("styles", f"{path.name} holds values that are not finite, the first in {key}")
        _check_width(path, key, tensor, unet)
    return tensors


def _check_width(path: Path, key: str, tensor: Tensor, unet: UNet2DConditionModel) -> None:
    """What reads the text must be as wide as this model's text."""
    reads = "attn2" in key and ("to_k" in key or "to_v" in key) and ("lora_down" in key or "lora_A" in key)
    width, wanted = (tensor.shape[1] if tensor.ndim == 2 else None), unet.config.cross_attention_dim
    if not reads or width is None or width == wanted:
        return
    maker = f"{TEXT_WIDTHS[width]}, " if width in TEXT_WIDTHS else ""
    message = f"{path.name} was made for another model ({maker}text {width} wide); this one's text is {wanted} wide"
    raise InvalidInput("styles", message)


def _check_halves(path: Path, converted: Mapping[str, Tensor]) -> None:
    """A layer that lacks one of its two matrices would be filled with chance."""
    down, up = ({key.removesuffix(half) for key in converted if key.endswith(half)} for half in HALVES)
    lacking = sorted(down ^ up)
    if lacking:
        raise InvalidInput("styles", f"{path.name}: {len(lacking)} layers lack one of two matrices, as {lacking[0]}")


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "").rstrip(": ") or type(error).__name__


def fuse(unet: UNet2DConditionModel, path: Path) -> None:
    """Adds a file's delta to the weights for good and leaves no adapter layers behind.

    Raises: InvalidInput as attach does.
    """
    attach(unet, path, "fused")
    unet.fuse_lora(safe_fusing=True)
    unet.unload_lora()
