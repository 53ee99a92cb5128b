"""Slot layers: linear and convolution layers that add to each network row what its own styles ask for.

A layer is changed in place and keeps its weights and their names; where nothing acts it computes what it did before,
bit for bit.
Source: LoRA (Hu et al. 2021); a convolution's low-rank half runs as one grouped convolution, a group a row.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Place = tuple[int, int]  # which stack of layers of one shape, and which layer in it


@dataclass(frozen=True, slots=True)
class Acting:
    """What styles add in one forward. Layers of one shape lie in one stack.

    places: where each layer that is styled at all finds its matrices; the same object while the layers stay the same.
    shared: one row's worth that acts on all rows, however many.
    Shapes: down [layers, n, rank, in * kernel]; up [layers, n, rank, out], alpha / rank and weight folded in.
    """

    places: Mapping[str, Place]
    down: tuple[Tensor, ...]
    up: tuple[Tensor, ...]
    shared: bool = False

    def on(self, layer: str) -> tuple[Tensor, Tensor] | None:
        """Down and up for one layer, by its name; None where nothing acts on it."""
        place = self.places.get(layer)
        if place is None:
            return None
        stack, at = place
        return self.down[stack][at], self.up[stack][at]


class Assignment(Protocol):
    """What the layers of one network share: what acts on the next forward of the thread that asks."""

    acting: Acting | None


class OneThread:
    """For a network that one thread owns."""

    __slots__ = ("acting",)

    def __init__(self) -> None:
        self.acting: Acting | None = None


class EachThread(threading.local):
    """For a network that several threads run at once, each with styles of its own."""

    acting: Acting | None = None

    def __deepcopy__(self, memo: object) -> EachThread:
        return EachThread()


@dataclass(frozen=True, slots=True)
class Slot:
    """A layer's name and the assignment it shares with the others."""

    name: str
    assignment: Assignment

    def acting(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """What acts on this layer's rows x; None where nothing does.

        Shapes: down [n, rank, in * kernel]; up [n, rank, out].
        """
        acting = self.assignment.acting
        found = None if acting is None else acting.on(self.name)
        if acting is None or found is None or not acting.shared:
            return found
        down, up = found
        return down.expand(len(x), -1, -1), up.expand(len(x), -1, -1)


class Held:
    """What acts on one layer, put there before the forward: nothing names the layer, so layers of one kind are compiled
    once for all.

    Shapes: as what Slot.acting returns.
    """

    def __init__(self) -> None:
        self.parts: tuple[Tensor, Tensor] | None = None

    def acting(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        return self.parts


class SlotLinear(torch.nn.Linear):
    """Computes in the precision of x, whatever its weight is held in.

    Shapes: x [n, in] or [n, tokens, in] to the same with out.
    """

    slot: Slot | Held | None = None  # peft makes layers of its own of a layer's class

    def forward(self, x: Tensor) -> Tensor:
        base = torch.nn.functional.linear(x, self.weight.to(x.dtype), self.bias)
        found = None if self.slot is None else self.slot.acting(x)
        if found is None:
            return base
        down, up = found
        if x.ndim == 2:
            return base.add_(torch.bmm(torch.bmm(x[:, None], down.mT), up)[:, 0])
        return base.baddbmm_(torch.bmm(x, down.mT), up)


def _grouped(
    x: Tensor,
    down: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """Convolves each row with its own kernels, as groups of one convolution.

    Shapes: x [n, in, h, w]; down [n, rank, in * kernel] to [n, rank, h' * w'].
    """
    rows, channels = x.size(0), x.size(1)
    weight = down.reshape(-1, channels, kernel[0], kernel[1])
    groups = x.reshape(1, rows * channels, x.size(2), x.size(3))
    return torch.conv2d(groups, weight, None, stride, padding, dilation, rows).reshape(rows, down.size(1), -1)


# A trace would take the number of groups for a constant, a script in it does not.
_each_row_its_own: Callable[..., Tensor] = torch.jit.script_if_tracing(_grouped)  # type: ignore[no-untyped-call]


class SlotConv2d(torch.nn.Conv2d):
    """Computes in the precision of x, whatever its weight is held in.

    Shapes: x [n, in, h, w] to [n, out, h', w'].
    """

    slot: Slot | Held | None = None  # peft makes layers of its own of a layer's class

    def forward(self, x: Tensor) -> Tensor:
        base: Tensor = self._conv_forward(x, self.weight.to(x.dtype), self.bias)
        found = None if self.slot is None else self.slot.acting(x)
        if found is None:
            return base
        down, up = found
        low = _each_row_its_own(x, down, self.kernel_size, self.stride, self.padding, self.dilation)
        return base.add_(torch.bmm(up.mT, low).view_as(base))


def install(network: torch.nn.Module, assignment: Assignment) -> Assignment:
    """Makes slot layers of all layers that can be; a network that has them already keeps its assignment."""
    modules: dict[str, Any] = dict(network.named_modules())
    for module in modules.values():
        if isinstance(module, (SlotLinear, SlotConv2d)) and isinstance(module.slot, Slot):
            return module.slot.assignment
    for name in layer_shapes(network):
        _slotted(modules[name]).slot = Slot(name, assignment)
    return assignment


def hold(network: torch.nn.Module) -> dict[str, Held]:
    """Slot layers that hold what acts on them, in place of asking; by the layers' names."""
    modules: dict[str, Any] = dict(network.named_modules())
    held: dict[str, Held] = {}
    for name in layer_shapes(network):
        layer = _slotted(modules[name])
        held[name] = layer.slot = layer.slot if isinstance(layer.slot, Held) else Held()
    return held


def _slotted(module: Any) -> Any:
    """The layer made one with a slot, in place."""
    module.__class__ = SlotLinear if isinstance(module, torch.nn.Linear) else SlotConv2d
    return module


def layer_shapes(network: torch.nn.Module) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights that a style can act on, by the layer's name."""
    return {name: tuple(module.weight.shape) for name, module in network.named_modules() if _can_slot(module)}


def _can_slot(module: torch.nn.Module) -> bool:
    if isinstance(module, torch.nn.Conv2d):
        plain = module.groups == 1 and module.padding_mode == "zeros"
        return plain and type(module) in (torch.nn.Conv2d, SlotConv2d)
    return type(module) in (torch.nn.Linear, SlotLinear)
