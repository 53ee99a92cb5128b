"""What a file was made for, told by its names and shapes as trainers write them."""

from __future__ import annotations

import pytest

from sampling.lora_makers import foreign, likely
from sampling.lora_names import TRANSFORMER, UNET

SDXL, FLUX = (UNET, 2048), (TRANSFORMER, None)
OTHERS = {
    "lora_unet_down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k.lora_down.weight": (8, 768, "SD 1.x"),
    "unet.down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_v.lora_A.weight": (8, 1024, "SD 2.x"),
    "lora_unet_joint_blocks_0_x_block_attn_qkv.lora_down.weight": (8, 1536, "SD 3"),
    "transformer.transformer_blocks.0.attn.to_q.lora_A.weight": (8, 2432, "SD 3"),
    "transformer.transformer_blocks.0.attn.add_k_proj.lora_A.weight": (8, 1536, "SD 3"),
    "transformer.transformer_blocks.59.img_mlp.net.2.lora_A.weight": (8, 12288, "Qwen-Image"),
    "diffusion_model.blocks.39.cross_attn.q.lora_A.weight": (8, 5120, "Wan"),
    "unet.model.layers.0.self_attn.q_proj.lora_A.weight": (8, 4096, "a language model"),
    "lora_unet_double_blocks_0_img_attn_qkv.lora_down.weight": (8, 3072, "FLUX"),
    "transformer.single_transformer_blocks.0.proj_out.lora_A.weight": (8, 15360, "FLUX"),
}


@pytest.mark.parametrize("key", OTHERS)
def test_file_of_another_model_is_named(key: str) -> None:
    rank, width, maker = OTHERS[key]
    reason = foreign({key: (rank, width)}, *SDXL)
    assert reason is not None and f"another model ({maker}" in reason and reason.endswith("is SDXL, text 2048 wide")
    if maker != "FLUX":
        assert "this one is FLUX" in (foreign({key: (rank, width)}, *FLUX) or "")


@pytest.mark.parametrize(
    ("key", "width", "model"),
    [
        ("unet.down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k.lora_A.weight", 2048, SDXL),
        ("text_encoder.text_model.encoder.layers.0.self_attn.q_proj.lora_A.weight", 768, SDXL),
        ("lora_te2_text_model_encoder_layers_0_self_attn_q_proj.lora_down.weight", 1280, SDXL),
        ("lora_te1_text_model_encoder_layers_0_self_attn_q_proj.lora_down.weight", 768, FLUX),
        ("transformer.transformer_blocks.0.attn.to_q.lora_A.weight", 3072, FLUX),
        ("lora_unet_double_blocks_0_img_mlp_0.lora_down.weight", 3072, FLUX),
        ("double_blocks.0.processor.qkv_lora1.down.weight", 3072, FLUX),
        ("lora_te3_encoder_block_0_layer_0_SelfAttention_q.lora_down.weight", 4096, FLUX),
    ],
)
def test_own_file_is_not_called_foreign(key: str, width: int, model: tuple[str, int | None]) -> None:
    assert foreign({key: (8, width)}, *model) is None


@pytest.mark.parametrize(
    ("key", "looks"),
    [
        (
            "lora_unet_up_blocks_3_attentions_0_transformer_blocks_0_attn1_to_q.lora_down.weight",
            "for SD 1.x or SD 2.x;",
        ),
        ("lora_te_text_model_encoder_layers_0_mlp_fc1.lora_down.weight", "for SD 1.x or SD 2.x;"),
        ("lora_unet_input_blocks_7_1_transformer_blocks_9_attn1_to_q.lora_down.weight", "for SDXL;"),
        ("other.lora_A.weight", ""),
    ],
)
def test_file_that_does_not_fit_is_guessed_at_where_something_tells(key: str, looks: str) -> None:
    said = likely({key: (8, 320)}, UNET, 256)
    assert said.endswith("this model is of the architecture of SDXL, text 256 wide")
    assert looks in said and ("looks" in said) == bool(looks)
