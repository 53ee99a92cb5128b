"""A replayed network gives the numbers of the network itself, for every number of rows, size, text length and mask."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from sampling import lora
from sampling.lora import LoraLayer
from sampling.lora_names import UNET
from sampling.model import Model
from sampling.packs import Layout, Pack, Placed, make_pack
from sampling.traced import Inputs, TracedUNet, can_trace
from styles.catalogue import load_catalogue


def inputs(model: Model, rows: int = 1, size: tuple[int, int] = (16, 16), chunks: int = 1) -> Inputs:
    rng = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 77 * chunks, 256, generator=rng)
    sample = torch.randn(rows, model.latent_channels, *size, generator=rng)
    pooled = torch.randn(rows, 128, generator=rng)
    return sample, torch.linspace(50, 900, rows), hidden, pooled, torch.full((rows, 6), 128.0)


@pytest.fixture(scope="module")
def traced(model: Model) -> TracedUNet:
    return TracedUNet(model.network("preview"))


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
@pytest.mark.parametrize(
    ("size", "chunks"), [((16, 16), 1), ((19, 13), 1), ((13, 19), 2), ((14, 18), 3), ((16, 16), 4)]
)
@torch.no_grad()
def test_equals_the_network(model: Model, traced: TracedUNet, rows: int, size: tuple[int, int], chunks: int) -> None:
    given = inputs(model, rows, size, chunks)
    assert torch.equal(traced(given, None), traced.eager(given, None))


@torch.no_grad()
def test_masked_text_stays_masked(model: Model, traced: TracedUNet) -> None:
    given = inputs(model, 3, chunks=2)
    mask = torch.ones(3, 154, dtype=torch.bool)
    mask[1, 77:] = False
    masked = traced(given, mask)
    assert torch.equal(masked, traced.eager(given, mask))
    assert not torch.equal(masked, traced(given, None))
    mask[2, 77:] = False  # another mask than the one that was there when it was recorded
    assert torch.equal(traced(given, mask), traced.eager(given, mask))


@pytest.fixture(scope="module")
def packs(model: Model) -> list[Pack]:
    """The two bundled styles, both in one slot, and one that acts on every second layer with a quarter of the rank."""
    paths = load_catalogue(model.profile.styles).paths()
    ink, noto = (lora.read(paths[style], model.networks())[UNET] for style in ("ink", "noto"))
    few = {name: LoraLayer(layer.down[:4], layer.up[:, :4]) for name, layer in list(ink.items())[::2]}
    return [make_pack(styles, torch.float32) for styles in ([ink], [noto], [ink, noto], [few])]


@pytest.fixture(scope="module")
def layout(model: Model, packs: list[Pack]) -> Layout:
    """Of all layers from the start, so that the network is recorded once."""
    layout = Layout()
    layout.gather([Placed(packs[0], (1.0,))], model.device, torch.float32)
    return layout


def cast_of(packs: list[Pack], rows: int) -> list[Placed | None]:
    """Rows of every kind in turn, the first of them styled."""
    kinds = [*packs, None]
    chosen = [kinds[i % len(kinds)] for i in range(rows)]
    return [None if pack is None else Placed(pack, (0.8, -0.4)[: pack.styles]) for pack in chosen]


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
@pytest.mark.parametrize(("size", "chunks"), [((16, 16), 1), ((19, 13), 1), ((14, 18), 3)])
@torch.no_grad()
def test_equals_the_network_when_styles_act(
    model: Model,
    traced: TracedUNet,
    packs: list[Pack],
    layout: Layout,
    rows: int,
    size: tuple[int, int],
    chunks: int,
) -> None:
    """Ranks of 4, 16 and 32, alone and together, through one recording."""
    given = inputs(model, rows, size, chunks)
    for start in range(2):
        acting = layout.gather(cast_of(packs[start:], rows), model.device, torch.float32)
        assert torch.equal(traced(given, None, acting), traced.eager(given, None, acting))


@torch.no_grad()
def test_masked_text_stays_masked_when_styles_act(
    model: Model, traced: TracedUNet, packs: list[Pack], layout: Layout
) -> None:
    given, mask = inputs(model, 3, chunks=2), torch.ones(3, 154, dtype=torch.bool)
    mask[1, 77:] = False
    acting = layout.gather(cast_of(packs, 3), model.device, torch.float32)
    masked = traced(given, mask, acting)
    assert torch.equal(masked, traced.eager(given, mask, acting))
    open_rows = traced(given, None, acting)
    torch.testing.assert_close(masked[::2], open_rows[::2], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(masked[1], open_rows[1], atol=1e-3)
    assert not torch.allclose(masked, traced(given, mask), atol=1e-3)


@torch.no_grad()
def test_records_anew_only_when_styles_act_on_more_layers(model: Model, packs: list[Pack]) -> None:
    traced, layout, given = TracedUNet(model.network("final")), Layout(), inputs(model)
    recorded = []
    for pack in (packs[3], packs[0], packs[3], packs[1], packs[2]):
        acting = layout.gather([Placed(pack, (1.0, 0.5)[: pack.styles])], model.device, torch.float32)
        assert torch.equal(traced(given, None, acting), traced.eager(given, None, acting))
        recorded.append(traced._styled)
    assert recorded[0] is not recorded[1]
    assert all(trace is recorded[1] for trace in recorded[1:])


@torch.no_grad()
def test_stays_the_base_while_styles_come_and_go(model: Model, packs: list[Pack]) -> None:
    unet = copy.deepcopy(model.network("final"))
    given = inputs(model)
    untouched = unet(given[0], given[1], encoder_hidden_states=given[2], added_cond_kwargs=added(given))[0]
    traced = TracedUNet(unet)
    before = traced(given, None)
    assert torch.equal(before, untouched)
    acting = Layout().gather([Placed(packs[0], (1.0,))], model.device, torch.float32)
    assert not torch.equal(traced.eager(given, None, acting), before)
    assert not torch.equal(traced(given, None, acting), before)
    assert torch.equal(traced(given, None), before)
    assert torch.equal(traced.eager(given, None), before)


def added(given: list[Tensor]) -> dict[str, Tensor]:
    return {"text_embeds": given[3], "time_ids": given[4]}


def test_is_for_processors_in_full_precision(model: Model) -> None:
    assert can_trace(model.network("final"))
    assert not can_trace(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
