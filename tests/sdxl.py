"""Small models of the SDXL architecture with random weights, in the layouts that people download."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
from safetensors.torch import load_file, save_file
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from benchmarks.original_layout import original_text, original_text_2, original_unet, original_vae
from sampling.layout import SDXL

SHARD = "500KB"


def small_unet(**changes: Any) -> UNet2DConditionModel:
    config = json.loads((SDXL / "unet" / "config.json").read_text())
    small = {
        "block_out_channels": [32, 64], "down_block_types": ["DownBlock2D", "CrossAttnDownBlock2D"],
        "up_block_types": ["CrossAttnUpBlock2D", "UpBlock2D"], "attention_head_dim": [2, 4],
        "transformer_layers_per_block": [1, 2], "cross_attention_dim": 64, "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 80, "norm_num_groups": 8, "sample_size": 16,
    }  # fmt: skip
    return UNet2DConditionModel.from_config({**config, **small, **changes})


def small_vae(**changes: Any) -> AutoencoderKL:
    blocks = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    small = {"block_out_channels": [8] * 4, "norm_num_groups": 2, "latent_channels": 4, "scaling_factor": 0.13025}
    return AutoencoderKL(3, 3, **{**blocks, **small, **changes})


def small_text(kind: type, **changes: Any) -> Any:
    small = {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
        "projection_dim": 32, "vocab_size": 49408, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1,
    }  # fmt: skip
    return kind(CLIPTextConfig(**{**small, **changes}))


def small_pipeline(seed: int = 0, **scheduler: Any) -> StableDiffusionXLPipeline:
    torch.manual_seed(seed)
    published = json.loads((SDXL / "scheduler" / "scheduler_config.json").read_text())
    tokenizers = [CLIPTokenizer.from_pretrained(SDXL / name) for name in ("tokenizer", "tokenizer_2")]
    return StableDiffusionXLPipeline(
        vae=small_vae(),
        text_encoder=small_text(CLIPTextModel),
        text_encoder_2=small_text(CLIPTextModelWithProjection),
        tokenizer=tokenizers[0],
        tokenizer_2=tokenizers[1],
        unet=small_unet(),
        scheduler=EulerDiscreteScheduler.from_config({**published, **scheduler}),
        add_watermarker=False,
    )


def published(folder: Path, variant: str | None = None, seed: int = 0, shards: bool = False, **scheduler: Any) -> Path:
    """A folder as `save_pretrained` of the stock pipeline leaves it."""
    size = {"max_shard_size": SHARD} if shards else {}
    small_pipeline(seed, **scheduler).save_pretrained(folder, variant=variant, **size)
    return folder


def configs_of(folder: Path, target: Path) -> Path:
    """The folder without its weights, in the place of the bundled configs."""
    shutil.copytree(folder, target, ignore=shutil.ignore_patterns("*.safetensors"))
    return target


def single_file(folder: Path, path: Path, **extra: torch.Tensor) -> Path:
    """The published folder's weights as one checkpoint of the original layout."""
    unet, vae = (_weights(folder / name) for name in ("unet", "vae"))
    configs = [json.loads((folder / name / "config.json").read_text()) for name in ("unet", "vae")]
    tensors = dict(original_unet(unet, configs[0])) | dict(original_vae(vae, configs[1]))
    tensors |= dict(original_text(_weights(folder / "text_encoder")))
    tensors |= dict(original_text_2(_weights(folder / "text_encoder_2")))
    save_file({name: tensor.contiguous().clone() for name, tensor in {**tensors, **extra}.items()}, path)
    return path


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(next(folder.glob("*.safetensors")))
