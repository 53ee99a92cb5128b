"""The UNet compiled: whatever runs was compiled while the worker warmed up, or runs as it is; nothing compiles later.

Every batch is padded to one of the shapes that were compiled. Source: torch.compile with static shapes; regional
compilation as diffusers has it, where blocks of one kind share what was compiled for the first of them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from torch import Tensor

from sampling.model import Model
from sampling.slots import Acting, Held, Place, hold
from sampling.traced import run_unet
from sampling.tuning import Compile

MAX_VARIANTS = 4096  # of one piece of code; the library's own limit stops far below what a worker serves
CACHE = "compiled"  # folder in the data folder
Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def keep_compiled_in(folder: Path, environment: MutableMapping[str, str]) -> None:
    """What is compiled from now on is kept in the folder, and read from it at the next start."""
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.absolute() / CACHE))


def compilations() -> int:
    """How often this process has compiled anything so far."""
    compiler = sys.modules.get("torch._dynamo.utils")  # where nothing was compiled, importing it would take a second
    return 0 if compiler is None else int(compiler.counters["stats"]["unique_graphs"])


@dataclass(frozen=True, slots=True)
class Shape:
    """What one compiled variant is for. rank: of what styles add, 0 where none acts."""

    height: int
    width: int
    tokens: int
    rows: int
    rank: int

    def fits(self, other: Shape) -> bool:
        """Whether inputs of the other shape can be padded to this one; padding text would change the picture."""
        same = (self.height, self.width, self.tokens) == (other.height, other.width, other.tokens)
        return same and self.rows >= other.rows and self.rank >= other.rank and bool(self.rank) == bool(other.rank)


class CompiledUNet:
    """One pool's UNet, to be called as TracedUNet is; owned by one thread.

    unserved: calls so far that no compiled shape fitted, and that ran as they were.
    """

    def __init__(self, unet: UNet2DConditionModel, model: Model, backend: str) -> None:
        self._unet = unet
        tuning = model.tuning
        self._dtype, self._graphs = model.dtype, tuning.cuda_graphs
        self._held = hold(unet)
        self._room = StyleRoom(self._held)
        self._shapes: dict[Shape, Mapping[str, Place] | None] = {}  # with the layers that styles acted on then
        self._compiling = False
        self.unserved = 0
        options: dict[str, Any] = {"mode": "reduce-overhead"} if tuning.cuda_graphs else {}
        compiles = unet.compile if tuning.compile is Compile.WHOLE else unet.compile_repeated_blocks
        compiles(fullgraph=True, dynamic=False, backend=backend, **options)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Within it, the shape of each call is compiled, and served from then on."""
        self._compiling = True
        try:
            yield
        finally:
            self._compiling = False
            self.unserved = 0

    def __call__(
        self,
        sample: Tensor,
        timesteps: Tensor,
        hidden: Tensor,
        pooled: Tensor,
        time_ids: Tensor,
        mask: Tensor | None,
        acting: Acting | None = None,
    ) -> Tensor:
        """The network's output. Shapes: as TracedUNet.eager."""
        given = (sample, timesteps, hidden, pooled, time_ids)
        fit = mask is None and sample.dtype is self._dtype
        shape = self._served(_shape_of(given, acting), acting) if fit else None
        if shape is None:
            self.unserved += 1
            return self.eager(*given, mask, acting)
        self._room.put(acting, shape.rows, shape.rank)
        if self._graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with torch._dynamo.config.patch(recompile_limit=MAX_VARIANTS, accumulated_recompile_limit=MAX_VARIANTS):
            output = run_unet(self._unet, *_padded(given, shape.rows), None)[: len(sample)]
        return output.clone() if self._graphs else output

    def eager(
        self,
        sample: Tensor,
        timesteps: Tensor,
        hidden: Tensor,
        pooled: Tensor,
        time_ids: Tensor,
        mask: Tensor | None,
        acting: Acting | None = None,
    ) -> Tensor:
        """The same without what was compiled."""
        self._room.lend(acting)
        with torch.compiler.set_stance("force_eager"):
            return run_unet(self._unet, sample, timesteps, hidden, pooled, time_ids, mask)

    def _served(self, shape: Shape, acting: Acting | None) -> Shape | None:
        """The smallest compiled shape that fits; while compiling, the shape itself."""
        places = None if acting is None else acting.places
        if self._compiling:
            self._shapes[shape] = places
            return shape
        fitting = [known for known, then in self._shapes.items() if known.fits(shape) and then is places]
        return min(fitting, key=lambda known: (known.rows, known.rank), default=None)


class StyleRoom:
    """Where what styles add lies for the layers that were compiled: the same memory and shapes whoever is painted."""

    def __init__(self, held: Mapping[str, Held]) -> None:
        self._held = held
        self._rooms: dict[tuple[int, int, int], Tensor] = {}  # by rank, half and stack
        self._places: Mapping[str, Place] | None = None
        self._now: tuple[Acting | None, int, int] | None = None

    def put(self, acting: Acting | None, rows: int, rank: int) -> None:
        """Copies what acts into the room, padded with nothing to so many rows and ranks."""
        if self._now is not None and self._now[0] is acting and self._now[1:] == (rows, rank):
            return
        if acting is None:
            self._give(None)
        else:
            if acting.places is not self._places:
                self._rooms, self._places = {}, acting.places
            halves = [
                tuple(self._filled(half, stack, part, rows, rank) for stack, part in enumerate(parts))
                for half, parts in enumerate((acting.down, acting.up))
            ]
            self._give(Acting(acting.places, halves[0], halves[1]))
        self._now = (acting, rows, rank)

    def lend(self, acting: Acting | None) -> None:
        """Lets what acts be read where it is."""
        self._give(acting)
        self._now = None

    def _filled(self, half: int, stack: int, part: Tensor, rows: int, rank: int) -> Tensor:
        """Shapes: part [layers, n, r, width]; result [layers, rows, rank, width]."""
        layers, count, given_rank, width = part.shape
        room = self._rooms.get((rank, half, stack))
        if room is None or room.shape[1] < rows:
            room = self._rooms[rank, half, stack] = part.new_zeros(layers, rows, rank, width)
        used = room[:, :rows]
        used.zero_()
        used[:, :count, :given_rank] = part
        return used

    def _give(self, acting: Acting | None) -> None:
        for name, held in self._held.items():
            held.parts = None if acting is None else acting.on(name)


def _shape_of(given: Given, acting: Acting | None) -> Shape:
    sample, _, hidden, _, _ = given
    rank = 0 if acting is None else max((part.shape[2] for part in acting.down), default=0)
    return Shape(sample.shape[2], sample.shape[3], hidden.shape[1], len(sample), rank)


def _padded(given: Sequence[Tensor], rows: int) -> Given:
    """The last row again, as often as it takes."""
    sample, timesteps, hidden, pooled, time_ids = (
        part if len(part) == rows else torch.cat([part, part[-1:].expand(rows - len(part), *part.shape[1:])])
        for part in given
    )
    return sample, timesteps, hidden, pooled, time_ids
