"""How a device runs a model: the options of a profile. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

DTYPES = ("float32", "bfloat16", "float16")
QUANTISED = ("int8", "fp8")
WEIGHTS = (*DTYPES, *QUANTISED)


class Compile(StrEnum):
    """What is compiled: nothing, each kind of repeated block once, or the network as one."""

    OFF = "off"
    REGIONAL = "regional"
    WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class Tuning:
    """None leaves the choice to the device.

    dtype: what is computed in. weights: how large matrices are held; int8 and fp8 are the UNets' alone. offload: the
    UNets' weights stay in the host's memory and visit the device layer by layer. cuda_graphs: what was compiled is
    replayed without the host.
    """

    dtype: str | None = None
    weights: str | None = None
    channels_last: bool = True
    offload: bool = False
    attention_slicing: bool = False
    vae_tiling: bool = False
    vae_slicing: bool = False
    compile: Compile | None = None
    cuda_graphs: bool = False

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> Tuning:
        """Raises: ValueError naming the option that is unknown, of another type, or not with the others."""
        known = {field.name for field in fields(cls)}
        check_names("options", given, known)
        chosen = dict(given)
        for name, allowed in (("dtype", DTYPES), ("weights", WEIGHTS), ("compile", tuple(Compile))):
            if chosen.get(name) is not None and chosen[name] not in allowed:
                raise ValueError(f"options.{name} is {chosen[name]!r}, it may be {', '.join(allowed)}")
        for name in known - {"dtype", "weights", "compile"}:
            if not isinstance(chosen.get(name, False), bool):
                raise ValueError(f"options.{name} is {chosen[name]!r}, it may be true or false")
        if chosen.get("compile") is not None:
            chosen["compile"] = Compile(chosen["compile"])
        tuning = cls(**chosen)
        tuning._check()
        return tuning

    @property
    def quantised(self) -> bool:
        return self.weights in QUANTISED

    @property
    def compiles(self) -> bool:
        return self.compile not in (None, Compile.OFF)

    def label(self, dtype: str) -> str:
        """What times and pictures depend on, in words; dtype is what is computed in."""
        weights = "" if self.weights in (None, dtype) else f", {self.weights} weights"
        compiled = f", compiled {self.compile}" if self.compiles else ""
        changes = [name for name in ("offload", "attention_slicing", "vae_tiling", "cuda_graphs") if self._has(name)]
        return dtype + weights + compiled + "".join(f", {name}" for name in changes)

    def _has(self, name: str) -> bool:
        return {
            "offload": self.offload,
            "attention_slicing": self.attention_slicing,
            "vae_tiling": self.vae_tiling,
            "cuda_graphs": self.cuda_graphs,
        }[name]

    def _check(self) -> None:
        if self.offload and self.compiles:
            raise ValueError("options.offload moves weights between steps, which cannot be compiled; leave one out")
        if self.offload and self.quantised:
            raise ValueError("options.offload and quantised weights do not go together; leave one out")
        if self.cuda_graphs and self.compile is Compile.OFF:
            raise ValueError("options.cuda_graphs replays what was compiled; compile is off")


def check_names(where: str, given: Mapping[str, Any], known: set[str]) -> None:
    """A mistyped name must not leave its default in place unseen. Raises: ValueError naming it and what there is."""
    if unknown := sorted(set(given) - known):
        raise ValueError(f"{where} knows no {', '.join(unknown)}; it knows {', '.join(sorted(known))}")
