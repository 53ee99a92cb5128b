"""The bundled model, loaded once, and a small network for tests that need no picture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch
from torch import Tensor

from core.profile import Bucket
from core.recipe import Sampler
from sampling.embedding import CHUNK_TOKENS, Embedding
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import Model, load_model
from sampling.rows import Row
from shared_cache.embeddings import ByteLRU

SQUARE = Bucket(128, 128)


@pytest.fixture(scope="session")
def model(bundle: Path) -> Model:
    return load_model(bundle, roles=("preview", "final", "decode"))


@pytest.fixture(scope="session")
def encoder(model: Model) -> Encoder:
    return Encoder(model, ByteLRU(64 << 20))


class SmallUNet(torch.nn.Module):
    """Answers as a UNet does: a smooth function of sample, timestep, text and micro-conditioning, row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor(0.7), requires_grad=False)
        self.calls: list[dict[str, Any]] = []

    @property
    def dtype(self) -> torch.dtype:
        return self.gain.dtype

    def forward(self, sample: Tensor, timestep: Tensor, **given: Any) -> tuple[Tensor]:
        self.calls.append({"sample": sample, "timestep": timestep, **given})
        text = given["encoder_hidden_states"].mean(dim=(1, 2)).view(-1, 1, 1, 1)
        return ((self.gain * sample + 0.001 * timestep.view(-1, 1, 1, 1).to(sample.dtype) + text).tanh(),)


@pytest.fixture
def small_unet() -> SmallUNet:
    return SmallUNet()


@pytest.fixture
def small_model(model: Model, small_unet: SmallUNet) -> Model:
    """The bundle's profile and schedule around the small network, for both pools."""
    return replace(model, network_preview=small_unet, network_final=small_unet)


def embedding_of(value: float, chunks: int = 1) -> Embedding:
    return Embedding(torch.full((1, CHUNK_TOKENS * chunks, 256), value), torch.full((1, 128), value), 1)


def row_of(row_id: str = "a", embedding: Embedding | None = None, **changes: Any) -> Row:
    wanted: dict[str, Any] = {
        "bucket": SQUARE,
        "steps": 4,
        "guidance_scale": 1.0,
        "sampler": Sampler.EULER,
        "seed": 7,
        "styles": (),
        "embedding": embedding or embedding_of(0.1),
        "negative": embedding_of(0.0),
        **changes,
    }
    return Row(id=row_id, **wanted)


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


class NoStyles:
    """Stands in for Bank where a test is about rows: nothing is waited for."""

    def __init__(self) -> None:
        self.entered: list[str] = []
        self.left: list[str] = []

    def enter(self, row: Row) -> None:
        self.entered.append(row.id)

    def leave(self, row_id: str) -> None:
        self.left.append(row_id)

    def settle(self) -> list[tuple[Row, Exception]]:
        return []


def painted(loop: StepLoop, rows: list[Row]) -> list[Tensor]:
    """The rows' latents when all of them are done."""
    for row in rows:
        loop.join(row)
    while loop.rows:
        report = loop.step()
        assert not report.failed, report.failed
        if report.batch_size == 0:
            sleep(0.001)
    return [row.latents for row in rows]
