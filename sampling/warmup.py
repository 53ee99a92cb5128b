"""Warm-up: every size runs once through encode, step and decode before a worker calls itself ready.

Where the network is compiled, every shape that will be served is compiled here, and none later.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from time import perf_counter, sleep
from typing import Any

from core.errors import InvalidInput, NonFinite, StartupError
from core.profile import Bucket, Pool
from core.recipe import StyleUse
from sampling.decode import Decoder
from sampling.encoder import Encoder
from sampling.layout import REMEDY
from sampling.loop import StepLoop
from sampling.rows import Row

log = logging.getLogger(__name__)
PROMPT = "a warm light"
MAX_STYLES = 8  # enough to learn which layers styles act on
Uses = tuple[StyleUse, ...]


def warm(loop: StepLoop, encoder: Encoder, decoder: Decoder, pool: Pool, styles: Sequence[str] = ()) -> None:
    """Also runs the styles once, so that the network is recorded with all layers that they act on.

    Raises: whatever the model raises; a worker that cannot paint must not become ready. A style that cannot be used is
    logged.
    """
    for bucket in pool.buckets:
        row = _row(encoder, pool, bucket)
        for _, error in _run(loop, [row]):
            raise _of_the_model(error)
        decoder.decode(row.latents[None])
        if decoder.max_rows > 1:
            decoder.decode(row.latents.expand(decoder.max_rows, *row.latents.shape))
    kept = styles if loop.denoiser.compiled is not None else styles[:MAX_STYLES]
    rows = [_row(encoder, pool, pool.buckets[0], (StyleUse(style, 1.0),)) for style in kept]
    for row, error in _run(loop, rows):
        if not isinstance(error, (InvalidInput, NonFinite)):
            raise error
        log.warning("a style cannot be used: %s", error.message)
        rows.remove(row)
    if loop.denoiser.compiled is not None:
        _compile(loop, encoder, pool, rows)


def _of_the_model(error: Exception) -> Exception:
    """Without styles and what people type, it is the weights that give what is not finite; no other try mends them."""
    return StartupError(f"the model cannot paint: {error.message}", REMEDY) if isinstance(error, NonFinite) else error


def sizes_up_to(rows: int) -> list[int]:
    """Network rows of the batches that are compiled: powers of two, and the most that are allowed."""
    return [size for size in (1 << i for i in range(rows.bit_length())) if size < rows] + [rows]


def _compile(loop: StepLoop, encoder: Encoder, pool: Pool, styled: Sequence[Row]) -> None:
    """Every size of picture and batch, without styles, with one style a row, and with as many as a row may have."""
    assert loop.denoiser.compiled is not None  # the caller's check
    started_s = perf_counter()
    kinds = [(), *_combinations(styled, loop.denoiser.limits.max_styles)]
    sizes = sizes_up_to(loop.max_network_rows)
    with loop.denoiser.compiled.compiling():
        for size in reversed(sizes):  # the largest first: it sets the room of the others
            for bucket in pool.buckets:
                for uses in kinds:
                    rows = [_row(encoder, pool, bucket, uses, f"{i}", guidance_scale=1.0) for i in range(size)]
                    for _, error in _run(loop, rows):
                        raise error
    log.info("compiled %d shapes in %.0f s", len(kinds) * len(sizes) * len(pool.buckets), perf_counter() - started_s)


def _combinations(styled: Sequence[Row], most: int) -> Iterator[Uses]:
    """The style of the largest rank, and the largest together, as many as a request may have."""
    ranked = sorted((row for row in styled if row.placed is not None), key=_rank, reverse=True)
    for count in sorted({1, most} if len(ranked) > 1 else {len(ranked)} - {0}):
        yield tuple(use for row in ranked[:count] for use in row.styles)


def _rank(row: Row) -> int:
    assert row.placed is not None  # rows without are left out
    return max((sum(stack.ranks) for stack in row.placed.pack.stacks.values()), default=0)


def _row(
    encoder: Encoder, pool: Pool, bucket: Bucket, uses: Uses = (), name: str = "", guidance_scale: float | None = None
) -> Row:
    guidance_scale = pool.guidance_scale if guidance_scale is None else guidance_scale
    fields: dict[str, Any] = {"guidance_scale": guidance_scale, "sampler": pool.sampler, "seed": 0}
    return Row(
        id=f"warm-{bucket}-{'-'.join(use.id for use in uses)}-{name}",
        bucket=bucket,
        steps=1,
        styles=uses,
        embedding=encoder.encode(PROMPT),
        negative=encoder.encode("") if pool.network_rows(guidance_scale) > 1 else None,
        **fields,
    )


def _run(loop: StepLoop, rows: Sequence[Row]) -> list[tuple[Row, Exception]]:
    """Steps until all rows are gone; those that failed, and why."""
    failures: list[tuple[Row, Exception]] = []
    for row in rows:
        loop.join(row)
    while loop.rows:
        report = loop.step()
        failures += report.failed
        if report.batch_size == 0:
            sleep(0.001)  # a style is being read
    return failures
