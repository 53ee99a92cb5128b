"""A network compiled: whatever runs was compiled while the worker warmed up, or runs as it is; nothing compiles later.

Every batch is padded to one of the shapes that were compiled. Source: torch.compile with static shapes; regional
compilation as diffusers has it, where blocks of one kind share what was compiled for the first of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sampling.model import Model
from sampling.slots import Acting, Held, Place, hold
from sampling.tuning import Compile

MAX_VARIANTS = 4096  # of one piece of code; the library's own limit stops far below what a worker serves
CACHE = "compiled"  # folder in the data folder
Given = tuple[Tensor, ...]
Run = Callable[[Any, Given, Given], Tensor]


def keep_compiled_in(folder: Path, environment: MutableMapping[str, str]) -> None:
    """What is compiled from now on is kept in the folder, and read from it at the next start."""
    environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder.absolute() / CACHE))


def compilations() -> int:
    """How often this process has compiled anything so far."""
    compiler = sys.modules.get("torch._dynamo.utils")  # where nothing was compiled, importing it would take a second
    return 0 if compiler is None else int(compiler.counters["stats"]["unique_graphs"])


@dataclass(frozen=True, slots=True)
class Shape:
    """What one compiled variant is for.

    sizes: of what a network is given for each row, and of what its rows share. rank: of what styles add, 0 where none
    acts.
    """

    sizes: tuple[tuple[int, ...], ...]
    rows: int
    rank: int

    def fits(self, other: Shape) -> bool:
        """Whether inputs of the other shape can be padded to this one; padding text would change the picture."""
        enough = self.rows >= other.rows and self.rank >= other.rank
        return self.sizes == other.sizes and enough and bool(self.rank) == bool(other.rank)

    @classmethod
    def of(cls, given: Given, shared: Given, acting: Acting | None) -> Shape:
        sizes = (*(tuple(part.shape[1:]) for part in given), *(tuple(part.shape) for part in shared))
        rank = 0 if acting is None else max((part.shape[2] for part in acting.down), default=0)
        return cls(sizes, len(given[0]), rank)


class CompiledNetwork:
    """One pool's network; owned by one thread.

    run: calls the network with what each row is given and what rows share. unserved: calls so far that no compiled
    shape fitted, and that ran as they were.
    """

    def __init__(self, network: Any, run: Run, model: Model, backend: str) -> None:
        self._network = network
        self._run = run
        tuning = model.tuning
        self._dtype, self._graphs = model.dtype, tuning.cuda_graphs
        self._held = hold(network)
        self._room = StyleRoom(self._held)
        self._shapes: dict[Shape, Mapping[str, Place] | None] = {}  # with the layers that styles acted on then
        self._compiling = False
        self.unserved = 0
        options: dict[str, Any] = {"mode": "reduce-overhead"} if tuning.cuda_graphs else {}
        compiles = network.compile if tuning.compile is Compile.WHOLE else network.compile_repeated_blocks
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

    def __call__(self, given: Given, shared: Given, acting: Acting | None) -> Tensor:
        """The network's output. Shapes: each of given [n, ...], a row each; shared as the network takes them."""
        wanted = Shape.of(given, shared, acting)
        shape = self._served(wanted, acting) if given[0].dtype is self._dtype else None
        if shape is None:
            self.unserved += 1
            return self._eager(given, shared, acting)
        self._room.put(acting, shape.rows, shape.rank)
        if self._graphs:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with torch._dynamo.config.patch(recompile_limit=MAX_VARIANTS, accumulated_recompile_limit=MAX_VARIANTS):
            output = self._run(self._network, _padded(given, shape.rows), shared)[: wanted.rows]
        return output.clone() if self._graphs else output

    def _eager(self, given: Given, shared: Given, acting: Acting | None) -> Tensor:
        """The same without what was compiled."""
        self._room.lend(acting)
        with torch.compiler.set_stance("force_eager"):
            return self._run(self._network, given, shared)

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


def _padded(given: Given, rows: int) -> Given:
    """The last row again, as often as it takes."""
    return tuple(
        part if len(part) == rows else torch.cat([part, part[-1:].expand(rows - len(part), *part.shape[1:])])
        for part in given
    )
