"""The ways in which this machine can run a model: each is a row of the gate's table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from sampling.model import Model, load_model

DTYPES = {"cpu": (torch.float32, torch.bfloat16), "cuda": (torch.float16, torch.bfloat16, torch.float32)}


@dataclass(frozen=True, slots=True)
class Option:
    """One way; load reads a model as it wants it, both pools and the decoder."""

    name: str
    load: Callable[[str | Path], Model]


def known_options() -> dict[str, Option]:
    """By name, the one that workers use first."""
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    found = [_in_precision(device, dtype) for device in devices for dtype in DTYPES[device]]
    return {option.name: option for option in found}


def _in_precision(device: str, dtype: torch.dtype) -> Option:
    name = f"{device}-{str(dtype).removeprefix('torch.')}"
    return Option(name, partial(load_model, device=device, dtype=dtype))
