"""Small models of the FLUX architecture with random weights, in the published layout, and a profile of two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextModel, CLIPTokenizer, T5Config, T5EncoderModel

from benchmarks.random_flux import letters_tokenizer
from sampling.layout import SDXL
from tests.sdxl import small_text, small_vae

SHARD = "60KB"
DEV = {"shift": 3.0, "use_dynamic_shifting": True}
SCHNELL = {"shift": 1.0, "use_dynamic_shifting": False}
LETTERS = "abcdefghijklmnopqrstuvwxyz,."


def small_transformer(guidance: bool, **changes: Any) -> FluxTransformer2DModel:
    small = {
        "in_channels": 16, "num_layers": 2, "num_single_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2,
        "joint_attention_dim": 32, "pooled_projection_dim": 32, "axes_dims_rope": (4, 6, 6),
    }  # fmt: skip
    return FluxTransformer2DModel(guidance_embeds=guidance, **{**small, **changes})


def flux_vae() -> AutoencoderKL:
    return small_vae(scaling_factor=0.3611, shift_factor=0.1159, use_quant_conv=False, use_post_quant_conv=False)


def small_flux(guidance: bool, seed: int = 0) -> FluxPipeline:
    """One kind's pipeline; text encoders and autoencoder of a seed are the same in both kinds."""
    torch.manual_seed(seed)
    tokenizer = letters_tokenizer(LETTERS)
    config = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": len(tokenizer)}
    return FluxPipeline(
        vae=flux_vae(),
        text_encoder=small_text(CLIPTextModel),
        text_encoder_2=T5EncoderModel(T5Config(**config, feed_forward_proj="gated-gelu")),
        tokenizer=CLIPTokenizer.from_pretrained(SDXL / "tokenizer"),
        tokenizer_2=tokenizer,
        transformer=small_transformer(guidance),
        scheduler=FlowMatchEulerDiscreteScheduler(**(DEV if guidance else SCHNELL)),
    )


def published_flux(folder: Path, guidance: bool, seed: int = 0) -> Path:
    """A folder as the hub has it, its larger networks in shards."""
    small_flux(guidance, seed).save_pretrained(folder, max_shard_size=SHARD)
    return folder


def flux_profile(folder: Path, **changes: Any) -> Path:
    """Previews as FLUX.1-schnell paints them, finals as FLUX.1-dev does."""
    for name, guidance in (("schnell", False), ("dev", True)):
        published_flux(folder / name, guidance)
    fields: dict[str, Any] = {
        "id": "small-flux",
        "family": "flux",
        "sources": {"schnell": {"path": "schnell"}, "dev": {"path": "dev"}},
        "preview": {
            "source": "schnell", "sampler": "euler", "steps": 2, "guidance_scale": 0.0, "buckets": [[64, 64]],
        },
        "final": {
            "source": "dev", "sampler": "euler", "steps": 4, "guidance_scale": 3.5, "buckets": [[64, 64], [96, 64]],
        },
    }  # fmt: skip
    path = folder / "small.json"
    path.write_text(json.dumps({**fields, **changes}))
    return path
