"""Styles packed for the network: a set of them as stacks of matrices, and rows of several sets as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sampling.lora import LoraLayer
from sampling.slots import Acting, Place

SMALLEST_RANK = 8  # grouped convolutions of fewer channels a group are slower on processors, not faster
Shape = tuple[int, int]  # in * kernel, out


@dataclass(frozen=True, slots=True)
class Stack:
    """A pack's layers of one shape; the styles' ranks follow each other, zeros where a layer has fewer.

    Shapes: down [layers, rank, in * kernel]; up [layers, rank, out]. ranks: how many belong to each style.
    """

    names: tuple[str, ...]
    down: Tensor
    up: Tensor
    ranks: tuple[int, ...]

    def to(self, device: torch.device) -> Stack:
        down, up = (part.to(device, non_blocking=True) for part in (self.down, self.up))
        return Stack(self.names, down, up, self.ranks)

    def pinned(self) -> Stack:
        return Stack(self.names, self.down.pin_memory(), self.up.pin_memory(), self.ranks)


@dataclass(frozen=True, slots=True)
class Pack:
    """What lies in one slot: a set of styles, whatever their weights. styles: how many they are."""

    styles: int
    stacks: Mapping[Shape, Stack]

    def to(self, device: torch.device) -> Pack:
        return Pack(self.styles, {shape: stack.to(device) for shape, stack in self.stacks.items()})

    def pinned(self) -> Pack:
        """In memory that a device can fetch from while it works."""
        return Pack(self.styles, {shape: stack.pinned() for shape, stack in self.stacks.items()})


@dataclass(frozen=True, slots=True)
class Placed:
    """A row's styles: the pack that holds them and a weight for each style in it."""

    pack: Pack
    weights: tuple[float, ...]


def make_pack(styles: Sequence[Mapping[str, LoraLayer]], dtype: torch.dtype) -> Pack:
    """Packs the layers of each style, in the order in which weights are given later."""
    names: dict[Shape, dict[str, None]] = {}
    for layers in styles:
        for name, layer in layers.items():
            names.setdefault(layer.shape, {})[name] = None
    stacks = {shape: _stack(shape, tuple(sorted(found)), styles, dtype) for shape, found in names.items()}
    return Pack(len(styles), stacks)


def _stack(
    shape: Shape, names: tuple[str, ...], styles: Sequence[Mapping[str, LoraLayer]], dtype: torch.dtype
) -> Stack:
    ranks = tuple(max((style[name].rank for name in names if name in style), default=0) for style in styles)
    down = torch.zeros(len(names), sum(ranks), shape[0], dtype=dtype)
    up = torch.zeros(len(names), sum(ranks), shape[1], dtype=dtype)
    start = 0
    for style, rank in zip(styles, ranks, strict=True):
        for i, name in enumerate(names):
            if (layer := style.get(name)) is not None:
                down[i, start : start + layer.rank] = layer.down
                up[i, start : start + layer.rank] = layer.up.T
        start += rank
    return Stack(names, down, up, ranks)


class Layout:
    """The layers that styles were seen to act on, in stacks by shape; it only grows, so that networks that were
    recorded or compiled for it are right for all that follow."""

    def __init__(self) -> None:
        self._names: dict[Shape, list[str]] = {}
        self._places: dict[str, Place] = {}
        self._rooms: dict[tuple[int, Shape], Tensor] = {}  # what was gathered last, by half and shape

    def acting(self, rows: Sequence[Placed | None], device: torch.device, dtype: torch.dtype) -> Acting | None:
        """The same, and None where no row has styles."""
        return None if all(row is None for row in rows) else self.gather(rows, device, dtype)

    @torch.no_grad()
    def gather(self, rows: Sequence[Placed | None], device: torch.device, dtype: torch.dtype) -> Acting:
        """What the rows' own styles add to each of them; nothing to a row without.

        What was gathered before is overwritten where it has the right size.
        """
        self._cover([row.pack for row in rows if row is not None])
        down, up = [], []
        for shape, names in self._names.items():
            stacks = [None if row is None else row.pack.stacks.get(shape) for row in rows]
            rank = _rounded(max((sum(stack.ranks) for stack in stacks if stack is not None), default=0))
            sizes = ((len(names), len(rows), rank, width) for width in shape)
            room = [self._room(half, shape, size, device, dtype) for half, size in enumerate(sizes)]
            for i, (row, stack) in enumerate(zip(rows, stacks, strict=True)):
                self._fill(room[0][:, i], room[1][:, i], row, stack, names)
            down.append(room[0])
            up.append(room[1])
        return Acting(self._places, tuple(down), tuple(up))

    def _room(self, half: int, shape: Shape, size: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
        """The tensor of the last time where it fits: on a processor, fresh memory costs more than what is put there."""
        known = self._rooms.get((half, shape))
        if known is None or known.shape != size or known.dtype != dtype:
            known = self._rooms[half, shape] = torch.empty(size, device=device, dtype=dtype)
        return known

    def _fill(self, down: Tensor, up: Tensor, row: Placed | None, stack: Stack | None, names: Sequence[str]) -> None:
        """One row's place in a stack. Shapes: down [layers, rank, in * kernel]; up [layers, rank, out]."""
        same = stack is not None and list(stack.names) == names
        if stack is None or row is None or not same or stack.down.shape != down.shape:
            down.zero_()
            up.zero_()
        if row is None or stack is None:
            return
        at = slice(None) if same else [self._places[name][1] for name in stack.names]
        rank = stack.down.shape[1]
        down[at, :rank] = stack.down.to(down.dtype)
        up[at, :rank] = _weighted(stack, row.weights).to(up.dtype)

    def _cover(self, packs: Sequence[Pack]) -> None:
        fresh = [(shape, name) for pack in packs for shape, stack in pack.stacks.items() for name in stack.names]
        fresh = [(shape, name) for shape, name in dict.fromkeys(fresh) if name not in self._places]
        if not fresh:
            return
        for shape, name in fresh:
            self._names.setdefault(shape, []).append(name)
        stacks = enumerate(self._names.values())
        self._places = {name: (stack, layer) for stack, names in stacks for layer, name in enumerate(names)}


def _weighted(stack: Stack, weights: Sequence[float]) -> Tensor:
    scale = [weight for weight, rank in zip(weights, stack.ranks, strict=True) for _ in range(rank)]
    return stack.up * torch.tensor(scale, device=stack.up.device)[:, None]


def _rounded(rank: int) -> int:
    """Up to a power of two, above 16 to a multiple of 16: what is compiled for one rank serves its neighbours."""
    if rank > 16:
        return -(-rank // 16) * 16
    return max(SMALLEST_RANK, 1 << (rank - 1).bit_length()) if rank else SMALLEST_RANK
