"""The families of networks that are painted with: what of their differences the outside sees. No torch."""

from __future__ import annotations

from dataclasses import dataclass

from core.recipe import Sampler


@dataclass(frozen=True, slots=True)
class Family:
    """What a pool of one kind of network can be asked for.

    network: the folder of what denoises. samplers: those that its noise levels are right for. negatives: whether
    guidance above 1 runs a negative prompt beside the prompt; else guidance is a number that the network reads, or not.
    half: the half precision it is made for.
    Units: patch is latents a side of what the network sees as one.
    """

    name: str
    network: str
    samplers: tuple[Sampler, ...]
    negatives: bool
    half: str
    patch: int


SDXL_FAMILY = Family("sdxl", "unet", tuple(Sampler), negatives=True, half="float16", patch=1)
FLUX_FAMILY = Family("flux", "transformer", (Sampler.EULER,), negatives=False, half="bfloat16", patch=2)
FAMILIES = {family.name: family for family in (SDXL_FAMILY, FLUX_FAMILY)}
