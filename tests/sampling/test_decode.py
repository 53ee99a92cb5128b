"""Decoding as the stock pipeline does it, NaN never turning into a black picture, and exact sizes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.image_processor import VaeImageProcessor
from torch import Tensor

from core.errors import NonFinite, StartupError
from sampling.decode import Decoder
from sampling.model import Model
from sampling.picture import fit


class SmallVae(torch.nn.Module):
    """Shows three latent channels; may overflow unless it runs in fp32."""

    def __init__(self, breaks: bool = False, recovers: bool = False) -> None:
        super().__init__()
        self.one = torch.nn.Parameter(torch.ones(()), requires_grad=False)
        self.breaks, self.recovers = breaks, recovers
        self.config = _Config(scaling_factor=1.0)
        self.batches: list[int] = []

    @property
    def dtype(self) -> torch.dtype:
        return self.one.dtype

    def decode(self, z: Tensor, **_: Any) -> tuple[Tensor]:
        self.batches.append(len(z))
        pixels = z[:, :3] * self.one
        if self.breaks and not (self.recovers and self.one.dtype is torch.float32):
            pixels = pixels * torch.nan
        return (pixels,)


class _Config(SimpleNamespace):
    def get(self, name: str) -> Any:
        return vars(self).get(name)


def test_decode_equals_the_stock_pipeline(model: Model) -> None:
    assert model.vae is not None
    torch.manual_seed(0)
    latents = torch.randn(2, 8, 18, 14)
    with torch.no_grad():
        scaled = latents / model.vae.config.scaling_factor
        rows = [model.vae.decode(row, return_dict=False)[0] for row in scaled.split(1)]  # one by one, as on a processor
    stock = VaeImageProcessor().postprocess(torch.cat(rows), output_type="np")
    ours = Decoder(model).decode(latents)
    assert ours.shape == (2, 144, 112, 3)
    assert ours.dtype == np.uint8
    assert np.array_equal(ours, (stock * 255).round().astype(np.uint8))


def test_decode_runs_in_slices_of_the_batch_limit(model: Model) -> None:
    vae = SmallVae()
    pictures = Decoder(replace(model, vae=vae), max_rows=4).decode(torch.zeros(9, 8, 16, 16))
    assert (vae.batches, len(pictures)) == ([4, 4, 1], 9)


def test_decode_clamps_to_the_range_of_bytes(model: Model) -> None:
    latents = torch.tensor([-5.0, -1.0, 0.0, 1.0, 5.0]).view(1, 1, 1, 5).repeat(1, 8, 1, 1)
    assert Decoder(replace(model, vae=SmallVae())).decode(latents)[0, 0, :, 0].tolist() == [0, 0, 128, 255, 255]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_decode_refuses_latents_that_are_not_finite(model: Model, bad: float) -> None:
    vae = SmallVae()
    latents = torch.zeros(1, 8, 16, 16)
    latents[0, 0, 0, 0] = bad
    with pytest.raises(NonFinite):
        Decoder(replace(model, vae=vae)).decode(latents)
    assert vae.batches == []


@pytest.mark.parametrize("recovers", [True, False])
def test_decode_tries_fp32_when_pixels_are_not_finite(model: Model, recovers: bool) -> None:
    vae = SmallVae(breaks=True, recovers=recovers).to(torch.bfloat16)
    decoder = Decoder(replace(model, vae=vae, dtype=torch.bfloat16))
    if recovers:
        assert decoder.decode(torch.zeros(1, 8, 16, 16)).max() == 128
    else:
        with pytest.raises(NonFinite):
            decoder.decode(torch.zeros(1, 8, 16, 16))
    assert vae.one.dtype is torch.bfloat16


def test_decode_never_tiles(model: Model) -> None:
    """Every bucket of the bundled model is far below the size where tiling pays, and tiles change the picture."""
    assert model.vae is not None
    assert not model.vae.use_tiling


def test_decoder_says_what_to_do_when_the_model_has_none(model: Model) -> None:
    with pytest.raises(StartupError, match="roles"):
        Decoder(replace(model, vae=None), "final")


@pytest.mark.parametrize("size", [(128, 128), (64, 64), (100, 128), (152, 90), (64, 152), (151, 64)])
def test_fit_gives_exactly_the_asked_size(size: tuple[int, int]) -> None:
    picture = np.full((128, 128, 3), 77, np.uint8)
    fitted = fit(picture, *size)
    assert fitted.shape == (size[1], size[0], 3)
    assert set(fitted.ravel().tolist()) == {77}


def test_fit_keeps_the_middle_and_the_aspect() -> None:
    picture = np.zeros((112, 144, 3), np.uint8)
    picture[:, 16:128] = 255
    assert fit(picture, 112, 112).min() == 255
    assert fit(picture, 144, 112) is picture


def test_fit_gives_exactly_every_size_that_can_be_asked_for() -> None:
    for have in ((128, 128), (112, 144), (144, 112), (104, 152), (152, 104)):
        picture = np.zeros((*have, 3), np.uint8)
        for width in range(64, 153, 3):
            for height in range(64, 153, 3):
                assert fit(picture, width, height).shape == (height, width, 3)
