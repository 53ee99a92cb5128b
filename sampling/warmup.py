"""Warm-up: every bucket runs once through encode, step and decode before a worker calls itself ready."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from time import sleep
from typing import Any

from core.errors import InvalidInput
from core.profile import Bucket, Pool
from core.recipe import StyleUse
from sampling.decode import Decoder
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.rows import Row

log = logging.getLogger(__name__)
PROMPT = "a warm light"
MAX_STYLES = 8  # enough to learn which layers styles act on


def warm(loop: StepLoop, encoder: Encoder, decoder: Decoder, pool: Pool, styles: Sequence[str] = ()) -> None:
    """Also runs the styles once, so that the network is recorded with all layers that they act on.

    Raises: whatever the model raises; a worker that cannot paint must not become ready. A style that cannot be used is
    logged.
    """
    for bucket in pool.buckets:
        row = _row(encoder, pool, bucket)
        for error in _run(loop, [row]):
            raise error
        decoder.decode(row.latents[None])
    rows = [_row(encoder, pool, pool.buckets[0], style) for style in styles[:MAX_STYLES]]
    for error in _run(loop, rows):
        if not isinstance(error, InvalidInput):
            raise error
        log.warning("a style cannot be used: %s", error.message)


def _row(encoder: Encoder, pool: Pool, bucket: Bucket, style: str | None = None) -> Row:
    fields: dict[str, Any] = {"guidance_scale": pool.guidance_scale, "sampler": pool.sampler, "seed": 0}
    styles = () if style is None else (StyleUse(style, 1.0),)
    return Row(
        id=f"warm-{bucket}-{style}",
        bucket=bucket,
        steps=1,
        styles=styles,
        embedding=encoder.encode(PROMPT),
        negative=encoder.encode("") if pool.guidance_scale > 1 else None,
        **fields,
    )


def _run(loop: StepLoop, rows: Sequence[Row]) -> list[Exception]:
    """Steps until all rows are gone; why some of them failed."""
    failures: list[Exception] = []
    for row in rows:
        loop.join(row)
    while loop.rows:
        report = loop.step()
        failures += [error for _, error in report.failed]
        if report.batch_size == 0:
            sleep(0.001)  # a style is being read
    return failures
