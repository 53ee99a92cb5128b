"""A replayed network gives the numbers of the network itself, for every number of rows, size, text length and mask."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from core.recipe import StyleUse
from sampling.adapters import Adapters
from sampling.model import Model
from sampling.traced import TracedUNet, can_trace
from styles.catalogue import load_catalogue


def inputs(model: Model, rows: int = 1, size: tuple[int, int] = (16, 16), chunks: int = 1) -> list[Tensor]:
    rng = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 77 * chunks, 256, generator=rng)
    sample = torch.randn(rows, model.latent_channels, *size, generator=rng)
    pooled = torch.randn(rows, 128, generator=rng)
    return [sample, torch.linspace(50, 900, rows), hidden, pooled, torch.full((rows, 6), 128.0)]


@pytest.fixture(scope="module")
def traced(model: Model) -> TracedUNet:
    return TracedUNet(model.unet("preview"))


@pytest.mark.parametrize("rows", [1, 2, 5, 8])
@pytest.mark.parametrize(
    ("size", "chunks"), [((16, 16), 1), ((19, 13), 1), ((13, 19), 2), ((14, 18), 3), ((16, 16), 4)]
)
@torch.no_grad()
def test_equals_the_network(model: Model, traced: TracedUNet, rows: int, size: tuple[int, int], chunks: int) -> None:
    given = inputs(model, rows, size, chunks)
    assert torch.equal(traced(*given, None), traced.eager(*given, None))


@torch.no_grad()
def test_masked_text_stays_masked(model: Model, traced: TracedUNet) -> None:
    given = inputs(model, 3, chunks=2)
    mask = torch.ones(3, 154, dtype=torch.bool)
    mask[1, 77:] = False
    masked = traced(*given, mask)
    assert torch.equal(masked, traced.eager(*given, mask))
    assert not torch.equal(masked, traced(*given, None))
    mask[2, 77:] = False  # another mask than the one that was there when it was recorded
    assert torch.equal(traced(*given, mask), traced.eager(*given, mask))


@torch.no_grad()
def test_stays_the_base_while_styles_come_and_go(model: Model) -> None:
    unet = model.unet("final")
    traced, given = TracedUNet(unet), inputs(model)
    before = traced(*given, None)
    catalogue = load_catalogue(model.folder)
    adapters = Adapters(unet, catalogue.paths())
    adapters.activate((StyleUse(next(iter(catalogue.paths())), 1.0),))
    assert not torch.equal(traced.eager(*given, None), before)
    adapters.activate(())
    assert torch.equal(traced(*given, None), before)
    assert torch.equal(traced.eager(*given, None), before)


def test_is_for_processors_in_full_precision(model: Model) -> None:
    assert can_trace(model.unet("final"))
    assert not can_trace(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
