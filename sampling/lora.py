"""Reads LoRA files of any usual layout: what they add to each layer of the network and of the two text encoders."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.loaders.lora_pipeline import FluxLoraLoaderMixin, StableDiffusionXLLoraLoaderMixin
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.utils.state_dict_utils import (
    DIFFUSERS_OLD_TO_PEFT,
    DIFFUSERS_TO_PEFT,
    UNET_TO_DIFFUSERS,
    convert_state_dict,
)
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from core.errors import InvalidInput
from sampling.lora_makers import foreign, likely
from sampling.lora_names import (
    COMPONENTS,
    PEFT_CONFIG,
    PEFT_FILE,
    TEXT,
    TEXT_2,
    TRANSFORMER,
    UNET,
    fits,
    misfit,
    other_kind,
    plain_name,
)
from sampling.slots import layer_shapes

log = logging.getLogger(__name__)
DOWN, UP = HALVES = (".lora_A.weight", ".lora_B.weight")
LAYOUTS: Mapping[str, Mapping[str, str]] = {
    UNET: UNET_TO_DIFFUSERS,
    TRANSFORMER: {},
    TEXT: DIFFUSERS_TO_PEFT | DIFFUSERS_OLD_TO_PEFT,
    TEXT_2: DIFFUSERS_TO_PEFT | DIFFUSERS_OLD_TO_PEFT,
}
TEXT_MARKS = ("text_encoder", "lora_te")
TEXT_PREFIX = "text_model."  # some versions of transformers put it before the layers of a text encoder


@dataclass(frozen=True, slots=True)
class LoraLayer:
    """What a file adds to one layer, up @ down. Shapes: down [rank, in * kernel]; up [out, rank], with alpha / rank."""

    down: Tensor
    up: Tensor

    @property
    def rank(self) -> int:
        return self.down.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """(in * kernel, out)"""
        return self.down.shape[1], self.up.shape[0]


@dataclass(frozen=True, slots=True)
class Networks:
    """What a file is read for: the shapes of each component's layers, and the numbers' type.

    name: the component that denoises. Units: text_width is the width of the text that a UNet reads; None for others.
    """

    name: str
    shapes: Mapping[str, Mapping[str, tuple[int, ...]]]
    config: Any
    dtype: torch.dtype

    @property
    def text_width(self) -> int | None:
        return int(self.config.cross_attention_dim) if self.name == UNET else None

    @classmethod
    def of(cls, network: Any, text_encoders: Sequence[torch.nn.Module] = ()) -> Networks:
        """Of what denoises, and of the two text encoders where they are there."""
        name = TRANSFORMER if isinstance(network, FluxTransformer2DModel) else UNET
        shapes = {name: layer_shapes(network)}
        shapes |= {text: layer_shapes(part) for text, part in zip((TEXT, TEXT_2), text_encoders, strict=False)}
        return cls(name, shapes, network.config, network.dtype)


Parts = Mapping[str, Mapping[str, LoraLayer]]  # by component and layer; a component without layers is left out


def read(path: Path, networks: Networks) -> Parts:
    """What a file adds to the networks.

    Raises: InvalidInput when the file cannot be read, is not a LoRA, holds what is not finite, lacks half of a layer,
    fits another network, or matches no key.
    """
    return parse(path.name, content(path), networks, _peft_config(path, networks.name))


def content(path: Path) -> bytes:
    """Raises: InvalidInput when the file cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput("styles", f"{path.name} cannot be read: {error.strerror}") from error


def parse(name: str, data: bytes, networks: Networks, beside: Mapping[str, Any] | None = None) -> Parts:
    """What the content of a file adds to the networks; name stands in what is said about it, beside is what is known
    of its scales from elsewhere.

    Raises: InvalidInput as read does.
    """
    tensors = _tensors(name, data, networks)
    try:
        converted, alphas = _converted(tensors, networks)
    except Exception as error:  # the library raises what it happens to stumble over
        raise InvalidInput("styles", f"{name} does not fit this model: {_first_line(error)}") from error
    halves = _named(converted)
    scales = _Scales({**halves, **_named(alphas or {})}, {**(beside or {}), **_metadata(data)})
    _check_halves(name, halves)
    parts: dict[str, dict[str, LoraLayer]] = {}
    for component, shapes in networks.shapes.items():
        layers = _layers(name, component, halves, shapes, scales, networks.dtype)
        if layers:
            parts[component] = layers
    _count(name, tensors, halves, parts, networks)
    return parts


def _converted(tensors: Mapping[str, Tensor], networks: Networks) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Under diffusers' names, with the alphas that are not in the numbers yet."""
    if networks.name == TRANSFORMER:
        flux: tuple[dict[str, Any], dict[str, Any] | None] = FluxLoraLoaderMixin.lora_state_dict(
            dict(tensors), return_alphas=True
        )
        return flux
    unet: tuple[dict[str, Any], dict[str, Any] | None] = StableDiffusionXLLoraLoaderMixin.lora_state_dict(
        dict(tensors), unet_config=networks.config
    )
    return unet


def _tensors(name: str, data: bytes, networks: Networks) -> dict[str, Tensor]:
    try:
        read = {plain_name(key, networks.name): tensor for key, tensor in load(data).items()}
    except SafetensorError as error:
        raise InvalidInput("styles", f"{name} cannot be read: {error}") from error
    tensors = {}
    for key, tensor in read.items():
        if (kind := other_kind(key)) is not None:
            raise InvalidInput("styles", f"{name} is {kind} file, which is not supported; bring it as LoRA")
        if tensor.dim() > 1 and not tensor.is_floating_point():
            raise InvalidInput("styles", f"{name} holds numbers of type {tensor.dtype}, the first in {key}")
        tensors[key] = tensor.to(networks.dtype)
        if not bool(tensors[key].isfinite().all()):
            raise InvalidInput("styles", f"{name} holds values that are not finite, the first in {key}")
    if (reason := foreign(_shapes(tensors), networks.name, networks.text_width)) is not None:
        raise InvalidInput("styles", f"{name} {reason}")
    return tensors


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, Sequence[int]]:
    return {key: tensor.shape for key, tensor in tensors.items()}


def _named(converted: Mapping[str, Any]) -> dict[str, Any]:
    """Every layout's names in one: component, layer, then `.lora_A.weight`, `.lora_B.weight` or `.alpha`."""
    named: dict[str, Any] = {}
    for key, value in converted.items():
        component, _, rest = key.partition(".")
        layer = rest.removesuffix(".alpha")
        mapped = next(iter(convert_state_dict({layer: None}, LAYOUTS.get(component, {}))))
        if rest.endswith(".alpha"):
            mapped = mapped.removesuffix(DOWN).removesuffix(UP) + ".alpha"
        named[f"{component}.{mapped}"] = value
    return named


class _Scales:
    """What a layer's product is multiplied by: alpha / rank, and 1 where nothing says alpha.

    Source: kohya's `alpha` tensors; the `lora_adapter_metadata` that diffusers writes, which holds peft's LoraConfig.
    """

    def __init__(self, alphas: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        self._alphas = alphas
        self._metadata = metadata

    def of(self, component: str, layer: str, rank: int) -> float:
        alpha = self._alphas.get(f"{component}.{layer}.alpha")
        if alpha is not None:
            return float(alpha) / rank
        alpha = self._written(component, layer)
        if alpha is None:
            return 1.0
        return alpha / (rank**0.5 if self._metadata.get(f"{component}.use_rslora") else rank)

    def _written(self, component: str, layer: str) -> float | None:
        patterns = self._metadata.get(f"{component}.alpha_pattern")
        for pattern, alpha in patterns.items() if isinstance(patterns, dict) else ():
            if re.match(rf"(.*\.)?({pattern})$", layer):
                return float(alpha)
        alpha = self._metadata.get(f"{component}.lora_alpha")
        return None if alpha is None else float(alpha)


def _metadata(data: bytes) -> dict[str, Any]:
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    written = (header.get("__metadata__") or {}).get("lora_adapter_metadata")
    try:
        found = json.loads(written) if written else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _peft_config(path: Path, network: str) -> dict[str, Any]:
    """The scales of a file that peft's save_pretrained wrote: they stand beside it, whose name is always the same."""
    if path.name != PEFT_FILE:
        return {}
    try:
        found = json.loads(path.with_name(PEFT_CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return {f"{network}.{key}": value for key, value in found.items()} if isinstance(found, dict) else {}


def _check_halves(name: str, halves: Mapping[str, Any]) -> None:
    """A layer that lacks one of its two matrices would be filled with chance."""
    down, up = ({key.removesuffix(half) for key in halves if key.endswith(half)} for half in HALVES)
    lacking = sorted(down ^ up)
    if lacking:
        raise InvalidInput("styles", f"{name}: {len(lacking)} layers lack one of two matrices, as {lacking[0]}")


def _layers(
    name: str,
    component: str,
    halves: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    scales: _Scales,
    dtype: torch.dtype,
) -> dict[str, LoraLayer]:
    """The layers of one component that the network has."""
    layers = {}
    for key in halves:
        written = key.removeprefix(f"{component}.").removesuffix(DOWN)
        layer = _own_name(written, shapes)
        if not key.startswith(f"{component}.") or not key.endswith(DOWN) or layer is None:
            continue
        down, up = halves[key], halves[key.removesuffix(DOWN) + UP]
        if not fits(down.shape, up.shape, shapes[layer]):
            raise InvalidInput("styles", f"{name} {misfit(layer, down.shape, up.shape, shapes[layer])}")
        try:
            scale = scales.of(component, written, len(down))
        except (ArithmeticError, RuntimeError, TypeError, ValueError, re.error) as error:
            raise InvalidInput("styles", f"{name} says an alpha that is no number, for {layer}: {error}") from error
        scaled = (up.flatten(1).float() * scale).to(dtype)
        if not bool(scaled.isfinite().all()):
            raise InvalidInput("styles", f"{name} holds values that are not finite once scaled by alpha, in {layer}")
        layers[layer] = LoraLayer(down.flatten(1), scaled)
    return layers


def _own_name(written: str, shapes: Mapping[str, Any]) -> str | None:
    """The network's name for a layer; None where it has no such layer."""
    names = (written, written.removeprefix(TEXT_PREFIX), TEXT_PREFIX + written)
    return next((name for name in names if name in shapes), None)


def _count(name: str, tensors: Mapping[str, Tensor], halves: Mapping[str, Any], parts: Parts, of: Networks) -> None:
    """Refuses what does not act at all, logs what acts in part."""
    if not parts:
        made = likely(_shapes(tensors), of.name, of.text_width)
        raise InvalidInput("styles", f"{name}: 0 of {len(tensors)} keys matched{made}")
    counts = []
    for component in COMPONENTS:
        total = sum(key.startswith(f"{component}.") and key.endswith(HALVES) for key in halves)
        if total and component in of.shapes:
            counts.append((component, 2 * len(parts.get(component, {})), total))
    known = sum(total for _, _, total in counts)
    strange = sum(key.endswith(HALVES) and key.partition(".")[0] not in LAYOUTS for key in halves)
    if strange or sum(matched for _, matched, _ in counts) < known:
        told = ", ".join(f"{component} {matched} of {total}" for component, matched, total in counts)
        log.warning("%s: %s tensors act%s", name, told, f"; {strange} are of no part of this model" if strange else "")


def has_text(keys: Sequence[str]) -> bool:
    """Whether tensors of these names act on a text encoder."""
    return any(mark in key for key in keys for mark in TEXT_MARKS)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "").rstrip(": ") or type(error).__name__


@torch.no_grad()
def fuse(network: torch.nn.Module, path: Path, weight: float = 1.0) -> None:
    """Adds a file's delta, times weight, to the network's weights for good; one that shares them keeps its own.

    Raises: InvalidInput as read does.
    """
    modules: dict[str, Any] = dict(network.named_modules())
    networks = Networks.of(network)
    for layer, matrices in read(path, networks).get(networks.name, {}).items():
        base = modules[layer].weight
        if type(base.data) is not torch.Tensor:
            raise InvalidInput("styles", f"{path.name} cannot be fused into quantised weights; choose other weights")
        delta = (weight * (matrices.up.float() @ matrices.down.float())).view(base.shape).to(base.device)
        fused = (base.float() + delta).to(base.dtype)
        if not bool(fused.isfinite().all()):
            raise InvalidInput("styles", f"{path.name} does not fit this model: {layer} overflows")
        modules[layer].weight = torch.nn.Parameter(fused, requires_grad=False)
