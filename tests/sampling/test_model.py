"""Loading by role, and refusing a folder that would load as noise."""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file

from core.errors import StartupError
from sampling.bank import Bank
from sampling.decode import Decoder
from sampling.denoiser import Denoiser
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import Model, load_model
from sampling.warmup import warm
from shared_cache.embeddings import ByteLRU
from tests.sampling.conftest import NoStyles
from tests.telling import lines


def test_model_reads_what_the_roles_need(bundle: Path) -> None:
    decode = load_model(bundle, roles=("decode",))
    assert decode.vae is not None
    assert (decode.texts, decode.network_preview, decode.network_final) == ({}, None, None)
    with pytest.raises(StartupError, match="--roles"):
        decode.network("preview")
    assert load_model(bundle, roles=("finish",)).vae is None
    final = load_model(bundle, roles=("final",))
    assert final.decoder("preview") is final.decoder("final")  # the bundle has one for both


def test_model_tells_its_shape(model: Model) -> None:
    assert (model.latent_channels, model.vae_scale) == (8, 8)
    schedule = model.schedules["preview"]
    assert (len(schedule.alphas_cumprod), schedule.predicts_v, schedule.spacing) == (1000, True, "trailing")
    assert model.text().zero_empty is False
    assert model.text("preview") is model.text("final")


def test_pools_have_their_own_weights(model: Model) -> None:
    preview, final = model.network("preview"), model.network("final")
    assert preview is not final
    assert not torch.equal(preview.conv_in.weight, final.conv_in.weight) or not torch.equal(
        preview.mid_block.attentions[0].proj_in.weight, final.mid_block.attentions[0].proj_in.weight
    )
    assert not any(parameter.requires_grad for parameter in final.parameters())


def test_model_is_refused_when_weights_are_missing(bundle: Path, tmp_path: Path) -> None:
    """The libraries fill missing weights with noise and carry on."""
    folder = tmp_path / "model"
    shutil.copytree(bundle, folder)
    path = folder / "unet" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(path)
    del tensors["conv_in.weight"]
    save_file(tensors, path)
    with pytest.raises(StartupError, match=r"conv_in\.weight"):
        load_model(folder, roles=("final",))


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [("vae/config.json", "_class_name", "Mystery"), ("scheduler/scheduler_config.json", "prediction_type", "sample")],
)
def test_model_is_refused_when_a_part_is_of_unknown_kind(
    bundle: Path, tmp_path: Path, file: str, key: str, value: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bundle, folder)
    fields = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps({**fields, key: value}))
    with pytest.raises(StartupError, match=value):
        load_model(folder, roles=("decode",))


@pytest.mark.parametrize(
    ("file", "changes", "words"),
    [
        ("unet/config.json", {"block_out_channels": "abc"}, "config of unet"),
        ("unet/config.json", {"block_out_channels": [-1, -1]}, "config of unet"),
        ("unet/config.json", {"block_out_channels": [10**9, 10**9]}, "config of unet"),
        ("scheduler/scheduler_config.json", {"beta_start": "low"}, "the scheduler's config"),
        ("tokenizer/tokenizer.json", ..., "tokenizer"),
    ],
)
def test_model_whose_configs_make_no_sense_is_named(
    bundle: Path, tmp_path: Path, file: str, changes: Any, words: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bundle, folder)
    fields = {} if changes is ... else {**json.loads((folder / file).read_text()), **changes}
    (folder / file).write_text(json.dumps(fields))
    with pytest.raises(StartupError, match=words):
        load_model(folder)


def test_model_that_gives_what_is_not_finite_does_not_start(model: Model) -> None:
    network = copy.deepcopy(model.network("final"))
    network.conv_out.weight.fill_(torch.nan)
    broken = replace(model, network_final=network)
    loop = StepLoop(Denoiser(broken, "final"), NoStyles(), 4, perf_counter)
    with pytest.raises(StartupError, match=r"cannot paint.*not finite"):
        warm(loop, Encoder(broken, ByteLRU(1 << 20)), Decoder(broken), broken.profile.final)


def test_style_that_gives_what_is_not_finite_does_not_keep_a_worker_from_starting(
    model: Model, bundle: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ink, huge = bundle / "styles/ink.safetensors", tmp_path / "huge.safetensors"
    save_file({key: tensor.float() * 1e20 for key, tensor in load_file(ink).items()}, huge)
    loop = StepLoop(Denoiser(model, "final"), Bank(model, {"ink": ink, "huge": huge}, 4, lambda: None), 4, perf_counter)
    warm(loop, Encoder(model, ByteLRU(1 << 20)), Decoder(model), model.profile.final, ["huge", "ink"])
    (told,) = lines(caplog, "sampling.warmup")
    assert told.startswith("a style cannot be used: styles: huge:1: ")


@pytest.fixture
def two_decoders(bundle: Path, tmp_path: Path) -> Path:
    """The bundle with a larger decoder for finals, 16 pixels a latent, and its own for previews."""
    folder = tmp_path / "model"
    shutil.copytree(bundle, folder)
    (folder / "vae").rename(folder / "small")
    blocks = ("DownEncoderBlock2D",) * 5, ("UpDecoderBlock2D",) * 5
    large = AutoencoderKL(3, 3, *blocks, (8,) * 5, latent_channels=8, norm_num_groups=2, scaling_factor=0.5)
    large.save_pretrained(folder / "vae")
    fields = json.loads((folder / "storybook.json").read_text())
    fields["preview"]["decoder"] = "small"
    fields["buckets"] = [[2 * side for side in bucket] for bucket in fields["buckets"]]
    (folder / "storybook.json").write_text(json.dumps(fields))
    return folder


def test_previews_have_a_decoder_of_their_own(two_decoders: Path) -> None:
    model = load_model(two_decoders)
    assert model.vae_scale == 16
    latents = torch.zeros(1, 8, 16, 16)
    assert Decoder(model, "preview").decode(latents).shape == (1, 128, 128, 3)
    assert Decoder(model, "final").decode(latents).shape == (1, 256, 256, 3)
    assert load_model(two_decoders, roles=("final",)).vae is None
    with pytest.raises(StartupError, match="decode"):
        load_model(two_decoders, roles=("preview",)).decoder("final")
    with pytest.raises(StartupError, match="preview or final"):
        load_model(two_decoders, roles=("decode",)).decoder("preview")
    (two_decoders / "small" / "config.json").unlink()
    with pytest.raises(StartupError, match="small"):
        load_model(two_decoders)


def test_model_in_bfloat16_holds_that_dtype(bundle: Path) -> None:
    made = load_model(bundle, dtype=torch.bfloat16, roles=("preview",))
    assert made.network("preview").dtype is torch.bfloat16
    assert made.network_final is None
