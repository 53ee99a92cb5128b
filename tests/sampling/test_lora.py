"""Reading LoRA files: every layout gives the same layers, and what is wrong with one is said in a sentence."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from core.errors import InvalidInput
from core.settings import BUNDLED_MODEL
from sampling import lora
from sampling.lora import Networks
from sampling.lora_names import TEXT, TEXT_2, UNET
from sampling.model import Model
from styles.fit import Fit, check_fit
from tests.sampling.style_files import random_layers
from tests.telling import lines

UNET_LAYERS = [
    "down_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q",
    "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_out.0",
    "down_blocks.1.attentions.0.transformer_blocks.0.ff.net.0.proj",
    "down_blocks.1.attentions.0.proj_in",
    "mid_block.resnets.0.conv1",
]


@pytest.fixture(scope="module")
def networks(model: Model) -> Networks:
    return model.networks()


def a_fit(networks: Networks) -> Fit:
    """What the catalogue compares files with, of the same networks."""
    return Fit.made(networks.name, networks.shapes, networks.text_width)


@pytest.fixture
def ink(bundle: Path) -> Path:
    return bundle / "styles" / "ink.safetensors"


KINDS: dict[str, tuple[str, Callable[[dict[str, Tensor], str], dict[str, Tensor]]]] = {
    "only one half": ("lack one of two", lambda t, name: {k: v for k, v in t.items() if "lora_B" in k}),
    "half of one layer": ("1 layers lack", lambda t, name: {k: v for k, v in t.items() if k != name}),
    "not a number": ("not finite", lambda t, name: {**t, name: t[name] * torch.nan}),
    "infinite": ("not finite", lambda t, name: {**t, name: t[name] / 0}),
    "nothing in it": ("does not fit", lambda t, name: {k: v[:0] for k, v in t.items()}),
    "infinite in 8 bits": (
        "not finite",
        lambda t, name: {**t, name: torch.full_like(t[name], torch.inf).to(torch.float8_e5m2)},
    ),
    "not a number in 8 bits": (
        "not finite",
        lambda t, name: {**t, name: torch.full_like(t[name], torch.nan).to(torch.float8_e4m3fn)},
    ),
    "beyond 32 bits": ("not finite", lambda t, name: {**t, name: t[name].double() + 1e39}),
    "whole numbers": ("holds numbers of type", lambda t, name: {**t, name: t[name].to(torch.int8)}),
    "complex numbers": ("holds numbers of type", lambda t, name: {**t, name: t[name].to(torch.complex64)}),
    "LoHa": ("is a LoHa file", lambda t, name: {"lora_unet_x.hada_w1_a": t[name]}),
    "Tucker": ("is a Tucker LoCon file", lambda t, name: {**t, "lora_unet_x.lora_mid.weight": t[name]}),
    "GLoRA": ("is a GLoRA file", lambda t, name: {"lora_unet_x.a1.weight": t[name]}),
    "IA3": ("is an IA3 file", lambda t, name: {"lora_unet_x.weight": t[name], "lora_unet_x.on_input": t[name][0]}),
    "OFT of PEFT": ("is an OFT file", lambda t, name: {"unet.x.oft_R.weight": t[name]}),
    "BOFT of PEFT": ("is a BOFT file", lambda t, name: {"unet.x.boft_R": t[name]}),
    "VeRA": ("is a VeRA file", lambda t, name: {"unet.x.vera_lambda_b": t[name]}),
    "whole differences": ("is a LyCORIS full file", lambda t, name: {"lora_unet_x.diff": t[name]}),
    "differences of biases": ("is a LyCORIS full file", lambda t, name: {**t, "lora_unet_x.diff_b": t[name][0]}),
    "norms": ("is a LyCORIS full file", lambda t, name: {**t, "lora_unet_x.w_norm": t[name][0]}),
    "words": ("is a textual inversion file", lambda t, name: {"clip_l": t[name], "clip_g": t[name].clone()}),
    "LoKr": ("is a LoKr file", lambda t, name: {"lora_unet_x.lokr_w1": t[name]}),
    "DoRA": ("is a DoRA file", lambda t, name: {**t, "lora_unet_x.dora_scale": t[name].clone()}),
    "DoRA of PEFT": ("is a DoRA file", lambda t, name: {**t, f"{name}.lora_magnitude_vector": t[name][0].clone()}),
    "for SD 1": (
        "SD 1.x, text 768 wide.*SDXL, text 256 wide",
        lambda t, name: {**t, name: torch.zeros(len(t[name]), 768)},
    ),
    "unequal ranks": ("does not fit.*to_k", lambda t, name: {**t, name: t[name][:8]}),
    "another kernel": ("does not fit.*conv1", lambda t, name: {k: _narrow(k, v) for k, v in t.items()}),
    "no key matches": ("0 of 358 keys", lambda t, name: {f"other.{k}": v for k, v in t.items()}),
    "no module matches": (
        "0 of 358 keys",
        lambda t, name: {k.replace("unet.", "unet.room."): v for k, v in t.items()},
    ),
    "empty": ("0 of 0 keys", lambda t, name: {}),
}


def _narrow(key: str, tensor: Tensor) -> Tensor:
    return tensor[..., :1, :1].clone() if "conv1.lora_A" in key else tensor


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_wrong_with_a_file_is_said_in_a_sentence(
    networks: Networks, ink: Path, tmp_path: Path, kind: str
) -> None:
    reason, change = KINDS[kind]
    tensors = load_file(ink)
    name = next(key for key in tensors if "attn2.to_k.lora_A" in key)
    path = tmp_path / "bad.safetensors"
    save_file(
        {key: tensor.clone(memory_format=torch.contiguous_format) for key, tensor in change(tensors, name).items()},
        path,
    )
    with pytest.raises(InvalidInput, match=rf"bad\.safetensors.*{reason}") as caught:
        lora.read(path, networks)
    assert "\n" not in caught.value.message
    with pytest.raises(InvalidInput, match=reason if kind != "empty" else "no tensors"):
        check_fit(path, a_fit(networks))  # the catalogue finds it without reading it as a LoRA


def test_file_that_is_cut_short_or_gone_is_refused(networks: Networks, ink: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    path.write_bytes(ink.read_bytes()[:1000])
    for bad in (path, tmp_path / "gone.safetensors"):
        with pytest.raises(InvalidInput, match="cannot be read"):
            lora.read(bad, networks)


def test_what_does_not_act_is_counted_by_component(
    networks: Networks, ink: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = load_file(ink)
    known, strange = "text_encoder_2.text_model.encoder.layers.0.mlp.fc1", "text_encoder.text_model.encoder.room"
    extra = {}
    for layer in (known, strange):
        extra |= {f"{layer}.lora_A.weight": torch.zeros(4, 128), f"{layer}.lora_B.weight": torch.zeros(256, 4)}
    save_file({**tensors, **extra}, tmp_path / "more.safetensors")
    parts = lora.read(tmp_path / "more.safetensors", networks)
    assert set(parts) == {UNET, TEXT_2}
    assert "unet 358 of 358, text_encoder 0 of 2, text_encoder_2 2 of 2 tensors act" in caplog.text


def test_file_of_which_all_acts_is_not_spoken_of(
    networks: Networks, ink: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lora.read(ink, networks)
    assert not lines(caplog, "sampling")


def peft(component: str, layer: str, half: str) -> str:
    return f"{component}.{layer}.lora_{'A' if half == 'down' else 'B'}.weight"


def diffusers(component: str, layer: str, half: str) -> str:
    if component == UNET:
        return f"{component}.{layer}.lora.{half}.weight"
    return f"{component}.{layer}.lora_linear_layer.{half}.weight"


def old_diffusers(component: str, layer: str, half: str) -> str:
    for short, long in (("to_q", "to_q"), ("q_proj", "to_q"), ("to_out.0", "to_out"), ("out_proj", "to_out")):
        if layer.endswith("." + short):
            middle = ".processor." if component == UNET else "."
            return f"{component}.{layer.removesuffix('.' + short)}{middle}{long}_lora.{half}.weight"
    return diffusers(component, layer, half)


def kohya(component: str, layer: str, half: str) -> str:
    prefix = {UNET: "unet", TEXT: "te1", TEXT_2: "te2"}[component]
    return f"lora_{prefix}_{layer.replace('.', '_')}.lora_{half}.weight"


def layers_of(networks: Networks, component: str) -> list[str]:
    if component == UNET:
        return UNET_LAYERS
    return [name for name in networks.shapes[component] if "layers.1" in name and name.endswith(("q_proj", "fc2"))]


@pytest.mark.parametrize("layout", [peft, diffusers, old_diffusers, kohya])
@pytest.mark.parametrize("text_prefix", [True, False])
def test_every_layout_gives_the_same_layers(
    networks: Networks, tmp_path: Path, layout: Callable[[str, str, str], str], text_prefix: bool
) -> None:
    """UNet and both text encoders in one file; kohya's with alpha, so that each delta is alpha / rank * up @ down."""
    tensors: dict[str, Tensor] = {}
    wanted: dict[str, dict[str, Tensor]] = {}
    for rank, component in zip((4, 8, 16), (UNET, TEXT, TEXT_2), strict=True):
        for i, layer in enumerate(layers_of(networks, component)):
            own = random_layers(networks.shapes[component], [layer], rank, seed=i)
            down, up = own[f"{layer}|down"], own[f"{layer}|up"]
            written = layer
            if component != UNET:
                written = ("text_model." if text_prefix else "") + layer.removeprefix("text_model.")
            tensors |= {layout(component, written, "down"): down, layout(component, written, "up"): up}
            alpha = 2.0 + i if layout is kohya else rank
            if layout is kohya:
                tensors[kohya(component, written, "down").split(".")[0] + ".alpha"] = torch.tensor(alpha)
            wanted.setdefault(component, {})[layer] = up.flatten(1) @ down.flatten(1) * (alpha / rank)
    save_file(tensors, tmp_path / "style.safetensors")
    check_fit(tmp_path / "style.safetensors", a_fit(networks))
    parts = lora.read(tmp_path / "style.safetensors", networks)
    assert {part: set(layers) for part, layers in parts.items()} == {part: set(w) for part, w in wanted.items()}
    for component, layers in wanted.items():
        for layer, delta in layers.items():
            found = parts[component][layer]
            torch.testing.assert_close(found.up @ found.down, delta)


def test_blocks_of_the_original_layout_are_those_of_diffusers(networks: Networks, tmp_path: Path) -> None:
    """Kohya's numbers of input, middle and output blocks."""
    blocks = {
        "input_blocks_4_1": "down_blocks.1.attentions.0",
        "input_blocks_5_1": "down_blocks.1.attentions.1",
        "middle_block_1": "mid_block.attentions.0",
    }
    tensors = {}
    for i, name in enumerate(blocks):
        made = random_layers(networks.shapes[UNET], [UNET_LAYERS[0]], 4, seed=i)
        key = f"lora_unet_{name}_transformer_blocks_0_attn1_to_q"
        tensors |= {f"{key}.lora_{half.split('|')[1]}.weight": tensor for half, tensor in made.items()}
        tensors[f"{key}.alpha"] = torch.tensor(2.0)
    save_file(tensors, tmp_path / "kohya.safetensors")
    check_fit(tmp_path / "kohya.safetensors", a_fit(networks))
    layers = lora.read(tmp_path / "kohya.safetensors", networks)[UNET]
    for name, block in blocks.items():
        key = f"lora_unet_{name}_transformer_blocks_0_attn1_to_q"
        found = layers[f"{block}.transformer_blocks.0.attn1.to_q"]
        delta = tensors[f"{key}.lora_up.weight"] @ tensors[f"{key}.lora_down.weight"] * 2.0 / 4
        torch.testing.assert_close(found.up @ found.down, delta)


@pytest.mark.parametrize("order", [1, -1])
def test_unequal_ranks_without_alpha_scale_by_one(networks: Networks, tmp_path: Path, order: int) -> None:
    made = [random_layers(networks.shapes[UNET], [UNET_LAYERS[i]], rank, i) for i, rank in ((0, 4), (1, 16))]
    tensors = {peft(UNET, *key.split("|")): tensor for part in made[::order] for key, tensor in part.items()}
    save_file(tensors, tmp_path / "style.safetensors")
    layers = lora.read(tmp_path / "style.safetensors", networks)[UNET]
    for layer in UNET_LAYERS[:2]:
        delta = tensors[peft(UNET, layer, "up")] @ tensors[peft(UNET, layer, "down")]
        torch.testing.assert_close(layers[layer].up @ layers[layer].down, delta)


@pytest.mark.parametrize(("rslora", "scale"), [(False, 32 / 4), (True, 32 / 2)])
def test_alpha_of_the_metadata_counts(networks: Networks, tmp_path: Path, rslora: bool, scale: float) -> None:
    made = random_layers(networks.shapes[UNET], UNET_LAYERS[:2], 4, seed=0)
    tensors = {peft(UNET, *key.split("|")): tensor for key, tensor in made.items()}
    written = {"unet.lora_alpha": 8, "unet.r": 4, "unet.use_rslora": rslora, "unet.alpha_pattern": {"attn1.to_q": 32}}
    save_file(tensors, tmp_path / "style.safetensors", {"lora_adapter_metadata": json.dumps(written)})
    layers = lora.read(tmp_path / "style.safetensors", networks)[UNET]
    plain = [made[f"{layer}|up"] @ made[f"{layer}|down"] for layer in UNET_LAYERS[:2]]
    for layer, delta, factor in zip(UNET_LAYERS, plain, (scale, scale / 4), strict=False):
        torch.testing.assert_close(layers[layer].up @ layers[layer].down, delta * factor)


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ({"unet.lora_alpha": 1e300, "unet.r": 4}, "not finite once scaled"),
        ({"unet.lora_alpha": 10**400}, "an alpha that is no number"),
        ({"unet.lora_alpha": "eight"}, "an alpha that is no number"),
        ({"unet.lora_alpha": [8]}, "an alpha that is no number"),
        ({"unet.lora_alpha": 8, "unet.alpha_pattern": {"attn1.to_q": {}}}, "an alpha that is no number"),
        ({"unet.lora_alpha": 8, "unet.alpha_pattern": {"(((": 8}}, "an alpha that is no number"),
    ],
)
def test_alpha_that_no_number_can_hold_is_refused(
    networks: Networks, tmp_path: Path, written: dict[str, object], reason: str
) -> None:
    made = random_layers(networks.shapes[UNET], UNET_LAYERS[:2], 4, seed=0)
    tensors = {peft(UNET, *key.split("|")): tensor for key, tensor in made.items()}
    save_file(tensors, tmp_path / "style.safetensors", {"lora_adapter_metadata": json.dumps(written)})
    with pytest.raises(InvalidInput, match=rf"style\.safetensors .*{reason}"):
        lora.read(tmp_path / "style.safetensors", networks)


@pytest.mark.parametrize("written", ["", "{", "7", "[" * 100_000, '{"unet.lora_alpha": ' + "9" * 5000 + "}"], ids=len)
def test_metadata_that_cannot_be_read_scales_by_one(networks: Networks, tmp_path: Path, written: str) -> None:
    made = random_layers(networks.shapes[UNET], UNET_LAYERS[:1], 4, seed=0)
    tensors = {peft(UNET, *key.split("|")): tensor for key, tensor in made.items()}
    save_file(tensors, tmp_path / "style.safetensors", {"lora_adapter_metadata": written})
    found = lora.read(tmp_path / "style.safetensors", networks)[UNET][UNET_LAYERS[0]]
    torch.testing.assert_close(found.up @ found.down, made[f"{UNET_LAYERS[0]}|up"] @ made[f"{UNET_LAYERS[0]}|down"])


@pytest.mark.parametrize(("beside", "scale"), [(True, 8 / 4), (False, 1.0)])
def test_file_of_peft_is_read_with_the_scale_that_stands_beside_it(
    networks: Networks, tmp_path: Path, caplog: pytest.LogCaptureFixture, beside: bool, scale: float
) -> None:
    """As save_pretrained of peft writes it for a UNet: its prefix before every name, alpha in another file."""
    made = random_layers(networks.shapes[UNET], UNET_LAYERS, 4, seed=0)
    halves = {key: "base_model.model." + peft("", *key.split("|")).removeprefix(".") for key in made}
    save_file({halves[key]: tensor for key, tensor in made.items()}, tmp_path / "adapter_model.safetensors")
    if beside:
        (tmp_path / "adapter_config.json").write_text(json.dumps({"lora_alpha": 8, "r": 4, "use_rslora": False}))
    check_fit(tmp_path / "adapter_model.safetensors", a_fit(networks))
    layers = lora.read(tmp_path / "adapter_model.safetensors", networks)[UNET]
    assert set(layers) == set(UNET_LAYERS) and not lines(caplog, "sampling")
    for layer in UNET_LAYERS:
        delta = made[f"{layer}|up"].flatten(1) @ made[f"{layer}|down"].flatten(1)
        torch.testing.assert_close(layers[layer].up @ layers[layer].down, delta * scale)


def test_fused_file_is_in_the_weights_and_leaves_no_layer_behind(model: Model) -> None:
    """The preview pool's UNet carries its adapter in its weights."""
    base, fused = model.network("final"), model.network("preview")
    path = BUNDLED_MODEL / "preview_lcm.safetensors"
    assert fused.state_dict().keys() == base.state_dict().keys()
    layers = lora.read(path, Networks.of(base))[UNET]
    for name, weight in base.state_dict().items():
        layer = layers.get(name.removesuffix(".weight"))
        delta = torch.zeros_like(weight) if layer is None else (layer.up @ layer.down).view_as(weight)
        torch.testing.assert_close(fused.state_dict()[name], weight + delta)


def test_fuse_refuses_what_overflows(model: Model, ink: Path, tmp_path: Path) -> None:
    tensors = {key: torch.full_like(tensor, 3e4) for key, tensor in load_file(ink).items()}
    save_file(tensors, tmp_path / "huge.safetensors")
    halved = copy.deepcopy(model.network("final")).half()
    with pytest.raises(InvalidInput, match="overflows"):
        lora.fuse(halved, tmp_path / "huge.safetensors")
