"""Whether a model's weights fit into memory, before any of them is read. No torch."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import psutil

from core.errors import StartupError
from sampling.layout import Part, sample_of
from sampling.plan import Plan, plan_of
from sampling.tuning import DTYPES

GB = 1e9
DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "fp8": 1}
CGROUP = Path("/sys/fs/cgroup")
GPU = Path("/dev/nvidiactl")  # where a driver for CUDA devices is at work
DENOISING = ("preview", "final")
AUTOENCODERS, AUTOENCODER_BYTES = ("vae", "decoder"), 4  # they are small, and held as they compute


def needed_bytes(plan: Plan, roles: Collection[str], dtype: str) -> int:
    """The weights that these roles hold, those that both pools share once; an adapter may touch every weight."""
    found: dict[tuple[object, ...], Part] = {}
    adapted = 0
    for name, pool in (("final", plan.final), ("preview", plan.preview)):
        wanted = [pool.network, *pool.text] if name in roles else []
        if name == "preview" and set(roles) & set(DENOISING):
            wanted.append(pool.decoder or pool.vae)
        if name == "final" and "decode" in roles:
            wanted.append(pool.vae)
        if name == "preview" and name in roles and pool.adapter is not None and _key(pool.network) in found:
            adapted = pool.network.elements()
        found |= {_key(part): part for part in wanted}
    held = dict.fromkeys(AUTOENCODERS, AUTOENCODER_BYTES)
    sizes = (part.elements() * held.get(part.name, DTYPE_BYTES[dtype]) for part in found.values())
    return sum(sizes) + adapted * DTYPE_BYTES[dtype]


def _key(part: Part) -> tuple[object, ...]:
    """Files that look equal count once, wherever they lie; two UNets of one size are two."""
    return part.name, *(sample_of(file) for file in part.files), part.original


def free_bytes() -> int:
    """Memory that can be had here: of the machine, and of the container where that has a limit."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return free
    return free if limit == "max" else min(free, int(limit) - used + int(stat.get("inactive_file", 0)))


def check_memory(plan: Plan, roles: Collection[str], dtype: str, free: int) -> None:
    """Raises: StartupError saying how much is missing, and which options would fit."""
    needed = needed_bytes(plan, roles, dtype)
    if needed <= free:
        return
    cause = (
        f"the model's weights need {needed / GB:.1f} GB as {dtype}, {free / GB:.1f} GB are free: "
        f"{(needed - free) / GB:.1f} GB are missing"
    )
    raise StartupError(cause, _what_fits(plan, roles, dtype, free))


def check_fits(model: str, roles: Collection[str], device: str) -> None:
    """What a worker of these roles would say of a model's files and of this machine's memory, without torch.

    A GPU's own memory is the worker's to look at. Raises: StartupError as plan_of and check_memory.
    """
    plan = plan_of(model)
    if device == "cpu" or (device == "auto" and not GPU.exists()):
        check_memory(plan, roles, plan.tuning.weights or plan.tuning.dtype or DTYPES[0], free_bytes())


def _what_fits(plan: Plan, roles: Collection[str], dtype: str, free: int) -> str:
    fits = []
    for other in DTYPES:
        needed = needed_bytes(plan, roles, other)
        if DTYPE_BYTES[other] < DTYPE_BYTES[dtype] and needed <= free:
            fits.append(f'"options": {{"weights": "{other}"}} in the profile ({needed / GB:.1f} GB)')
    for role in (role for role in ("preview", "final", "decode") if role in roles and len(roles) > 1):
        needed = needed_bytes(plan, (role,), dtype)
        if needed <= free:
            fits.append(f"a worker of --roles {role} alone ({needed / GB:.1f} GB)")
    if not fits:
        return "free some, take a larger machine or a smaller model; no option of this one fits"
    return f"what would fit: {', or '.join(fits)}"
