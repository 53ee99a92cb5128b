"""The ways in which this machine can run a model: each is a row of the gate's table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from sampling.device import FP8_CAPABILITY
from sampling.model import Model, load_model
from sampling.tuning import Compile, Tuning

DTYPES = {"cpu": ("float32", "bfloat16"), "cuda": ("float16", "bfloat16", "float32")}


@dataclass(frozen=True, slots=True)
class Option:
    """One way; load reads a model as it wants it, both pools and the decoder."""

    name: str
    load: Callable[[str | Path], Model]


def known_options() -> dict[str, Option]:
    """By name, the one that workers use first."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    found = [
        Option("-".join((device, *words)), partial(load_model, device=device, tuning=tuning))
        for device in devices
        for words, tuning in _tunings(device)
    ]
    return {option.name: option for option in found}


def _tunings(device: str) -> Iterator[tuple[tuple[str, ...], Tuning]]:
    """Each precision as it is; of the first one also what else this device can do. Compiling is for GPUs alone: on a
    processor it takes minutes for what the gate paints in one."""
    for dtype in DTYPES[device]:
        yield (dtype,), Tuning(dtype=dtype, compile=Compile.OFF)
    first = DTYPES[device][0]
    yield (first, "tiled"), Tuning(dtype=first, compile=Compile.OFF, vae_tiling=True)
    if find_spec("torchao") is not None:
        yield (first, "int8"), Tuning(dtype=first, compile=Compile.OFF, weights="int8")
    if device != "cuda":
        return
    yield (first, "compiled"), Tuning(dtype=first, compile=Compile.REGIONAL)
    yield (first, "whole"), Tuning(dtype=first, compile=Compile.WHOLE)
    if find_spec("torchao") is not None and torch.cuda.get_device_capability() >= FP8_CAPABILITY:
        yield ("bfloat16", "fp8"), Tuning(dtype="bfloat16", compile=Compile.REGIONAL, weights="fp8")
