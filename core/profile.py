"""What a model is, as both pools and the outside see it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from core.recipe import MAX_SEED, Sampler, model_name


@dataclass(frozen=True, slots=True)
class Bucket:
    """One size the network really runs. Units: pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"

    @classmethod
    def parse(cls, text: str) -> Bucket:
        width, height = text.split("x")
        return cls(int(width), int(height))


@dataclass(frozen=True, slots=True)
class Pool:
    """Defaults of one pool.

    Relative to the model folder: adapter is a LoRA file fused into the pool's own UNet; decoder is a folder with a
    smaller autoencoder of the same latents, for pictures that are shown on the way.
    """

    sampler: Sampler
    steps: int
    guidance_scale: float
    adapter: str | None = None
    decoder: str | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    prompt_characters: int = 2000
    max_preview_steps: int = 8
    max_steps: int = 100
    max_guidance_scale: float = 20.0
    min_side: int = 64
    max_side: int = 152
    max_seed: int = MAX_SEED
    max_styles: int = 4
    max_style_weight: float = 2.0
    max_images: int = 4


@dataclass(frozen=True, slots=True)
class ModelProfile:
    id: str
    version: str
    licence: str
    buckets: tuple[Bucket, ...]
    preview: Pool
    final: Pool
    limits: Limits

    @property
    def model(self) -> str:
        """As the recipes made for it name it."""
        return model_name(self.id, self.version)

    def nearest_bucket(self, width: int, height: int) -> Bucket:
        """The bucket whose aspect ratio is nearest in log space; ties go to the one nearest in area."""
        asked = Fraction(width, height)

        def distance(bucket: Bucket) -> tuple[float, int]:
            ratio = Fraction(bucket.width, bucket.height) / asked
            return float(max(ratio, 1 / ratio)), abs(bucket.width * bucket.height - width * height)

        return min(self.buckets, key=distance)
