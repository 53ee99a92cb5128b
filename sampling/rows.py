"""One request's place in a denoising batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from core.profile import Bucket
from core.recipe import Recipe, Sampler, StyleUse
from sampling.embedding import Embedding
from sampling.packs import Placed

BatchKey = tuple[Bucket, int]


@dataclass(slots=True, eq=False)
class Row:
    """What is asked, and the state that the step loop alone changes.

    Shapes: latents, denoised and init_latents [C, h, w] fp32; latents are signal * x0 + sigma * noise while the row
    runs and x0 when it is done; denoised is the newest estimate of x0, fit for a progressive picture. placed is what
    the bank holds of the row's styles, None while it waits for them and where it has none.
    """

    id: str
    bucket: Bucket
    steps: int
    guidance_scale: float
    sampler: Sampler
    seed: int
    styles: tuple[StyleUse, ...]
    embedding: Embedding
    negative: Embedding | None = None
    strength: float = 1.0
    init_latents: Tensor | None = None

    step_index: int = field(default=0, init=False)
    timesteps: list[float] = field(default_factory=list, init=False)
    sigmas: list[float] = field(default_factory=list, init=False)
    latents: Tensor = field(default_factory=lambda: torch.empty(0), init=False)
    denoised: Tensor | None = field(default=None, init=False)
    generator: torch.Generator | None = field(default=None, init=False)
    placed: Placed | None = field(default=None, init=False)

    @classmethod
    def of(
        cls,
        row_id: str,
        recipe: Recipe,
        bucket: Bucket,
        embedding: Embedding,
        negative: Embedding | None,
        *,
        number: int = 0,
        styles: tuple[StyleUse, ...] | None = None,
        strength: float = 1.0,
        init_latents: Tensor | None = None,
    ) -> Row:
        """A recipe's row. number: which of its pictures, of neighbouring seeds; styles: in place of the recipe's."""
        return cls(
            id=row_id,
            bucket=bucket,
            steps=recipe.steps,
            guidance_scale=recipe.guidance_scale,
            sampler=recipe.sampler,
            seed=recipe.seed + number,
            styles=recipe.styles if styles is None else styles,
            embedding=embedding,
            negative=negative,
            strength=strength,
            init_latents=init_latents,
        )

    @property
    def done(self) -> bool:
        return self.step_index >= self.steps

    @property
    def ready(self) -> bool:
        """Whether nothing is missing for the next step."""
        return not self.styles or self.placed is not None

    @property
    def guided(self) -> bool:
        """Guidance of 1 or less is no guidance, and without a negative prompt a number for the network to read."""
        return self.negative is not None and self.guidance_scale > 1.0

    @property
    def network_rows(self) -> int:
        return 2 if self.guided else 1

    @property
    def chunks(self) -> int:
        """77-token chunks that the network sees: the longer of the two prompts."""
        negative = self.negative.chunks if self.guided and self.negative is not None else 1
        return max(self.embedding.chunks, negative)

    @property
    def batch_key(self) -> BatchKey:
        """Rows of one key can share a forward pass."""
        return self.bucket, self.chunks

    @property
    def sigma(self) -> float:
        return self.sigmas[self.step_index]

    @property
    def last_sigma(self) -> float:
        """Noise level of the step before; infinite before the first."""
        return self.sigmas[self.step_index - 1] if self.step_index > 0 else float("inf")
