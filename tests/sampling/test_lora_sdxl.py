"""Public LoRA layouts on the true shapes of SDXL: every key of every layer finds its place; no weight is in memory."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.original_layout import unet_name
from benchmarks.random_sdxl import networks
from sampling import lora
from sampling.lora import Networks
from sampling.lora_names import TEXT, TEXT_2, UNET
from styles.fit import Fit, check_fit
from tests.telling import lines

RANK, ALPHA = 2, 1.0
Shape = tuple[int, ...]
Named = Callable[[str, str], tuple[str, str, str | None]]


@pytest.fixture(scope="module")
def sdxl() -> Networks:
    made = networks()
    return Networks.of(made["unet"], [made["text_encoder"], made["text_encoder_2"]])


@pytest.fixture(scope="module")
def config() -> Mapping[str, object]:
    return dict(networks()["unet"].config)


def styled(sdxl: Networks) -> dict[str, dict[str, Shape]]:
    """What public files act on: all layers of the UNet's blocks, convolutions too, and the text encoders' layers."""
    unet = {name: shape for name, shape in sdxl.shapes[UNET].items() if "blocks" in name or "mid_block" in name}
    texts = {part: {n: s for n, s in sdxl.shapes[part].items() if ".layers." in n} for part in (TEXT, TEXT_2)}
    return {UNET: unet, **texts}


def matrices(shape: Shape) -> tuple[Tensor, Tensor]:
    out, inner, *kernel = shape
    down = torch.full((RANK, inner, *kernel), 0.1)
    return down, torch.full((out, RANK, *([1] * len(kernel))), 0.1)


def text_layer(name: str) -> str:
    """As published: under text_model, whatever the installed library calls it."""
    return f"text_model.{name.removeprefix('text_model.')}"


def of_diffusers(part: str, name: str) -> tuple[str, str, str | None]:
    layer = f"{name}.lora" if part == UNET else f"{text_layer(name)}.lora_linear_layer"
    return f"{part}.{layer}.down.weight", f"{part}.{layer}.up.weight", None


def of_peft(part: str, name: str) -> tuple[str, str, str | None]:
    layer = name if part == UNET else text_layer(name)
    return f"{part}.{layer}.lora_A.weight", f"{part}.{layer}.lora_B.weight", None


def kohya(prefix: str, layer: str) -> tuple[str, str, str | None]:
    flat = f"{prefix}_{layer.replace('.', '_')}"
    return f"{flat}.lora_down.weight", f"{flat}.lora_up.weight", f"{flat}.alpha"


PREFIXES = {UNET: "lora_unet", TEXT: "lora_te1", TEXT_2: "lora_te2"}


def of_kohya(part: str, name: str) -> tuple[str, str, str | None]:
    """With the blocks as diffusers names them, as the LCM adapter has them."""
    return kohya(PREFIXES[part], name if part == UNET else text_layer(name))


def of_kohya_original(part: str, name: str) -> tuple[str, str, str | None]:
    """With the blocks of the original code (input_blocks_4_1_…), as most shared files have them."""
    if part != UNET:
        return of_kohya(part, name)
    original = unet_name(f"{name}.weight", 3, {"up_block_types": ["CrossAttnUpBlock2D"] * 2 + ["UpBlock2D"]})
    return kohya("lora_unet", original.removesuffix(".weight"))


LAYOUTS: dict[str, tuple[Named, str]] = {
    "diffusers": (of_diffusers, "attn"),
    "peft": (of_peft, "."),
    "kohya": (of_kohya, "."),
    "kohya, original blocks": (of_kohya_original, "attn|ff|proj_in|proj_out"),
    "kohya, original blocks with convolutions": (of_kohya_original, "."),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_key_finds_its_layer(
    sdxl: Networks, tmp_path: Path, caplog: pytest.LogCaptureFixture, layout: str
) -> None:
    named, chosen = LAYOUTS[layout]
    tensors: dict[str, Tensor] = {}
    wanted: dict[str, set[str]] = {}
    for part, shapes in styled(sdxl).items():
        for name, shape in shapes.items():
            if part == UNET and not re.search(chosen, name):
                continue
            down, up, alpha = named(part, name)
            tensors[down], tensors[up] = matrices(shape)
            if alpha is not None:
                tensors[alpha] = torch.tensor(ALPHA)
            wanted.setdefault(part, set()).add(name)
    save_file(tensors, tmp_path / "style.safetensors")
    check_fit(tmp_path / "style.safetensors", Fit.made(sdxl.name, sdxl.shapes, sdxl.text_width))
    with caplog.at_level(logging.WARNING):
        parts = lora.read(tmp_path / "style.safetensors", sdxl)
    assert {part: set(layers) for part, layers in parts.items()} == wanted
    assert not lines(caplog, "sampling")  # a file of which a part does not act is told
    scale = ALPHA / RANK if "kohya" in layout else 1.0
    for layers in parts.values():
        for layer in layers.values():
            assert torch.allclose(layer.up, torch.full_like(layer.up, 0.1 * scale))
