"""Weights from the disk into networks: from whole files, shards and single files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import torch
from diffusers.loaders.single_file_utils import (
    convert_ldm_unet_checkpoint,
    convert_ldm_vae_checkpoint,
    convert_open_clip_checkpoint,
)
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.autoencoders.autoencoder_tiny import AutoencoderTiny
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from diffusers.utils import logging as diffusers_logging
from safetensors import safe_open
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, T5Config, T5EncoderModel
from transformers.utils import logging as transformers_logging

from core.errors import StartupError
from sampling.layout import REMEDY, Part
from sampling.slots import layer_shapes

Autoencoder: TypeAlias = AutoencoderTiny | AutoencoderKL
TEXT_PREFIX = "text_model."  # some versions of transformers put it before the layers of a text encoder
OLD_ATTENTION = {".query.": ".to_q.", ".key.": ".to_k.", ".value.": ".to_v.", ".proj_attn.": ".to_out.0."}
T5_WORDS = ("encoder.embed_tokens.weight", "shared.weight")  # one table of which a file may hold either name
KINDS: Mapping[str, Any] = {"AutoencoderKL": AutoencoderKL, "AutoencoderTiny": AutoencoderTiny}


def quieten_libraries() -> None:
    """Their progress bars and notices are not for the person who starts the app; what matters is raised."""
    diffusers_logging.set_verbosity_error()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()


def open_part(part: Part, dtype: torch.dtype, held: torch.dtype) -> Any:
    """The network, on the processor: its matrices as held says, all else as dtype, in which it computes.

    Where a file has the type asked for, the memory is the file's.

    Raises: StartupError when weights are missing or of other shapes; the libraries would fill them with noise.
    """
    network, state = _matched(part)
    large = {f"{name}.weight" for name in layer_shapes(network)}
    state = {name: tensor.to(held if name in large else dtype) for name, tensor in state.items()}
    network.load_state_dict(state, assign=True)
    _fill_positions(network)
    if isinstance(network, T5EncoderModel):
        network.set_input_embeddings(network.shared)  # one table again
    return network


def check_part(part: Part, told: Callable[[int], object]) -> None:
    """Reads all weights; told gets the bytes of each.

    Raises: StartupError when weights are missing, of other shapes or not finite, or the config makes no network.
    """
    for name, tensor in _matched(part)[1].items():
        numbers = tensor.float() if tensor.itemsize == 1 else tensor  # of 8 bits, torch cannot say
        if not bool(numbers.isfinite().all()):
            raise StartupError(f"{_place(part)}: {name} of {part.name} holds values that are not finite", REMEDY)
        told(tensor.nbytes)


def _matched(part: Part) -> tuple[Any, dict[str, Tensor]]:
    """The empty network, and what the files have for each of its weights."""
    with sensible(f"the config of {part.name}"):
        network = empty(part)
    state = _renamed(_named(part, network), network)
    wanted = network.state_dict()
    missing = sorted(set(wanted) - set(state))
    if missing:
        raise StartupError(
            f"{_place(part)} lacks {len(missing)} weights of {part.name}, the first {missing[0]}", REMEDY
        )
    for name, expected in wanted.items():
        if state[name].shape != expected.shape:
            given, told = (" x ".join(map(str, shape)) for shape in (state[name].shape, expected.shape))
            raise StartupError(f"{_place(part)}: {name} of {part.name} is {given}, its config says {told}", REMEDY)
    return network, {name: state[name] for name in wanted}


def _place(part: Part) -> Path:
    return part.files[0] if part.original else part.files[0].parent


@contextmanager
def sensible(what: object) -> Iterator[None]:
    """Raises: StartupError naming what a library was given, where it stumbles over that."""
    try:
        yield
    except (KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise StartupError(f"{what} makes no sense: {error!r}"[:400], REMEDY) from error


def twin_of(network: Any) -> Any:
    """Another network of the same weights in the same memory; what is fused into one of them is not in the other."""
    with torch.device("meta"):
        twin = type(network).from_config(network.config)
    twin.load_state_dict(network.state_dict(keep_vars=True), assign=True)
    return twin


def empty(part: Part) -> Any:
    """The network without memory for its weights."""
    with torch.device("meta"):
        if part.name == "unet":
            return UNet2DConditionModel.from_config(dict(part.config))
        if part.name == "transformer":
            return FluxTransformer2DModel.from_config(dict(part.config))
        if part.name in ("vae", "decoder"):
            return KINDS[part.config["_class_name"]].from_config(dict(part.config))
        if part.config.get("model_type") == "t5":
            return T5EncoderModel(T5Config(**part.config))
        kind = CLIPTextModel if part.name == "text_encoder" else CLIPTextModelWithProjection
        return kind(CLIPTextConfig(**part.config))


def _named(part: Part, network: Any) -> dict[str, Tensor]:
    """The part's tensors under diffusers' names.

    Source: diffusers' own conversion of single files.
    """
    found: dict[str, Tensor] = {}
    for path in part.files:
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys() if name.startswith(part.original)}  # noqa: SIM118
    if not part.original:
        return found
    if part.name == "unet":
        return dict(convert_ldm_unet_checkpoint(found, part.config))
    if part.name == "vae":
        return dict(convert_ldm_vae_checkpoint(found, part.config))
    if part.name == "text_encoder":
        return {name.removeprefix(part.original): tensor for name, tensor in found.items()}
    return dict(convert_open_clip_checkpoint(network, found, prefix=part.original))


def _renamed(state: Mapping[str, Tensor], network: Any) -> dict[str, Tensor]:
    """Under the names that the installed libraries use."""
    wanted = set(network.state_dict())
    renamed = {}
    tables = [state[name] for name in T5_WORDS if name in state]
    if tables:
        state = {**state, **dict.fromkeys(T5_WORDS, tables[0])}
    for name, tensor in state.items():
        for old, new in OLD_ATTENTION.items():
            if name not in wanted:
                name = name.replace(old, new)
        spellings = (name, name.removeprefix(TEXT_PREFIX), TEXT_PREFIX + name)
        renamed[next((one for one in spellings if one in wanted), name)] = tensor
    return renamed


def _fill_positions(network: torch.nn.Module) -> None:
    """Buffers that no file holds: a text encoder's positions."""
    for module in network.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta:
                assert name == "position_ids"  # the one buffer of these networks that is not stored
                module.register_buffer(name, torch.arange(buffer.shape[-1]).expand(buffer.shape), persistent=False)
