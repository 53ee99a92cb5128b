"""Every layout that people download loads, with the same weights in it; small random models of the architecture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionXLPipeline

from core.errors import StartupError
from core.profile import Bucket
from sampling import pool_parts
from sampling.denoiser import Denoiser
from sampling.encoder import Encoder
from sampling.layout import choose_weights
from sampling.loop import StepLoop
from sampling.model import Model, load_model
from shared_cache.embeddings import ByteLRU
from tests.sampling.conftest import Clock, NoStyles, row_of
from tests.sampling.test_kinds import copied, rewrite
from tests.sdxl import configs_of, published, single_file

LAYOUTS: dict[str, dict[str, Any]] = {
    "variant": {"variant": "fp16"},
    "sharded": {"shards": True},
    "sharded variant": {"shards": True, "variant": "fp16"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published(tmp_path_factory.mktemp("published") / "Tiny XL")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Model:
    return load_model(folder)


def networks_of(model: Model) -> list[torch.nn.Module]:
    assert model.vae is not None
    texts = [tower.encoder for tower in model.text().towers]
    return [model.network("preview"), model.network("final"), model.vae, *texts]


def assert_equal(one: Model, other: Model) -> None:
    for mine, theirs in zip(networks_of(one), networks_of(other), strict=True):
        state = theirs.state_dict()
        assert mine.state_dict().keys() == state.keys()
        assert all(torch.equal(weight, state[name]) for name, weight in mine.state_dict().items())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_published_layout_loads_the_same_weights(plain: Model, tmp_path: Path, layout: str) -> None:
    assert_equal(load_model(published(tmp_path / "model", **LAYOUTS[layout])), plain)


def test_single_file_loads_the_same_weights(
    plain: Model, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_parts, "SDXL", configs_of(folder, tmp_path / "configs"))
    model = load_model(single_file(folder, tmp_path / "My Merge v2.safetensors"))
    assert_equal(model, plain)
    assert model.profile.id == "my-merge-v2"
    assert not model.schedules["final"].predicts_v


def test_single_file_says_how_it_was_trained(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainers of velocity models leave two empty tensors for it."""
    monkeypatch.setattr(pool_parts, "SDXL", configs_of(folder, tmp_path / "configs"))
    marks = {"v_pred": torch.empty(0), "ztsnr": torch.empty(0)}
    schedule = load_model(single_file(folder, tmp_path / "v.safetensors", **marks)).schedules["final"]
    assert schedule.predicts_v and schedule.spacing == "trailing" and schedule.alphas_cumprod[-1] < 1e-6


def test_picture_of_a_published_folder_equals_the_stock_pipeline(plain: Model, folder: Path) -> None:
    """Leading spacing, epsilon and an empty prompt of zeros, as the folder's configs say."""
    pipeline = StableDiffusionXLPipeline.from_pretrained(folder, add_watermarker=False)
    pipeline.set_progress_bar_config(disable=True)
    stock = pipeline(
        "a fox in the snow", width=128, height=128, num_inference_steps=3, guidance_scale=4.0,
        generator=torch.Generator().manual_seed(5), output_type="latent",
    ).images[0]  # fmt: skip
    encoder = Encoder(plain, ByteLRU(1 << 24))
    row = row_of(
        embedding=encoder.encode("a fox in the snow"), negative=encoder.encode(""), bucket=Bucket(128, 128), steps=3,
        guidance_scale=4.0, seed=5,
    )  # fmt: skip
    loop = StepLoop(Denoiser(plain, "final"), NoStyles(), 8, Clock())  # type: ignore[arg-type]
    loop.join(row)
    while loop.rows:
        assert not loop.step().failed
    torch.testing.assert_close(row.latents, stock, atol=2e-3 * float(stock.abs().max()), rtol=0)


def test_pools_of_one_folder_share_the_memory_of_their_weights(plain: Model) -> None:
    preview, final = plain.network("preview"), plain.network("final")
    assert preview is not final
    assert all(a is b for a, b in zip(preview.parameters(), final.parameters(), strict=True))


def test_adapter_takes_memory_for_the_layers_it_changes_alone(model: Model) -> None:
    shared = {id(weight) for weight in model.network("final").parameters()}
    own = [name for name, weight in model.network("preview").named_parameters() if id(weight) not in shared]
    assert own and "conv_in.weight" not in own


def test_weights_of_the_wrong_shape_are_refused(folder: Path, tmp_path: Path) -> None:
    """A single file has the published configs: weights of another size do not pass for them."""
    with pytest.raises(StartupError, match="lacks 72 weights of vae"):
        load_model(single_file(folder, tmp_path / "small.safetensors"), roles=("decode",))
    other = copied(folder, tmp_path / "other")
    rewrite(other / "vae" / "config.json", block_out_channels=[16] * 4)
    with pytest.raises(StartupError, match="of vae is 8 x 3 x 3 x 3, its config says 16"):
        load_model(other, roles=("decode",))


@pytest.mark.parametrize(
    ("names", "variant", "chosen"),
    [
        (["model.safetensors", "model.fp16.safetensors"], "fp16", "model.fp16.safetensors"),
        (["model.safetensors", "model.fp16.safetensors"], None, "model.safetensors"),
        (["model.safetensors"], "fp16", "model.safetensors"),
        (["diffusion_pytorch_model.bf16.safetensors"], None, "diffusion_pytorch_model.bf16.safetensors"),
        (["diffusion_pytorch_model.non_ema.safetensors"], None, None),
        (["taesdxl_decoder.safetensors", "model.safetensors"], None, "model.safetensors"),
        (["model.fp16.safetensors.index.json"], "fp16", "model.fp16.safetensors.index.json"),
        (["diffusion_pytorch_model.bin", "openvino_model.xml"], None, None),
    ],
)  # fmt: skip
def test_one_file_is_chosen_among_many(names: list[str], variant: str | None, chosen: str | None) -> None:
    assert choose_weights(names, variant) == chosen
