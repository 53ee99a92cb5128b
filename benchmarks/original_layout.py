"""Writes a published SDXL folder's weights under the names of the original code, as single-file checkpoints hold them.

Source: the naming of Stability's generative-models and of open_clip, read back by diffusers' single-file loader.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, cat

RESNET = {
    "norm1": "in_layers.0", "conv1": "in_layers.2", "norm2": "out_layers.0", "conv2": "out_layers.3",
    "time_emb_proj": "emb_layers.1", "conv_shortcut": "skip_connection",
}  # fmt: skip
UNET_ENDS = {
    "time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0", "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0", "conv_norm_out": "out.0", "conv_out": "out.2",
}  # fmt: skip
VAE_ATTENTION = {"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"}
OPEN_CLIP = {
    "layer_norm1": "ln_1", "layer_norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj",
    "self_attn.out_proj": "attn.out_proj",
}  # fmt: skip
OPEN_CLIP_ENDS = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.weight": "ln_final.weight", "final_layer_norm.bias": "ln_final.bias",
}  # fmt: skip


def original_unet(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    deep = config["layers_per_block"] + 1
    for name, tensor in state.items():
        yield f"model.diffusion_model.{unet_name(name, deep, config)}", tensor


def unet_name(name: str, deep: int, config: Mapping[str, Any]) -> str:
    for ours, theirs in UNET_ENDS.items():
        if name.startswith(f"{ours}."):
            return name.replace(ours, theirs, 1)
    kind, block, part, layer, rest = _split(name)
    if kind == "mid_block":
        return f"middle_block.{1 if part == 'attentions' else 2 * layer}.{_resnet(part, rest)}"
    if part == "downsamplers":
        return f"input_blocks.{deep * (block + 1)}.0.op.{rest.removeprefix('conv.')}"
    if part == "upsamplers":
        place = 2 if "CrossAttn" in config["up_block_types"][block] else 1
        return f"output_blocks.{deep * block + deep - 1}.{place}.{rest}"
    side, at = ("input", deep * block + layer + 1) if kind == "down_blocks" else ("output", deep * block + layer)
    return f"{side}_blocks.{at}.{1 if part == 'attentions' else 0}.{_resnet(part, rest)}"


def _split(name: str) -> tuple[str, int, str, int, str]:
    """kind, block, part, layer and the rest of down_blocks.1.resnets.0.norm1.weight; a mid_block has no number."""
    found = re.match(r"(down_blocks|up_blocks|mid_block)(?:\.(\d+))?\.(\w+)\.(\d+)\.(.+)", name)
    assert found is not None, name
    kind, block, part, layer, rest = found.groups()
    return kind, int(block or 0), part, int(layer), rest


def _resnet(part: str, rest: str) -> str:
    if part != "resnets":
        return rest
    layer, _, end = rest.rpartition(".")
    return f"{RESNET[layer]}.{end}"


def original_vae(state: Mapping[str, Tensor], config: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    last = len(config["block_out_channels"]) - 1
    for name, tensor in state.items():
        side, _, inner = name.partition(".")
        found = re.match(r"(down_blocks|up_blocks|mid_block)\b", inner)
        inner = inner.replace("conv_norm_out", "norm_out")
        if found is None:
            yield f"first_stage_model.{side}.{inner}", tensor
            continue
        kind, block, part, layer, rest = _split(inner)
        rest = rest.replace("conv_shortcut", "nin_shortcut")
        if part == "attentions":
            layer_name, _, end = rest.rpartition(".")
            shaped = tensor[..., None, None] if tensor.ndim == 2 else tensor
            yield f"first_stage_model.{side}.mid.attn_1.{VAE_ATTENTION[layer_name]}.{end}", shaped
        elif kind == "mid_block":
            yield f"first_stage_model.{side}.mid.block_{layer + 1}.{rest}", tensor
        elif part == "resnets":
            at = block if kind == "down_blocks" else last - block
            yield f"first_stage_model.{side}.{kind.removesuffix('_blocks')}.{at}.block.{layer}.{rest}", tensor
        else:
            at, way = (block, "down") if kind == "down_blocks" else (last - block, "up")
            yield f"first_stage_model.{side}.{way}.{at}.{way}sample.{rest}", tensor


def original_text(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in state.items():
        yield f"conditioner.embedders.0.transformer.text_model.{name.removeprefix('text_model.')}", tensor


def original_text_2(state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    prefix = "conditioner.embedders.1.model."
    plain = {name.removeprefix("text_model."): tensor for name, tensor in state.items()}
    for name, tensor in plain.items():
        if name in OPEN_CLIP_ENDS:
            yield prefix + OPEN_CLIP_ENDS[name], tensor
        elif name == "text_projection.weight":
            yield f"{prefix}text_projection", tensor.T
        elif ".q_proj." in name:
            layer, _, end = name.partition(".self_attn.q_proj.")
            whole = cat([plain[name.replace(".q_proj.", f".{side}_proj.")] for side in "qkv"])
            yield f"{prefix}transformer.resblocks.{_number(layer)}.attn.in_proj_{end}", whole
        elif ".k_proj." not in name and ".v_proj." not in name:
            layer, rest = name.removeprefix("encoder.layers.").split(".", 1)
            inner, _, end = rest.rpartition(".")
            yield f"{prefix}transformer.resblocks.{layer}.{OPEN_CLIP[inner]}.{end}", tensor


def _number(layer: str) -> str:
    return layer.removeprefix("encoder.layers.")
