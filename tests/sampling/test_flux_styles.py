"""Styles of FLUX: every layout's keys find their layers, pictures are the stock pipeline's, rows keep to their own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.random_flux import parts
from core.errors import InvalidInput
from core.recipe import Sampler, StyleUse
from core.settings import Settings
from sampling import lora
from sampling.bank import Bank
from sampling.compiled import compilations
from sampling.decode import Decoder
from sampling.denoiser import Denoiser
from sampling.encoder import Encoder
from sampling.flux_forward import packed
from sampling.loop import BATCH_TOLERANCE, StepLoop
from sampling.lora import Networks
from sampling.lora_names import TEXT, TRANSFORMER
from sampling.model import Model, load_model
from sampling.rows import Row
from sampling.tuning import Compile, Tuning
from sampling.warmup import warm
from sampling.weights import empty
from shared_cache.embeddings import ByteLRU
from styles.catalogue import open_catalogue
from styles.fit import Fit, check_fit
from tests.flux import flux_profile
from tests.sampling.conftest import painted
from tests.sampling.style_files import random_layers
from tests.telling import lines

RANK, ALPHA = 4, 2.0
STOCK_TOLERANCE = 1e-4
DOUBLE, SINGLE = "transformer_blocks.0", "single_transformer_blocks.0"
Tensors = dict[str, Tensor]

# What FLUX's own code has as one layer, and diffusers as several.
ORIGINAL: Mapping[str, tuple[str, ...]] = {
    "double_blocks.0.img_attn.qkv": tuple(f"{DOUBLE}.attn.to_{part}" for part in "qkv"),
    "double_blocks.0.txt_attn.qkv": tuple(f"{DOUBLE}.attn.add_{part}_proj" for part in "qkv"),
    "double_blocks.0.img_attn.proj": (f"{DOUBLE}.attn.to_out.0",),
    "double_blocks.0.txt_attn.proj": (f"{DOUBLE}.attn.to_add_out",),
    "double_blocks.0.img_mlp.0": (f"{DOUBLE}.ff.net.0.proj",),
    "double_blocks.0.txt_mlp.2": (f"{DOUBLE}.ff_context.net.2",),
    "double_blocks.0.img_mod.lin": (f"{DOUBLE}.norm1.linear",),
    "single_blocks.0.linear1": (*(f"{SINGLE}.attn.to_{part}" for part in "qkv"), f"{SINGLE}.proj_mlp"),
    "single_blocks.0.linear2": (f"{SINGLE}.proj_out",),
    "single_blocks.0.modulation.lin": (f"{SINGLE}.norm.linear",),
}
XLABS = {
    "double_blocks.0.img_attn.qkv": "double_blocks.0.processor.qkv_lora1",
    "double_blocks.0.txt_attn.qkv": "double_blocks.0.processor.qkv_lora2",
    "double_blocks.0.img_attn.proj": "double_blocks.0.processor.proj_lora1",
    "double_blocks.0.txt_attn.proj": "double_blocks.0.processor.proj_lora2",
}


@pytest.fixture(scope="module")
def wide() -> Networks:
    """At full width, since one layout's conversion knows the published widths alone; without weights."""
    made = parts("dev")
    return Networks.of(empty(made["transformer"]), [empty(made["text_encoder"])])


def halves(outs: list[int], inside: int, seed: int) -> tuple[Tensor, Tensor]:
    """One down, and up of all parts below each other."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(RANK, inside, generator=rng), torch.randn(sum(outs), RANK, generator=rng)


def of_kohya(name: str, down: Tensor, up: Tensor) -> Tensors:
    flat = f"lora_unet_{name.replace('.', '_')}"
    return {f"{flat}.lora_down.weight": down, f"{flat}.lora_up.weight": up, f"{flat}.alpha": torch.tensor(ALPHA)}


def of_flux_code(name: str, down: Tensor, up: Tensor) -> Tensors:
    return {f"diffusion_model.{name}.lora_A.weight": down, f"diffusion_model.{name}.lora_B.weight": up}


def of_xlabs(name: str, down: Tensor, up: Tensor) -> Tensors:
    if name not in XLABS:
        return {}
    return {f"{XLABS[name]}.down.weight": down, f"{XLABS[name]}.up.weight": up}


FUSED: dict[str, tuple[Callable[[str, Tensor, Tensor], Tensors], float]] = {
    "kohya": (of_kohya, ALPHA / RANK),
    "FLUX's own code": (of_flux_code, 1.0),
    "XLabs": (of_xlabs, 1.0),
}


@pytest.mark.parametrize("layout", FUSED)
def test_layers_that_a_layout_has_as_one_are_told_apart(
    wide: Networks, tmp_path: Path, caplog: pytest.LogCaptureFixture, layout: str
) -> None:
    named, scale = FUSED[layout]
    shapes, tensors, wanted = wide.shapes[TRANSFORMER], {}, {}
    for seed, (original, layers) in enumerate(ORIGINAL.items()):
        outs = [shapes[layer][0] for layer in layers]
        down, up = halves(outs, shapes[layers[0]][1], seed)
        made = named(original, down, up)
        tensors |= made
        wanted |= {layer: (down, part) for layer, part in zip(layers, up.split(outs), strict=True) if made}
    save_file(tensors, tmp_path / "style.safetensors")
    check_fit(tmp_path / "style.safetensors", Fit.made(wide.name, wide.shapes, wide.text_width))
    with caplog.at_level(logging.WARNING):
        found = lora.read(tmp_path / "style.safetensors", wide)[TRANSFORMER]
    assert set(found) == set(wanted) and not lines(caplog, "sampling")
    for name, (down, up) in wanted.items():
        delta, expected = found[name].up @ found[name].down[:, :8], scale * up @ down[:, :8]
        torch.testing.assert_close(delta, expected, msg=name)


def of_diffusers(name: str) -> str:
    return f"transformer.{name}"


def of_peft(name: str) -> str:
    return f"base_model.model.{name}"


@pytest.mark.parametrize("named", [of_diffusers, of_peft])
def test_names_of_diffusers_find_every_layer(wide: Networks, tmp_path: Path, named: Callable[[str], str]) -> None:
    tensors = {}
    for name, (out, inside) in wide.shapes[TRANSFORMER].items():
        down, up = halves([out], inside, 0)
        tensors |= {f"{named(name)}.lora_A.weight": down, f"{named(name)}.lora_B.weight": up}
    save_file(tensors, tmp_path / "style.safetensors")
    check_fit(tmp_path / "style.safetensors", Fit.made(wide.name, wide.shapes, wide.text_width))
    assert set(lora.read(tmp_path / "style.safetensors", wide)[TRANSFORMER]) == set(wide.shapes[TRANSFORMER])


def test_text_encoder_acts_in_the_layouts_that_have_it(wide: Networks, tmp_path: Path) -> None:
    layer = "encoder.layers.0.self_attn.q_proj"
    down, up = halves([768], 768, 0)
    flat = f"lora_te1_text_model_{layer.replace('.', '_')}"
    kohya = {f"{flat}.lora_down.weight": down, f"{flat}.lora_up.weight": up, f"{flat}.alpha": torch.tensor(ALPHA)}
    save_file(kohya | of_kohya("double_blocks.0.img_attn.proj", *halves([3072], 3072, 1)), tmp_path / "a.safetensors")
    name = f"text_encoder.text_model.{layer}"
    save_file({f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up}, tmp_path / "b.safetensors")
    for file, scale in (("a", ALPHA / RANK), ("b", 1.0)):
        ((found, matrices),) = lora.read(tmp_path / f"{file}.safetensors", wide)[TEXT].items()
        assert found.endswith(layer)
        torch.testing.assert_close(matrices.up @ matrices.down, scale * up @ down)


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = flux_profile(tmp_path_factory.mktemp("flux"))
    (path.parent / "styles").mkdir()
    return path


@pytest.fixture(scope="module")
def flux(profile: Path) -> Model:
    model = load_model(profile)
    for seed, style in enumerate(("ink", "felt")):
        style_file(model.networks("final"), profile.parent / "styles" / f"{style}.safetensors", seed)
    return model


def style_file(networks: Networks, path: Path, seed: int) -> None:
    """Of the transformer, strong enough to be seen, and of the first text encoder."""
    tensors = {}
    for component in (TRANSFORMER, TEXT):
        shapes = networks.shapes[component]
        names = [name for name in shapes if "to_" in name or "proj" in name or "norm1" in name]
        for key, tensor in random_layers(shapes, names, RANK, seed).items():
            name, half = key.split("|")
            kind, factor = ("lora_A", 1.0) if half == "down" else ("lora_B", 4.0)
            tensors[f"{component}.{name}.{kind}.weight"] = tensor * factor
    save_file(tensors, path)


@pytest.fixture(scope="module")
def paths(profile: Path, flux: Model) -> dict[str, Path]:
    return open_catalogue(Settings(model=str(profile))).paths()


def loop_of(model: Model, paths: Mapping[str, Path]) -> tuple[StepLoop, Bank]:
    bank = Bank(model, paths, 2, lambda: None, "final")
    return StepLoop(Denoiser(model, "final", backend="eager"), bank, 4, perf_counter), bank


@pytest.fixture(scope="module")
def loop(flux: Model, paths: dict[str, Path]) -> Iterator[StepLoop]:
    made, bank = loop_of(flux, paths)
    yield made
    bank.close()


def rows_of(model: Model, paths: Mapping[str, Path], kinds: str) -> list[Row]:
    """One row a letter: p plain, i in ink, f in felt, b in both."""
    uses = {"i": ("ink",), "f": ("felt",), "b": ("ink", "felt")}
    encoder = Encoder(model, ByteLRU(2**24), paths, pool="final")
    rows = []
    for i, kind in enumerate(kinds):
        styles = tuple(StyleUse(style, 0.7) for style in uses.get(kind, ()))
        fields: dict[str, Any] = {"sampler": Sampler.EULER, "seed": i, "embedding": encoder.encode("a cat", styles)}
        rows.append(Row(f"{i}", model.profile.final.buckets[0], 2, 2.0 + i, styles=styles, **fields))
    return rows


def stock(profile: Path, styles: tuple[str, ...], seed: int, guidance: float) -> Tensor:
    pipeline = FluxPipeline.from_pretrained(profile.parent / "dev")
    pipeline.set_progress_bar_config(disable=True)
    for style in styles:
        pipeline.load_lora_weights(load_file(profile.parent / "styles" / f"{style}.safetensors"), adapter_name=style)
    if styles:
        pipeline.set_adapters(list(styles), [0.7] * len(styles))
    generator = torch.Generator().manual_seed(seed)
    made: Tensor = pipeline(
        "a cat", height=64, width=64, num_inference_steps=2, guidance_scale=guidance, generator=generator,
        output_type="latent",
    ).images[0]  # fmt: skip
    return made


def test_rows_of_one_batch_are_painted_as_the_stock_pipeline_paints_each(
    flux: Model, profile: Path, paths: dict[str, Path], loop: StepLoop
) -> None:
    kinds: dict[str, tuple[str, ...]] = {"p": (), "i": ("ink",), "f": ("felt",), "b": ("ink", "felt")}
    found = painted(loop, rows_of(flux, paths, "pifb"))
    plain = stock(profile, (), 1, 3.0)
    for i, (latents, styles) in enumerate(zip(found, kinds.values(), strict=True)):
        theirs = stock(profile, styles, i, 2.0 + i)
        assert float((packed(latents[None], 2)[0] - theirs).abs().max()) <= STOCK_TOLERANCE, styles
    assert float((packed(found[1][None], 2)[0] - plain).abs().max()) > 0.1  # the style is seen


def test_batched_is_alone_and_plain_is_as_before(flux: Model, paths: dict[str, Path], loop: StepLoop) -> None:
    before = painted(loop, rows_of(flux, paths, "p"))[0]
    batched = painted(loop, rows_of(flux, paths, "pifb"))
    for i in range(4):
        (alone,) = painted(loop, rows_of(flux, paths, "pifb")[i : i + 1])
        assert float((alone - batched[i]).abs().max()) <= BATCH_TOLERANCE
    assert torch.equal(painted(loop, rows_of(flux, paths, "p"))[0], before)


def test_compiled_network_compiles_nothing_on_live_traffic(
    profile: Path, flux: Model, paths: dict[str, Path], loop: StepLoop
) -> None:
    model = load_model(profile, roles=("final", "decode"), tuning=Tuning(compile=Compile.REGIONAL))
    compiled, bank = loop_of(model, paths)
    final = model.profile.final
    encoder, pool = Encoder(model, ByteLRU(2**24), paths, pool="final"), replace(final, buckets=final.buckets[:1])
    before = compilations()
    warm(compiled, encoder, Decoder(model), pool, list(paths))
    assert compilations() > before
    before = compilations()
    for kinds in ("p", "i", "pp", "pif", "fpbi"):
        found, expected = (painted(one, rows_of(flux, paths, kinds)) for one in (compiled, loop))
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=0)
    assert (compilations(), compiled.denoiser.unserved) == (before, 0)
    bank.close()


FOREIGN: dict[str, tuple[Callable[[], Tensors], str]] = {
    "of SDXL": (
        lambda: pair("unet.down_blocks.1.attentions.0.proj_in"),
        r"another model \(SDXL or Stable Diffusion\); this one is FLUX",
    ),
    "of SDXL, kohya's": (
        lambda: pair("lora_unet_input_blocks_4_1_proj_in"),
        r"another model \(SDXL or Stable Diffusion\); this one is FLUX",
    ),
    "of another width": (lambda: pair(f"transformer.{DOUBLE}.attn.to_q"), "does not fit this model"),
    "of no layer": (lambda: pair("transformer.other.to_q"), "0 of 2 keys matched; this model is FLUX"),
    "half of a layer": (lambda: {f"transformer.{DOUBLE}.attn.to_q.lora_A.weight": torch.ones(4, 32)}, "lack one"),
}


def pair(name: str) -> Tensors:
    return {f"{name}.lora_A.weight": torch.ones(4, 20), f"{name}.lora_B.weight": torch.ones(20, 4)}


@pytest.mark.parametrize("what", FOREIGN)
def test_file_that_does_not_fit_is_refused_with_its_reason(flux: Model, tmp_path: Path, what: str) -> None:
    made, reason = FOREIGN[what]
    path, networks = tmp_path / "style.safetensors", flux.networks("final")
    save_file(made(), path)
    for check in (lambda: lora.read(path, networks), lambda: check_fit(path, fit_of(networks))):
        with pytest.raises(InvalidInput, match=reason):
            check()


def fit_of(networks: Networks) -> Fit:
    return Fit.made(networks.name, networks.shapes, networks.text_width)


def test_file_of_flux_is_refused_by_a_unet(model: Model, tmp_path: Path) -> None:
    path, networks = tmp_path / "style.safetensors", model.networks()
    for name in (f"transformer.{SINGLE}.proj_out", "lora_unet_double_blocks_0_img_mlp_0"):
        save_file(pair(name), path)
        for check in (lambda: lora.read(path, networks), lambda: check_fit(path, fit_of(networks))):
            with pytest.raises(InvalidInput, match=r"another model \(FLUX\); this one is of the architecture of SDXL"):
                check()


def test_styles_of_a_profile_are_offered(profile: Path, flux: Model, tmp_path: Path) -> None:
    (tmp_path / "photo.safetensors").write_bytes((profile.parent / "styles" / "ink.safetensors").read_bytes())
    catalogue = open_catalogue(Settings(model=str(profile), styles=tmp_path))
    assert [style.id for style in catalogue.all()] == ["felt", "ink", "photo"] and not catalogue.problems
    assert json.loads(profile.read_text())["family"] == "flux"
