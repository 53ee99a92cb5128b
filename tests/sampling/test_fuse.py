"""A worker that is dedicated to a style has it in its weights: the same picture as through the slot bank."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from time import perf_counter, sleep

import torch

from core.recipe import StyleUse
from sampling import lora
from sampling.bank import Bank
from sampling.denoiser import Denoiser
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import Model
from tests.sampling.conftest import row_of


def latents_of(model: Model, paths: dict[str, Path], encoder: Encoder, styles: tuple[StyleUse, ...]) -> torch.Tensor:
    bank = Bank(model, paths, 2, lambda: None)
    loop = StepLoop(Denoiser(model, "final"), bank, 8, perf_counter)
    row = row_of(embedding=encoder.encode("a fox in the snow"), styles=styles, steps=6)
    loop.join(row)
    while loop.rows:
        if not loop.step().batch_size:
            sleep(0.001)
    bank.close()
    return row.latents


def test_fused_style_paints_what_the_slot_bank_paints(model: Model, bundle: Path, encoder: Encoder) -> None:
    use = StyleUse("ink", 0.7)
    paths = {"ink": bundle / "styles" / "ink.safetensors"}
    own = replace(model, network_final=copy.deepcopy(model.network("final")))
    through_bank = latents_of(own, paths, encoder, (use,))
    base = latents_of(own, paths, encoder, ())
    lora.fuse(own.network("final"), paths["ink"], use.weight)
    fused = latents_of(own, paths, encoder, ())
    torch.testing.assert_close(fused, through_bank, atol=1e-3, rtol=0)
    assert (through_bank - base).abs().max() > 0.05
