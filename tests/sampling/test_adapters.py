"""Styles on the bundled UNet: exact when off, switched without residue, refused when they do not fit."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file, save_file
from torch import Tensor

from core.errors import InvalidInput
from core.recipe import StyleUse
from sampling import lora
from sampling.adapters import Adapters
from sampling.model import Model
from tests.sampling.conftest import embedding_of

INK, NOTO = StyleUse("ink", 1.0), StyleUse("noto", 0.5)


@pytest.fixture(scope="module")
def fresh(model: Model) -> Model:
    """A UNet of this module's own, since adapters change it."""
    return replace(model, unet_final=copy.deepcopy(model.unet("final")))


@pytest.fixture(scope="module")
def paths(bundle: Path) -> dict[str, Path]:
    """Style files by id; tests add their own, as a catalogue does."""
    return {style: bundle / "styles" / f"{style}.safetensors" for style in ("ink", "noto")}


@pytest.fixture(scope="module")
def all_adapters(fresh: Model, paths: dict[str, Path]) -> Adapters:
    return Adapters(fresh.unet("final"), paths)


@pytest.fixture
def adapters(all_adapters: Adapters) -> Iterator[Adapters]:
    yield all_adapters
    all_adapters.activate(())


def forward(unet: UNet2DConditionModel) -> Tensor:
    """What the network answers to one small sample. Shapes: [1, 8, 7, 9]."""
    torch.manual_seed(0)
    text = embedding_of(0.1)
    with torch.no_grad():
        output: Tensor = unet(
            torch.randn(1, 8, 7, 9),
            torch.tensor([500.0]),
            encoder_hidden_states=text.prompt_embeds,
            added_cond_kwargs={"text_embeds": text.pooled, "time_ids": torch.tensor([[56.0, 72, 0, 0, 56, 72]])},
        )[0]
    return output


def test_base_is_bit_equal_after_a_style(fresh: Model, adapters: Adapters) -> None:
    base = forward(fresh.unet("final"))
    adapters.activate((INK,))
    styled = forward(fresh.unet("final"))
    adapters.activate(())
    assert torch.equal(forward(fresh.unet("final")), base)
    assert not torch.allclose(styled, base, atol=1e-3)


def test_style_after_another_equals_the_style_alone(fresh: Model, adapters: Adapters) -> None:
    adapters.activate((INK,))
    alone = forward(fresh.unet("final"))
    adapters.activate((NOTO,))
    other = forward(fresh.unet("final"))
    adapters.activate((INK,))
    assert torch.equal(forward(fresh.unet("final")), alone)
    assert not torch.allclose(other, alone, atol=1e-3)


def test_weight_zero_is_the_base_and_weight_scales_back(fresh: Model, adapters: Adapters) -> None:
    base = forward(fresh.unet("final"))
    adapters.activate((INK,))
    full = forward(fresh.unet("final"))
    adapters.activate((StyleUse("ink", 0.0),))
    torch.testing.assert_close(forward(fresh.unet("final")), base, atol=1e-5, rtol=0)
    adapters.activate((INK,))
    torch.testing.assert_close(forward(fresh.unet("final")), full, atol=0, rtol=0)


def test_two_styles_act_together_in_either_order(fresh: Model, adapters: Adapters) -> None:
    adapters.activate((INK, NOTO))
    both = forward(fresh.unet("final"))
    adapters.activate((NOTO, INK))
    torch.testing.assert_close(forward(fresh.unet("final")), both, atol=8e-5, rtol=0)
    adapters.activate((INK,))
    assert not torch.allclose(forward(fresh.unet("final")), both, atol=1e-3)


def test_activating_the_same_styles_does_nothing(
    fresh: Model, adapters: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapters.activate((INK,))
    monkeypatch.setattr(fresh.unet("final"), "set_adapters", None)
    adapters.activate((INK,))
    assert adapters.active == (INK,)


def test_file_replaced_under_the_same_name_is_loaded_anew(
    fresh: Model, adapters: Adapters, paths: dict[str, Path], tmp_path: Path
) -> None:
    path = paths["mine"] = tmp_path / "mine.safetensors"
    shutil.copy(paths["ink"], path)
    mine = (StyleUse("mine", 1.0),)
    adapters.activate(mine)
    first = forward(fresh.unet("final"))
    adapters.activate(())
    save_file({key: tensor * 2 for key, tensor in load_file(path).items()}, path)
    adapters.activate(mine)
    assert not torch.allclose(forward(fresh.unet("final")), first, atol=1e-3)
    adapters.activate(())


def test_file_replaced_while_it_acts_acts_from_the_next_step(
    fresh: Model, adapters: Adapters, paths: dict[str, Path], tmp_path: Path
) -> None:
    """Of the same size and with the same time of change, as a copying tool may leave it."""
    path = paths["mine"] = tmp_path / "mine.safetensors"
    shutil.copy(paths["ink"], path)
    stat, mine = path.stat(), (StyleUse("mine", 1.0),)
    adapters.activate(mine)
    first = forward(fresh.unet("final"))
    shutil.copy(paths["noto"], path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    adapters.activate(mine)
    second = forward(fresh.unet("final"))
    assert not torch.allclose(second, first, atol=1e-3)
    path.unlink()
    adapters.activate(mine)
    assert torch.equal(forward(fresh.unet("final")), second)


KINDS: dict[str, tuple[str, Callable[[dict[str, Tensor], str], dict[str, Tensor]]]] = {
    "only one half": ("lack one of two", lambda t, name: {k: v for k, v in t.items() if "lora_B" in k}),
    "half of one layer": ("1 layers lack", lambda t, name: {k: v for k, v in t.items() if k != name}),
    "not a number": ("not finite", lambda t, name: {**t, name: t[name] * torch.nan}),
    "infinite": ("not finite", lambda t, name: {**t, name: t[name] / 0}),
    "nothing in it": ("does not fit", lambda t, name: {k: v[:0] for k, v in t.items()}),
    "LoHa": ("is a LoHa file", lambda t, name: {"lora_unet_x.hada_w1_a": t[name]}),
    "LoKr": ("is a LoKr file", lambda t, name: {"lora_unet_x.lokr_w1": t[name]}),
    "for SD 1": ("SD 1.x, text 768 wide.*256 wide", lambda t, name: {**t, name: torch.zeros(len(t[name]), 768)}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_with_a_file_is_said_in_a_sentence(
    adapters: Adapters, paths: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    reason, change = KINDS[kind]
    tensors = load_file(paths["ink"])
    name = next(key for key in tensors if "attn2.to_k.lora_A" in key)
    paths["bad"] = tmp_path / "bad.safetensors"
    save_file({key: tensor.contiguous() for key, tensor in change(tensors, name).items()}, paths["bad"])
    with pytest.raises(InvalidInput, match=reason) as caught:
        adapters.activate((StyleUse("bad", 1.0),))
    assert "\n" not in caught.value.message


def test_what_does_not_act_is_counted(
    adapters: Adapters, paths: dict[str, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = load_file(paths["ink"])
    name = next(key for key in tensors if "lora_A" in key)
    extra = {
        name.replace("unet.", "text_encoder.").replace("lora_A", half): tensors[name].clone()
        for half in ("lora_A", "lora_B")
    }
    paths["more"] = tmp_path / "more.safetensors"
    save_file({**tensors, **extra}, paths["more"])
    adapters.activate((StyleUse("more", 1.0),))
    assert f"{len(tensors)} of {len(tensors) + 2} tensors act" in caplog.text


def broken(kind: str, source: Path, path: Path) -> Path:
    tensors = load_file(source)
    if kind == "no key matches":
        save_file({f"other.{key}": tensor for key, tensor in tensors.items()}, path)
    elif kind == "no module matches":
        save_file({key.replace("block", "room"): tensor for key, tensor in tensors.items()}, path)
    elif kind == "wrong shape":
        name = next(key for key in tensors if "attn2.to_k.lora_A" in key)
        save_file({**tensors, name: torch.zeros(tensors[name].shape[0], 768)}, path)
    elif kind == "empty":
        save_file({}, path)
    else:
        path.write_bytes(source.read_bytes()[:1000])
    return path


@pytest.mark.parametrize("kind", ["no key matches", "no module matches", "wrong shape", "empty", "cut short"])
def test_file_that_does_not_fit_is_refused_and_leaves_the_base(
    fresh: Model, adapters: Adapters, paths: dict[str, Path], tmp_path: Path, kind: str
) -> None:
    base = forward(fresh.unet("final"))
    paths["bad"] = broken(kind, paths["ink"], tmp_path / "bad.safetensors")
    with pytest.raises(InvalidInput, match=r"bad\.safetensors"):
        adapters.activate((INK, StyleUse("bad", 1.0)))
    assert adapters.active == ()
    assert torch.equal(forward(fresh.unet("final")), base)
    adapters.activate((NOTO,))
    assert not torch.allclose(forward(fresh.unet("final")), base, atol=1e-3)
    adapters.activate(())


def test_unknown_and_missing_styles_are_refused(adapters: Adapters, paths: dict[str, Path], tmp_path: Path) -> None:
    paths["gone"] = tmp_path / "gone.safetensors"
    for style in ("unknown", "gone"):
        with pytest.raises(InvalidInput, match=style):
            adapters.activate((StyleUse(style, 1.0),))


def test_fused_adapter_equals_the_unfused_one(model: Model) -> None:
    """The preview pool's UNet carries its adapter in its weights and no adapter layer."""
    fused, unfused = model.unet("preview"), copy.deepcopy(model.unet("final"))
    assert model.profile.preview.adapter is not None
    lora.attach(unfused, model.folder / model.profile.preview.adapter, "lcm")
    torch.testing.assert_close(forward(fused), forward(unfused), atol=1e-4, rtol=0)
    assert not any("lora" in key for key in fused.state_dict())


def test_loaded_styles_are_bounded(
    fresh: Model, adapters: Adapters, paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sampling.adapters.MAX_LOADED", 1)
    adapters.activate((INK,))
    adapters.activate((NOTO,))
    assert len(fresh.unet("final").peft_config) == 1
