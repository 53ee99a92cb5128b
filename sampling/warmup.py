"""Warm-up: every bucket runs once through encode, step and decode before a worker calls itself ready."""

from __future__ import annotations

from core.profile import ModelProfile, Pool
from sampling.decode import Decoder
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.rows import Row

PROMPT = "a warm light"


def warm(loop: StepLoop, encoder: Encoder, decoder: Decoder, profile: ModelProfile, pool: Pool) -> None:
    """Raises: whatever the model raises; a worker that cannot paint must not become ready."""
    embedding = encoder.encode(PROMPT)
    negative = encoder.encode("") if pool.guidance_scale > 1 else None
    for bucket in profile.buckets:
        row = Row(
            id=f"warm-{bucket}",
            bucket=bucket,
            steps=1,
            guidance_scale=pool.guidance_scale,
            sampler=pool.sampler,
            seed=0,
            styles=(),
            embedding=embedding,
            negative=negative,
        )
        loop.join(row)
        report = loop.step()
        for _, error in report.failed:
            raise error
        decoder.decode(row.latents[None])
