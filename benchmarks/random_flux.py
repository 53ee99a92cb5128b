"""FLUX at its full width, with fewer blocks and random weights, in the layout of the hub.

What repeats is all that is left out: of 19 and 38 blocks there are 1 and 2, of the 24 layers of T5 there are 2.
Source of the numbers: the config files of FLUX.1-schnell and FLUX.1-dev.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import T5Tokenizer

from benchmarks.random_sdxl import STEMS, Shapes, write, write_shards
from sampling.layout import SDXL, Part, read_json
from sampling.weights import empty

BLOCKS = {"num_layers": 1, "num_single_layers": 2}
TRANSFORMER = {
    "_class_name": "FluxTransformer2DModel", "patch_size": 1, "in_channels": 64, "attention_head_dim": 128,
    "num_attention_heads": 24, "joint_attention_dim": 4096, "pooled_projection_dim": 768,
    "axes_dims_rope": [16, 56, 56], **BLOCKS,
}  # fmt: skip
T5 = {
    "model_type": "t5", "d_model": 4096, "d_ff": 10240, "d_kv": 64, "num_heads": 64, "num_layers": 2,
    "vocab_size": 32128, "feed_forward_proj": "gated-gelu", "is_encoder_decoder": True,
}  # fmt: skip
VAE = {
    "_class_name": "AutoencoderKL", "latent_channels": 16, "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2, "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4,
    "scaling_factor": 0.3611, "shift_factor": 0.1159, "sample_size": 1024, "use_quant_conv": False,
    "use_post_quant_conv": False, "force_upcast": True,
}  # fmt: skip
FLOW = {
    "_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "base_image_seq_len": 256,
    "max_image_seq_len": 4096, "base_shift": 0.5, "max_shift": 1.15,
}  # fmt: skip
SCHEDULERS = {
    "schnell": {**FLOW, "shift": 1.0, "use_dynamic_shifting": False},
    "dev": {**FLOW, "shift": 3.0, "use_dynamic_shifting": True},
}
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789,.'-"


def parts(kind: str) -> dict[str, Part]:
    """kind: schnell or dev, of which only the second reads guidance."""
    configs: dict[str, Mapping[str, Any]] = {
        "transformer": {**TRANSFORMER, "guidance_embeds": kind == "dev"},
        "text_encoder": {**read_json(SDXL / "text_encoder" / "config.json"), "eos_token_id": 2},
        "text_encoder_2": T5,
        "vae": VAE,
    }
    return {name: Part(name, config, ()) for name, config in configs.items()}


def shapes_of(part: Part) -> Shapes:
    state = empty(part).state_dict()
    names = [name for name in state if name != "encoder.embed_tokens.weight"]  # T5's table has one name in a file
    return {name: tuple(state[name].shape) for name in names}


def write_kind(folder: Path, kind: str) -> int:
    """As the hub has it, the transformer in shards; the number of the transformer's parameters."""
    shutil.copytree(SDXL / "tokenizer", folder / "tokenizer")
    letters_tokenizer(LETTERS).save_pretrained(folder / "tokenizer_2")
    _write_config(folder / "model_index.json", {"_class_name": "FluxPipeline"})
    _write_config(folder / "scheduler" / "scheduler_config.json", SCHEDULERS[kind])
    for name, part in parts(kind).items():
        _write_config(folder / name / "config.json", part.config)
        stem = STEMS.get(name, "model")
        if name == "transformer":
            write_shards(folder / name, stem, shapes_of(part))
        else:
            write(folder / name / f"{stem}.safetensors", shapes_of(part))
    return sum(weight.numel() for weight in empty(parts(kind)["transformer"]).parameters())


def _write_config(path: Path, config: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(config))


def letters_tokenizer(letters: str) -> T5Tokenizer:
    """Reads letter by letter: the published vocabulary is not ours to pass on."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(start + letter, -3.0 - i / 10) for start in ("", "▁") for i, letter in enumerate(letters)]
    return T5Tokenizer(vocab=pieces, extra_ids=0)
