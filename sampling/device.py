"""Where a model runs, and what that device can do."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import torch

from core.errors import StartupError
from sampling.families import SDXL_FAMILY, Family
from sampling.tuning import Compile, Tuning

PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
FP8_CAPABILITY = (8, 9)  # the first GPUs that multiply in fp8
REMEDY_CPU = "set FIRSTLIGHT_DEVICE=cpu, or auto to take a GPU where there is one"


def device_of(asked: str) -> torch.device:
    """The device that FIRSTLIGHT_DEVICE names; auto is the first GPU, or the processor where there is none.

    Raises: StartupError for a GPU that is not there.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "auto":
        return torch.device("cuda:0" if count else "cpu")
    device = torch.device(asked)
    if device.type == "cpu":
        return device
    if count == 0:
        built = torch.version.cuda
        why = "this torch was built for processors alone" if built is None else "its driver shows none"
        raise StartupError(f"FIRSTLIGHT_DEVICE is {asked}, and there is no CUDA device: {why}", REMEDY_CPU)
    index = device.index or 0
    if index >= count:
        raise StartupError(f"FIRSTLIGHT_DEVICE is {asked}, and there are {count} CUDA devices", REMEDY_CPU)
    return torch.device("cuda", index)


def settled(tuning: Tuning, device: torch.device, family: Family) -> Tuning:
    """The tuning with what it leaves to the device: on a GPU half precision and compiled blocks.

    Raises: StartupError for what this device, this family or what is installed here cannot do.
    """
    gpu = device.type == "cuda"
    if tuning.cuda_graphs and not gpu:
        raise _refuse("cuda_graphs", "this model runs on a processor")
    if tuning.offload and not gpu:
        raise _refuse("offload", "this model runs on a processor: its weights are in the host's memory already")
    if tuning.attention_slicing and family is not SDXL_FAMILY:
        raise _refuse("attention_slicing", f"the attention of {family.name} networks cannot be cut into slices")
    if tuning.quantised:
        _check_quantised(tuning, device)
    compiled = Compile.REGIONAL if gpu and not tuning.offload else Compile.OFF
    return replace(
        tuning,
        dtype=tuning.dtype or (family.half if gpu else "float32"),
        compile=compiled if tuning.compile is None else tuning.compile,
    )


def _check_quantised(tuning: Tuning, device: torch.device) -> None:
    name = f"weights {tuning.weights}"
    if tuning.weights == "fp8":
        if device.type != "cuda":
            raise _refuse(name, "a processor cannot multiply in it; int8 can be had here")
        have = torch.cuda.get_device_capability(device)
        if have < FP8_CAPABILITY:
            found, wanted = (".".join(map(str, version)) for version in (have, FP8_CAPABILITY))
            raise _refuse(name, f"this GPU is of compute capability {found}, fp8 begins at {wanted}; int8 can be had")
    if find_spec("torchao") is None:
        raise StartupError(f"the option {name} needs torchao, which is not installed", "pip install torchao")


def _refuse(option: str, why: str) -> StartupError:
    return StartupError(f"the option {option} cannot be had: {why}", "change the profile's options; see docs/models.md")
