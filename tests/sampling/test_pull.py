"""Fetching models over real HTTP: only what is needed, continued, checked, and laid out for every program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from diffusers import AutoencoderTiny, StableDiffusionXLPipeline
from huggingface_hub import snapshot_download

from core.errors import StartupError, Unavailable
from sampling import pull
from sampling.hub import pulled
from sampling.model import load_model
from sampling.needs import Needs, choose_files, needs_of, own_needs
from sampling.plan import PROFILES, Source, describe, plan_of
from sampling.pull import Download, carried, digest_of, fetch, look_up, take
from tests.hub_server import HubServer
from tests.sdxl import small_pipeline, small_vae

SDXL = describe(PROFILES / "sdxl.json")


@pytest.fixture(scope="session")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """What the profile sdxl names, small, with files beside it that nobody needs."""
    folders = {name: tmp_path_factory.mktemp(name) for name in SDXL.sources}
    for name, spacing in (("base", "leading"), ("turbo", "trailing")):
        pipeline = small_pipeline(seed=1, timestep_spacing=spacing)
        pipeline.save_pretrained(folders[name], variant="fp16")
        (folders[name] / "unet" / "diffusion_pytorch_model.safetensors").write_bytes(b"the same in fp32" * 1000)
        (folders[name] / "unet" / "model.onnx").write_bytes(b"onnx" * 1000)
    small_vae().save_pretrained(folders["vae"])
    widths: Any = {"encoder_block_out_channels": (8,) * 4, "decoder_block_out_channels": (8,) * 4}
    AutoencoderTiny(**widths, scaling_factor=1.0).save_pretrained(folders["small"])
    (folders["small"] / "taesdxl_decoder.safetensors").write_bytes(b"the same again" * 1000)
    return {str(source.hub): (folders[name], source.revision) for name, source in SDXL.sources.items()}


@pytest.fixture
def hub(
    repositories: dict[str, tuple[Path, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HubServer]:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(pull, "PAUSE_S", 0.0)
    with HubServer(repositories) as server:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", server.url)
        yield server


class Told:
    def __init__(self) -> None:
        self.total = 0

    def __call__(self, count: int) -> None:
        self.total += count


def small_download() -> Download:
    """The smallest source of the profile."""
    return look_up(SDXL.sources["small"], needs_of(SDXL)["small"])


def test_profile_is_fetched_and_paints(hub: HubServer) -> None:
    """All of sdxl's sources, and nothing that it does not use; then the profile loads from them."""
    for name, needs in needs_of(SDXL).items():
        fetch(look_up(SDXL.sources[name], needs), Told())
    model = load_model("sdxl")
    assert (model.profile.id, model.schedules["preview"].spacing) == ("sdxl", "trailing")
    assert isinstance(model.vae_preview, AutoencoderTiny)
    assert not any("onnx" in name or "taesdxl_decoder" in name for name in hub.fetched())
    weights = [name for name in hub.fetched() if name.startswith(("unet/", "vae/"))]
    assert weights == ["unet/config.json", "unet/diffusion_pytorch_model.fp16.safetensors"]  # its own vae is replaced
    place = pulled(str(SDXL.sources["turbo"].hub), SDXL.sources["turbo"].revision)
    assert place is not None
    (place / "unet" / "diffusion_pytorch_model.fp16.safetensors").unlink()
    with pytest.raises(StartupError, match="models pull sdxl"):
        plan_of("sdxl")


def test_what_is_here_is_not_fetched_again(hub: HubServer) -> None:
    download, told = small_download(), Told()
    fetch(download, told)
    assert told.total == download.size_bytes and not download.missing
    asked = len(hub.requests)
    fetch(download, told)
    assert len(hub.requests) == asked and told.total == download.size_bytes


def test_other_programs_find_what_was_fetched(hub: HubServer, repositories: dict[str, tuple[Path, str]]) -> None:
    source = Source("own", hub="stabilityai/sdxl-turbo", revision="main", variant="fp16")
    folder = fetch(look_up(source, own_needs()), Told())
    assert pulled("stabilityai/sdxl-turbo") == folder
    found = snapshot_download("stabilityai/sdxl-turbo", local_files_only=True, cache_dir=folder.parents[2])
    assert Path(found) == folder
    assert plan_of("stabilityai/sdxl-turbo").profile.preview.steps == 1
    StableDiffusionXLPipeline.from_pretrained(folder, variant="fp16")


def test_transfer_that_breaks_off_goes_on_from_there(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one run, and in the next one after the process ended."""
    monkeypatch.setattr(pull, "CHUNK_BYTES", 500)  # so that something arrives before it breaks off
    download = small_download()
    hub.faults.cut_after = [3000]
    fetch(download, Told())
    assert {asked for _, asked in hub.requests if asked} == {"bytes=3000-"}
    other = look_up(SDXL.sources["vae"], needs_of(SDXL)["vae"])
    hub.faults.cut_after = [500] * pull.TRIES
    told = Told()
    with pytest.raises(Unavailable, match="pull again"):
        fetch(other, told)
    assert other.missing_bytes == other.size_bytes - told.total
    before = len(hub.requests)
    fetch(other, told)
    assert told.total == other.size_bytes
    assert f"bytes={500 * pull.TRIES}-" in [asked for _, asked in hub.requests[before:]]


def test_file_with_another_checksum_is_not_kept(hub: HubServer) -> None:
    download = small_download()
    hub.faults.forged = True
    with pytest.raises(Unavailable, match="another checksum"):
        fetch(download, Told())
    assert pulled(SDXL.sources["small"].hub or "") is None and download.missing
    hub.faults.forged = False
    assert fetch(download, Told()).is_dir()


def test_file_that_was_damaged_on_the_disk_is_fetched_again(hub: HubServer) -> None:
    download = small_download()
    folder = fetch(download, Told())
    weights = folder / "diffusion_pytorch_model.safetensors"
    data = weights.read_bytes()
    weights.resolve().write_bytes(data[:-1] + b"x")
    fetch(download, Told())
    assert weights.read_bytes() == data


def test_hub_that_says_no_is_told_with_what_to_do(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    download = small_download()
    hub.faults.gated = True
    for ask in (small_download, lambda: fetch(download, Told())):
        with pytest.raises(Unavailable, match=r"licence accepted.*HF_TOKEN"):
            ask()
    with pytest.raises(Unavailable, match="no some/thing"):
        look_up(Source("own", hub="some/thing"), own_needs())
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(Unavailable, match=r"cannot be reached.*HF_ENDPOINT.*--from FOLDER.*storybook"):
        small_download()


@pytest.mark.parametrize("named", ["models--{}--{}/snapshots/{revision}", "{}/{}", "{1}"])
def test_folder_that_was_carried_here_stands_in_for_the_hub(
    repositories: dict[str, tuple[Path, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    for hub_id, (folder, revision) in repositories.items():
        place = tmp_path / "carried" / named.format(*hub_id.split("/"), revision=revision)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(folder)
    for name, needs in needs_of(SDXL).items():
        take(SDXL.sources[name], needs, tmp_path / "carried", Told())
    assert plan_of("sdxl").profile.id == "sdxl"
    assert not list((tmp_path / "cache").rglob("*.onnx"))


def test_carried_folder_is_looked_at(
    repositories: dict[str, tuple[Path, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    source, needs = SDXL.sources["vae"], needs_of(SDXL)["vae"]
    with pytest.raises(StartupError, match=r"(?s)does not hold madebyollin/sdxl-vae-fp16-fix.*put it into"):
        carried(source, tmp_path)
    place = tmp_path / "sdxl-vae-fp16-fix"
    place.mkdir()
    (place / "config.json").write_text(json.dumps({}))
    (place / "diffusion_pytorch_model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(StartupError, match="Git LFS pointer"):
        take(source, needs, tmp_path, Told())
    assert pulled(str(source.hub), source.revision) is None


def test_repository_without_safetensors_is_refused() -> None:
    names = ["unet/config.json", "unet/diffusion_pytorch_model.bin"]
    with pytest.raises(StartupError, match="pickle") as refused:
        choose_files(Source("own", hub="a/b"), Needs({"unet"}), names)
    assert "a/b" in refused.value.cause
    with pytest.raises(StartupError, match=r"holds no lora\.safetensors"):
        choose_files(Source("own", hub="a/b"), Needs(files={"lora.safetensors"}), names)


def test_shards_are_chosen_with_their_index() -> None:
    shards = [f"unet/diffusion_pytorch_model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    variant = [f"unet/diffusion_pytorch_model.fp16-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index = [
        "unet/diffusion_pytorch_model.safetensors.index.json",
        "unet/diffusion_pytorch_model.safetensors.index.fp16.json",
    ]
    names = ["unet/config.json", *shards, *variant, *index]
    needs = Needs({"unet"})
    assert choose_files(Source("a", hub="a/b"), needs, names) == sorted(["unet/config.json", *shards, index[0]])
    found = choose_files(Source("a", hub="a/b", variant="fp16"), needs, names)
    assert found == sorted(["unet/config.json", *variant, index[1]])


def test_flux_is_fetched_in_its_parts_and_not_twice() -> None:
    """The repositories hold the same weights as one file of the original layout, too."""
    described = describe(PROFILES / "flux.json")
    shards = [f"transformer/diffusion_pytorch_model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]
    text = [f"text_encoder_2/model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    wanted = [
        "model_index.json", "scheduler/scheduler_config.json", "vae/config.json", "text_encoder/config.json",
        "vae/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors", "text_encoder_2/config.json",
        "text_encoder_2/model.safetensors.index.json", *text, "transformer/config.json", *shards,
        "transformer/diffusion_pytorch_model.safetensors.index.json", "tokenizer/vocab.json", "tokenizer/merges.txt",
        "tokenizer_2/spiece.model", "tokenizer_2/tokenizer.json",
    ]  # fmt: skip
    names = [*wanted, "flux1-schnell.safetensors", "ae.safetensors", "README.md", "schnell_grid.jpeg"]
    needs = needs_of(described)["schnell"]
    assert choose_files(described.sources["schnell"], needs, names) == sorted(wanted)
    assert choose_files(Source("own", hub="a/b"), own_needs(), names) == sorted(wanted)


def test_digest_is_that_of_git_for_small_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"hello\n")
    assert digest_of(path, 40) == "ce013625030ba8dba906f756967f9e9ca394464a"
