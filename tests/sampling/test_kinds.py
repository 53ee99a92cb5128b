"""Models of the wrong kind and broken downloads: each refusal names what was found, what was expected, what to do."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from core.errors import StartupError
from sampling.profile import load_profile
from tests.sdxl import published

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("whole") / "model")


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("sharded") / "model", shards=True)


def copied(folder: Path, to: Path) -> Path:
    """By links, so that a test can replace single files."""
    shutil.copytree(folder, to, copy_function=lambda source, target: Path(target).symlink_to(source))
    return to


def refusal(model: Path) -> StartupError:
    with pytest.raises(StartupError) as refused:
        load_profile(model)
    return refused.value


def rewrite(path: Path, **changes: Any) -> None:
    fields = {**json.loads(path.read_text()), **changes}
    path.unlink()
    path.write_text(json.dumps({name: value for name, value in fields.items() if value is not ...}))


UNET, VAE, SCHEDULER = "unet/config.json", "vae/config.json", "scheduler/scheduler_config.json"
SD15 = {"cross_attention_dim": 768, "addition_embed_type": None}
FLOW = {"beta_start": ..., "_class_name": "FlowMatchEulerDiscreteScheduler"}
CONFIGS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "SD 1.5's UNet": (UNET, SD15, ("Stable Diffusion 1.x", "SDXL")),
    "refiner": (UNET, {"cross_attention_dim": 1280}, ("the SDXL refiner", "1280 wide", "give 64")),
    "inpainting": (UNET, {"in_channels": 9}, ("inpainting UNet", "in_channels 9", "4 latent channels")),
    "edit model": (UNET, {"in_channels": 8}, ("editing pictures", "4 latent channels")),
    "guidance as an input": (UNET, {"time_cond_proj_dim": 256}, ("guidance as an input", "sdxl-lcm")),
    "other size embedding": (UNET, {"projection_class_embeddings_input_dim": 2560}, ("2560", "80")),
    "VAE of 16 channels": (VAE, {"latent_channels": 16}, ("16 latent channels",)),
    "unknown autoencoder": (VAE, {"_class_name": "AutoencoderDC"}, ("AutoencoderDC", "AutoencoderKL")),
    "flow matching": (SCHEDULER, FLOW, ("FlowMatch", "betas")),
    "no training steps": (SCHEDULER, {"num_train_timesteps": 0}, ("0 training steps", "1000")),
    "few trained betas": (SCHEDULER, {"trained_betas": [0.1, 0.2]}, ("2 training steps", "1000")),
    "sample prediction": (SCHEDULER, {"prediction_type": "sample"}, ("'sample'", "v_prediction")),
}  # fmt: skip


@pytest.mark.parametrize("name", CONFIGS)
def test_wrong_kind_is_refused_from_its_configs(whole: Path, tmp_path: Path, name: str) -> None:
    file, changes, words = CONFIGS[name]
    folder = copied(whole, tmp_path / "model")
    rewrite(folder / file, **changes)
    error = refusal(folder)
    assert all(word in f"{error.cause} {error.remedy}" for word in words), error


def test_folder_without_the_second_text_encoder_is_refused(whole: Path, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path / "model")
    shutil.rmtree(folder / "text_encoder_2")
    rewrite(folder / UNET, cross_attention_dim=768)
    assert "Stable Diffusion 1.x without text_encoder_2" in refusal(folder).cause


@pytest.mark.parametrize(
    ("network", "words"), [("SD3Transformer2DModel", "Stable Diffusion 3"), ("QwenImageTransformer2DModel", "Qwen")]
)
def test_folder_with_a_transformer_is_refused(tmp_path: Path, network: str, words: str) -> None:
    (tmp_path / "transformer").mkdir()
    (tmp_path / "transformer" / "config.json").write_text(json.dumps({"_class_name": network}))
    error = refusal(tmp_path)
    assert words in error.cause and "SDXL architecture" in error.cause and error.remedy


SINGLE = {
    "SD 1.5": ["cond_stage_model.transformer.text_model.x", "model.diffusion_model.input_blocks.0.0.weight"],
    "refiner": ["conditioner.embedders.0.model.x", "model.diffusion_model.input_blocks.0.0.weight"],
    "Stable Diffusion 3": ["model.diffusion_model.joint_blocks.0.x"],
    "FLUX": ["double_blocks.0.img_attn.qkv.weight"],
    "a LoRA": ["lora_unet_mid_block_attentions_0_proj_in.lora_up.weight"],
    "text_encoder_2": ["model.diffusion_model.x", "first_stage_model.x", "conditioner.embedders.0.transformer.x"],
}


@pytest.mark.parametrize("kind", SINGLE)
def test_single_file_of_another_kind_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "some.safetensors"
    save_file({name: torch.zeros(1) for name in SINGLE[kind]}, path)
    error = refusal(path)
    assert kind.replace("SD 1.5", "Stable Diffusion 1.x") in error.cause and "SDXL architecture" in error.cause


class Touches:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def a_pickle(mark: Path) -> bytes:
    return pickle.dumps(Touches(mark))


def a_zip(mark: Path) -> bytes:
    path = mark.with_suffix(".pt")
    torch.save({"weights": torch.zeros(3)}, path)
    return path.read_bytes()


@pytest.mark.parametrize("made", [a_pickle, a_zip])
@pytest.mark.parametrize("place", ["some.safetensors", "unet/diffusion_pytorch_model.safetensors"])
def test_pickle_is_refused_by_its_content_and_never_read(
    whole: Path, tmp_path: Path, made: Callable[[Path], bytes], place: str
) -> None:
    mark = tmp_path / "mark"
    folder = copied(whole, tmp_path / "model")
    path = folder / place
    path.unlink(missing_ok=True)
    path.write_bytes(made(mark))
    error = refusal(path if path.parent == folder else folder)
    assert path.name in error.cause and "any program" in error.remedy and not mark.exists()


def test_pickle_is_refused_by_its_name(whole: Path, tmp_path: Path) -> None:
    folder = copied(whole, tmp_path / "model")
    (folder / "unet" / "diffusion_pytorch_model.safetensors").unlink()
    (folder / "unet" / "diffusion_pytorch_model.bin").write_bytes(b"x")
    (tmp_path / "old.ckpt").write_bytes(b"x")
    for model in (folder, tmp_path / "old.ckpt"):
        assert "pickle" in refusal(model).cause and ".safetensors" in refusal(model).remedy


BREAKS: dict[str, tuple[str, bytes | None, str]] = {
    "missing config": ("unet/config.json", None, "unet"),
    "missing scheduler": (SCHEDULER, None, "scheduler"),
    "missing vocabulary": ("tokenizer/tokenizer.json", None, "tokenizer"),
    "pointer": ("vae/diffusion_pytorch_model.safetensors", LFS, "Git LFS pointer"),
    "empty": ("text_encoder/model.safetensors", b"", "cut off"),
    "not json": ("model_index.json", b"{", "model_index.json"),
}


@pytest.mark.parametrize("name", BREAKS)
def test_broken_folder_names_the_file(whole: Path, tmp_path: Path, name: str) -> None:
    file, data, words = BREAKS[name]
    folder = copied(whole, tmp_path / "model")
    (folder / file).unlink()
    if data is not None:
        (folder / file).write_bytes(data)
    error = refusal(folder)
    assert words in error.cause and error.remedy
    assert ("git lfs pull" in error.remedy) == (data == LFS)


def test_missing_and_truncated_shard_are_named(sharded: Path, tmp_path: Path) -> None:
    folder = copied(sharded, tmp_path / "model")
    shard = sorted((folder / "unet").glob("*-of-*.safetensors"))[1]
    data = shard.read_bytes()
    shard.unlink()
    assert shard.name in refusal(folder).cause and "lacks 1 of" in refusal(folder).cause
    shard.write_bytes(data[:-100])
    assert shard.name in refusal(folder).cause and "cut off" in refusal(folder).cause


def test_index_that_leads_out_of_its_folder_is_refused(sharded: Path, tmp_path: Path) -> None:
    folder = copied(sharded, tmp_path / "model")
    index = folder / "unet" / "diffusion_pytorch_model.safetensors.index.json"
    rewrite(index, weight_map={"conv_in.weight": "../vae/diffusion_pytorch_model.safetensors"})
    assert "do not lie beside it" in refusal(folder).cause


@pytest.mark.parametrize("model", ["no-such-profile", "some/thing", "/nowhere/model.safetensors"])
def test_unknown_model_is_told_what_there_is(model: str) -> None:
    error = refusal(Path(model))
    assert model in error.cause and "storybook" in error.remedy
    assert ("models pull" in error.remedy) == (model == "some/thing")


def test_flux_that_was_not_pulled_says_how() -> None:
    error = refusal(Path("flux"))
    assert "FLUX.1-schnell is not on this machine" in error.cause and "models pull flux" in error.remedy
