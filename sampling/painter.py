"""One pool from recipes to pixels in this process, as the engines do it, without a queue around it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, sleep

import torch
from torch import Tensor

from core.errors import NonFinite
from core.recipe import Recipe
from sampling.bank import Bank
from sampling.decode import Decoder
from sampling.denoiser import Denoiser
from sampling.encode_stage import Encoded, EncodeStage
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import Model, PoolName
from sampling.picture import Pixels
from sampling.rows import Row
from sampling.warmup import warm


@dataclass(frozen=True, slots=True)
class Wish:
    """What to paint; strength and init_latents as Row has them."""

    id: str
    recipe: Recipe
    strength: float = 1.0
    init_latents: Tensor | None = None


@dataclass(frozen=True, slots=True)
class Painted:
    """How a wish ended: with latents [C, h, w] and a picture [H, W, 3] of its bucket's size, or with an error."""

    id: str
    latents: Tensor | None = None
    picture: Pixels | None = None
    error: Exception | None = None


@dataclass(slots=True)
class _Round:
    """What is on its way in one call: encoded rows that wait for room, and how many wishes have not ended."""

    wishes: dict[str, Wish]
    left: int
    waiting: list[Row] = field(default_factory=list)


class Painter:
    """Encodes beside the steps, lets at most max_rows network rows share a forward, decodes what has finished.

    busy_s: seconds of encoder, network and decoder so far, which is what the device is paid for.
    """

    def __init__(
        self, model: Model, pool: PoolName, encoder: Encoder, paths: Mapping[str, Path], max_rows: int, slots: int = 8
    ) -> None:
        self._paths = paths
        self._defaults = model.profile.preview if pool == "preview" else model.profile.final
        self._max_rows = max_rows
        self._encoder, self._encode = encoder, EncodeStage(encoder, lambda: None)
        self._bank = Bank(model, paths, slots, lambda: None, pool)
        self._loop = StepLoop(Denoiser(model, pool), self._bank, max_rows, perf_counter)
        self._decoder = Decoder(model, pool)
        self.busy_s = 0.0

    def __enter__(self) -> Painter:
        return self

    def __exit__(self, *_: object) -> None:
        self._encode.close()
        self._bank.close()

    def warm(self) -> None:
        """One step of every bucket and style, as a worker does before it is ready."""
        warm(self._loop, self._encoder, self._decoder, self._defaults, list(self._paths))

    def paint(self, wishes: Sequence[Wish]) -> Iterator[Painted]:
        """Each wish as it ends; they join in their order, as far as there is room."""
        now = _Round({wish.id: wish for wish in wishes}, len(wishes))
        for wish in wishes:
            self._encode.submit(wish.id, wish.recipe)
        while now.left:
            for ended in (*self._join(now), *self._step()):
                now.left -= 1
                yield ended

    def _join(self, now: _Round) -> Iterator[Painted]:
        """Rows that were encoded join where there is room; those that cannot be encoded have ended."""
        for encoded in self._encode.ready():
            self.busy_s += encoded.encode_s
            if encoded.error is not None or encoded.positive is None:
                yield Painted(str(encoded.tag), error=encoded.error)
            else:
                now.waiting.append(self._row(now.wishes[str(encoded.tag)], encoded))
        room = self._max_rows - sum(row.network_rows for row in self._loop.rows)
        while now.waiting and now.waiting[0].network_rows <= room:
            room -= now.waiting[0].network_rows
            self._loop.join(now.waiting.pop(0))

    def _row(self, wish: Wish, encoded: Encoded) -> Row:
        recipe = wish.recipe
        assert encoded.positive is not None
        return Row.of(
            wish.id,
            recipe,
            self._defaults.nearest_bucket(recipe.width, recipe.height),
            encoded.positive,
            encoded.negative,
            strength=wish.strength,
            init_latents=wish.init_latents,
        )

    def _step(self) -> Iterator[Painted]:
        report = self._loop.step()
        self.busy_s += report.seconds
        if report.batch_size == 0 and not report.failed:
            sleep(0.001)  # a prompt is being encoded, or a style read
        for row, error in report.failed:
            yield Painted(row.id, error=error)
        if report.finished:
            yield from self._decoded(report.finished)

    def _decoded(self, rows: Sequence[Row]) -> Iterator[Painted]:
        """Rows of one step are of one size, so they are decoded together."""
        started_s = perf_counter()
        try:
            pictures = self._decoder.decode(torch.stack([row.latents for row in rows]))
        except NonFinite as error:
            if len(rows) == 1:
                yield Painted(rows[0].id, rows[0].latents, error=error)
            else:
                for row in rows:  # one that cannot be decoded takes down no other
                    yield from self._decoded([row])
            return
        self.busy_s += perf_counter() - started_s
        for row, picture in zip(rows, pictures, strict=True):
            yield Painted(row.id, row.latents, picture)
