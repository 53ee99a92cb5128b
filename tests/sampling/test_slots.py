"""Slot layers: what they add equals peft, every row gets its own, and nothing is left where nothing acts."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import UNet2DConditionModel
from safetensors.torch import load_file
from torch import Tensor

from core.settings import BUNDLED_MODEL
from sampling import lora
from sampling.lora import LoraLayer
from sampling.lora_names import UNET
from sampling.model import Model
from sampling.packs import Layout, Pack, Placed, make_pack
from sampling.slots import EachThread, OneThread, SlotConv2d, SlotLinear, install, layer_shapes
from sampling.traced import Inputs, TracedUNet

TOLERANCE = 1e-4
STYLES = ("ink", "noto")


@pytest.fixture(scope="module")
def styles(model: Model) -> dict[str, dict[str, LoraLayer]]:
    folder, networks = BUNDLED_MODEL / "styles", model.networks()
    return {style: dict(lora.read(folder / f"{style}.safetensors", networks)[UNET]) for style in STYLES}


@pytest.fixture(scope="module")
def packs(styles: dict[str, dict[str, LoraLayer]]) -> dict[str, Pack]:
    one = {style: make_pack([layers], torch.float32) for style, layers in styles.items()}
    return {**one, "both": make_pack(list(styles.values()), torch.float32)}


@pytest.fixture(scope="module")
def network(model: Model) -> TracedUNet:
    return TracedUNet(model.network("final"))


def inputs(rows: int, dtype: torch.dtype = torch.float32) -> Inputs:
    rng = torch.Generator().manual_seed(rows)
    shapes = [(rows, 8, 7, 9), (rows, 77, 256), (rows, 128)]
    sample, hidden, pooled = (torch.randn(*shape, generator=rng).to(dtype) for shape in shapes)
    return sample, torch.full((rows,), 500.0), hidden, pooled, torch.full((rows, 6), 56.0, dtype=dtype)


@torch.no_grad()
def forward(network: TracedUNet, rows: Sequence[Placed | None], layout: Layout | None = None) -> Tensor:
    """The network's answer, each row with its own styles. Shapes: [n, 8, 7, 9]."""
    acting = (layout or Layout()).gather(rows, torch.device("cpu"), torch.float32)
    return network.eager(inputs(len(rows)), None, acting)


@torch.no_grad()
def by_peft(model: Model, weights: dict[str, float]) -> Tensor:
    """One row through diffusers' own adapters. Shapes: [1, 8, 7, 9]."""
    unet = copy.deepcopy(model.network("final"))
    for style in weights:
        tensors = {key: tensor.float() for key, tensor in load_file(_file(model, style)).items()}
        unet.load_lora_adapter(tensors, prefix="unet", adapter_name=style)
    unet.set_adapters(list(weights), list(weights.values()))
    return raw(unet, inputs(1))


def _file(model: Model, style: str) -> Path:
    return BUNDLED_MODEL / "styles" / f"{style}.safetensors"


def raw(unet: UNet2DConditionModel, given: Inputs) -> Tensor:
    sample, timesteps, hidden, pooled, time_ids = given
    added = {"text_embeds": pooled, "time_ids": time_ids}
    output: Tensor = unet(sample, timesteps, encoder_hidden_states=hidden, added_cond_kwargs=added)[0]
    return output


@pytest.mark.parametrize("weight", [1.0, 0.3, -0.5])
def test_style_equals_peft(model: Model, network: TracedUNet, packs: dict[str, Pack], weight: float) -> None:
    ours = forward(network, [Placed(packs["ink"], (weight,))])
    torch.testing.assert_close(ours, by_peft(model, {"ink": weight}), atol=TOLERANCE, rtol=0)


def test_two_styles_in_one_slot_equal_two_adapters_of_peft(
    model: Model, network: TracedUNet, packs: dict[str, Pack]
) -> None:
    ours = forward(network, [Placed(packs["both"], (0.8, 0.4))])
    torch.testing.assert_close(ours, by_peft(model, {"ink": 0.8, "noto": 0.4}), atol=TOLERANCE, rtol=0)


def test_each_row_gets_its_own_and_equals_the_row_alone(
    network: TracedUNet, packs: dict[str, Pack], styles: dict[str, dict[str, LoraLayer]]
) -> None:
    """A quarter of the rank on every third layer beside all of it, two styles, other weights, and none."""
    few = {name: LoraLayer(layer.down[:4], layer.up[:, :4]) for name, layer in list(styles["ink"].items())[::3]}
    rows = [
        Placed(packs["ink"], (1.0,)),
        None,
        Placed(packs["both"], (0.5, 1.0)),
        Placed(make_pack([few], torch.float32), (1.0,)),
        Placed(packs["noto"], (-0.7,)),
    ]
    together, given = forward(network, rows), inputs(len(rows))
    for i, row in enumerate(rows):
        acting = None if row is None else Layout().gather([row], torch.device("cpu"), torch.float32)
        with torch.no_grad():
            alone = network.eager(tuple(part[i : i + 1] for part in given), None, acting)
        torch.testing.assert_close(together[i : i + 1], alone, atol=TOLERANCE, rtol=0)


def test_weight_zero_is_the_base(network: TracedUNet, packs: dict[str, Pack]) -> None:
    with torch.no_grad():
        base = network.eager(inputs(1), None)
    assert torch.equal(forward(network, [Placed(packs["ink"], (0.0,))]), base)


def test_base_is_bit_equal_after_styles(model: Model, network: TracedUNet, packs: dict[str, Pack]) -> None:
    with torch.no_grad():
        base = raw(model.network("final"), inputs(1))
        styled = forward(network, [Placed(packs["ink"], (1.0,))])
        assert torch.equal(network.eager(inputs(1), None), base)
        assert torch.equal(raw(model.network("final"), inputs(1)), base)
    assert not torch.allclose(styled, base, atol=1e-3)


def test_style_after_another_equals_the_style_alone(network: TracedUNet, packs: dict[str, Pack]) -> None:
    layout = Layout()
    alone = forward(network, [Placed(packs["ink"], (1.0,))], layout)
    other = forward(network, [Placed(packs["noto"], (1.0,))], layout)
    assert torch.equal(forward(network, [Placed(packs["ink"], (1.0,))], layout), alone)
    assert not torch.allclose(other, alone, atol=1e-3)


def test_layers_keep_their_weights_and_names(model: Model) -> None:
    plain = UNet2DConditionModel.from_config(model.network("final").config)
    names = list(plain.state_dict())
    assignment = install(plain, OneThread())
    assert list(plain.state_dict()) == names
    plain.load_state_dict(model.network("final").state_dict())
    assert install(plain, OneThread()) is assignment
    kinds = {type(module) for module in plain.modules()}
    assert {SlotLinear, SlotConv2d} <= kinds and not {torch.nn.Linear, torch.nn.Conv2d} & kinds


def test_layers_that_cannot_be_slots_are_left_alone() -> None:
    grouped = torch.nn.Conv2d(4, 4, 3, groups=2)
    network = torch.nn.Sequential(grouped, torch.nn.Conv2d(4, 4, 3, padding_mode="reflect", padding=1))
    install(network, OneThread())
    assert layer_shapes(network) == {} and type(network[0]) is torch.nn.Conv2d


@pytest.mark.parametrize(
    "options",
    [
        {"kernel_size": 3, "padding": 1},
        {"kernel_size": 3, "padding": 1, "stride": 2},
        {"kernel_size": (1, 3), "padding": (0, 2), "dilation": (1, 2)},
        {"kernel_size": 1, "bias": False},
    ],
)
@torch.no_grad()
def test_convolution_of_any_kind_equals_its_two_halves(options: dict[str, Any]) -> None:
    layer = torch.nn.Conv2d(6, 10, **options).to(memory_format=torch.channels_last)
    network = torch.nn.Sequential(layer)
    assignment = install(network, OneThread())
    x = torch.randn(3, 6, 8, 9).to(memory_format=torch.channels_last)
    low = {name: value for name, value in options.items() if name != "bias"}
    halves = [torch.nn.Conv2d(6, 4, bias=False, **low) for _ in range(3)]
    ups = [torch.randn(10, 4) for _ in range(3)]
    base = network(x)
    packs = [
        make_pack([{"0": LoraLayer(half.weight.flatten(1), up)}], torch.float32)
        for half, up in zip(halves, ups, strict=True)
    ]
    assignment.acting = Layout().gather([Placed(pack, (0.5,)) for pack in packs], x.device, x.dtype)
    for i, (half, up) in enumerate(zip(halves, ups, strict=True)):
        wanted = base[i] + 0.5 * torch.einsum("or,rhw->ohw", up, half(x[i : i + 1])[0])
        torch.testing.assert_close(network(x)[i], wanted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_lower_precision_acts_in_its_own_dtype(
    model: Model, styles: dict[str, dict[str, LoraLayer]], network: TracedUNet, packs: dict[str, Pack], dtype: Any
) -> None:
    halved = TracedUNet(copy.deepcopy(model.network("final")).to(dtype))
    pack = make_pack([styles["ink"]], dtype)
    acting = Layout().gather([Placed(pack, (0.7,)), None], torch.device("cpu"), dtype)
    assert {part.dtype for part in (*acting.down, *acting.up)} == {dtype}
    with torch.no_grad():
        output = halved.eager(inputs(2, dtype), None, acting)
    assert output.dtype is dtype
    full = forward(network, [Placed(packs["ink"], (0.7,)), None])
    torch.testing.assert_close(output.float(), full, atol=0.15, rtol=0.05)


def test_threads_have_styles_of_their_own() -> None:
    assignment = EachThread()
    assignment.acting = Layout().gather([], torch.device("cpu"), torch.float32)
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(assignment.acting))
    thread.start()
    thread.join()
    assert seen == [None] and assignment.acting is not None


class Room(torch.nn.Module):
    """One transformer block and one resnet of the UNet: every kind of layer that styles act on."""

    def __init__(self, unet: UNet2DConditionModel) -> None:
        super().__init__()
        block = unet.down_blocks[1]
        self.attention, self.resnet = block.attentions[0].transformer_blocks[0], block.resnets[1]

    def forward(self, sample: Tensor, hidden: Tensor, time: Tensor) -> Tensor:
        flat = self.resnet(sample, time).flatten(2).transpose(1, 2)
        output: Tensor = self.attention(flat, encoder_hidden_states=hidden)
        return output


def random_style(network: torch.nn.Module, seed: int, rank: int) -> dict[str, LoraLayer]:
    """Acts on every layer that can be acted on."""
    rng = torch.Generator().manual_seed(seed)
    layers = {}
    for name, (out, *inside) in layer_shapes(network).items():
        down = torch.randn(rank, math.prod(inside), generator=rng) / 100
        layers[name] = LoraLayer(down, torch.randn(out, rank, generator=rng) / 10)
    return layers


def random_pack(network: torch.nn.Module, seed: int, rank: int) -> Pack:
    return make_pack([random_style(network, seed, rank)], torch.float32)


@torch.no_grad()
def test_every_layer_of_the_network_equals_weights_that_hold_the_style(model: Model) -> None:
    """Also those that train rarely: both ends, embeddings, shortcuts, sampling up and down; recorded and not."""
    unet = model.network("final")
    style, fused = random_style(unet, 1, 8), copy.deepcopy(unet)
    for name, layer in style.items():
        weight: Any = fused.get_submodule(name).weight
        weight += 0.6 * (layer.up @ layer.down).view_as(weight)
    network, given = TracedUNet(unet), inputs(2)
    acting = Layout().gather(
        [Placed(make_pack([style], torch.float32), (0.6,)), None], torch.device("cpu"), torch.float32
    )
    ours = network.eager(given, None, acting)
    torch.testing.assert_close(ours[:1], raw(fused, given)[:1], atol=TOLERANCE, rtol=1e-4)
    torch.testing.assert_close(ours[1:], raw(unet, given)[1:], atol=TOLERANCE, rtol=1e-4)
    assert torch.equal(network(given, None, acting), ours)


@torch.no_grad()
def test_nothing_is_compiled_again_for_other_styles(model: Model) -> None:
    """Five compositions, one of them with another content and rank in a slot, and one graph."""
    torch._dynamo.reset()
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, example: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    room = Room(UNet2DConditionModel.from_config(model.network("final").config).eval())
    assignment, layout = install(room, OneThread()), Layout()
    compiled: Any = torch.compile(room, backend=backend, fullgraph=True, dynamic=False)
    one, two, three = random_pack(room, 1, 16), random_pack(room, 2, 16), random_pack(room, 3, 12)
    given = [torch.randn(3, 128, 8, 8), torch.randn(3, 77, 256), torch.randn(3, 256)]
    casts: list[list[Placed | None]] = [
        [Placed(one, (1.0,)), Placed(two, (0.5,)), None],
        [Placed(one, (1.0,))] * 3,
        [None, Placed(two, (-1.0,)), Placed(one, (0.1,))],
        [None, None, Placed(two, (1.0,))],
        [Placed(three, (1.0,)), Placed(two, (1.0,)), None],
    ]
    for cast in casts:
        assignment.acting = layout.gather(cast, torch.device("cpu"), torch.float32)
        torch.testing.assert_close(compiled(*given), room(*given), atol=1e-5, rtol=1e-5)
    assert len(graphs) == 1
