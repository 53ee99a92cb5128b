"""Where a model runs: what is not there is refused with what would do, before any weight is read."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from core.errors import StartupError
from core.settings import load_settings
from sampling import device as devices
from sampling import lora
from sampling.device import device_of, settled
from sampling.families import FLUX_FAMILY, SDXL_FAMILY
from sampling.lora_names import UNET
from sampling.memory import GB, check_fits
from sampling.model import Model, load_model
from sampling.packs import Layout, Placed, make_pack
from sampling.traced import TracedUNet
from sampling.tuned import quantise, tune
from sampling.tuning import Compile, Tuning
from styles.catalogue import load_catalogue

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


def test_auto_takes_the_processor_where_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == CPU == device_of("cpu")
    with pytest.raises(StartupError, match="there is no CUDA device"):
        device_of("cuda")


@pytest.mark.usefixtures("two_gpus")
def test_a_gpu_by_its_number() -> None:
    assert device_of("auto") == GPU == device_of("cuda")
    assert device_of("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(StartupError, match="there are 2 CUDA devices"):
        device_of("cuda:2")


@pytest.mark.parametrize("asked", ["gpu", "cuda:", "mps", "cuda:x"])
def test_other_devices_are_no_setting(asked: str) -> None:
    with pytest.raises(StartupError, match="device"):
        load_settings(device=asked)


def test_each_device_has_its_own_defaults() -> None:
    assert settled(Tuning(), CPU, SDXL_FAMILY) == Tuning(dtype="float32", compile=Compile.OFF)
    assert settled(Tuning(), GPU, SDXL_FAMILY) == Tuning(dtype="float16", compile=Compile.REGIONAL)
    assert settled(Tuning(offload=True), GPU, SDXL_FAMILY).compile is Compile.OFF
    assert settled(Tuning(dtype="bfloat16", compile=Compile.WHOLE), CPU, SDXL_FAMILY).compile is Compile.WHOLE
    assert settled(Tuning(), GPU, FLUX_FAMILY) == Tuning(dtype="bfloat16", compile=Compile.REGIONAL)


def test_attention_of_flux_is_not_cut_into_slices() -> None:
    with pytest.raises(StartupError, match="attention_slicing cannot be had: the attention of flux"):
        settled(Tuning(attention_slicing=True), GPU, FLUX_FAMILY)


@pytest.mark.parametrize(
    ("tuning", "named"),
    [
        (Tuning(weights="fp8"), "a processor cannot multiply in it"),
        (Tuning(cuda_graphs=True), "cuda_graphs cannot be had"),
        (Tuning(offload=True), "offload cannot be had"),
    ],
)
def test_a_processor_refuses_what_it_cannot(bundle: Path, tuning: Tuning, named: str) -> None:
    with pytest.raises(StartupError, match=named):
        load_model(bundle, tuning=tuning)


def test_fp8_wants_a_gpu_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(StartupError, match=r"capability 8\.0, fp8 begins at 8\.9"):
        settled(Tuning(weights="fp8"), GPU, SDXL_FAMILY)


def test_quantised_weights_want_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_spec", lambda _: None)
    with pytest.raises(StartupError) as refused:
        settled(Tuning(weights="int8"), CPU, SDXL_FAMILY)
    assert (refused.value.cause, refused.value.remedy) == (
        "the option weights int8 needs torchao, which is not installed",
        "pip install torchao",
    )


def test_a_gpu_has_memory_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sampling.memory.free_bytes", lambda: int(0.001 * GB))
    check_fits("storybook", ("final",), "cuda")
    with pytest.raises(StartupError, match="are missing"):
        check_fits("storybook", ("final",), "cpu")


@torch.no_grad()
def test_offloaded_weights_still_meet_the_styles(model: Model) -> None:
    """Offloading replaces each layer's forward: what styles add must be in it."""
    unet = copy.deepcopy(model.network("final"))
    sample = torch.randn(1, model.latent_channels, 16, 16)
    given = (sample, torch.tensor([500.0]), torch.randn(1, 77, 256), torch.randn(1, 128))
    path = load_catalogue(model.profile.styles).paths()["ink"]
    ink = make_pack([lora.read(path, model.networks())[UNET]], torch.float32)
    acting = Layout().gather([Placed(ink, (1.0,))], CPU, torch.float32)
    plain = TracedUNet(model.network("final")).eager((*given, torch.full((1, 6), 128.0)), None, acting)
    tune(unet, Tuning(offload=True, attention_slicing=True), CPU)
    offloaded = TracedUNet(unet).eager((*given, torch.full((1, 6), 128.0)), None, acting)
    torch.testing.assert_close(offloaded, plain, atol=1e-4, rtol=0)


@torch.no_grad()
def test_int8_holds_large_matrices_alone() -> None:
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.Linear(512, 64))
    x = torch.randn(3, 256)
    plain = network(x)
    quantise(network, "int8")
    assert [type(layer.weight.data) is torch.Tensor for layer in network] == [False, True]
    error = (network(x) - plain).norm() / plain.norm()
    assert 0 < error < 0.02
