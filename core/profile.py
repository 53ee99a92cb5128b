"""What a model is, as both pools and the outside see it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from core.recipe import MAX_SEED, Sampler, model_name


@dataclass(frozen=True, slots=True)
class Bucket:
    """One size the network really runs. Units: pixels."""

    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height}"

    @property
    def area(self) -> int:
        return self.width * self.height

    def unlikeness(self, width: int, height: int) -> float:
        """How far the shape of a picture is from this one's: the ratio of their aspects, 1 where they are alike."""
        ratio = Fraction(self.width, self.height) / Fraction(width, height)
        return float(max(ratio, 1 / ratio))

    @classmethod
    def parse(cls, text: str) -> Bucket:
        width, height = text.split("x")
        return cls(int(width), int(height))


@dataclass(frozen=True, slots=True)
class Pool:
    """What one pool paints and its defaults; licence is that of all it paints with.

    samplers: those that the network can be asked for. negatives: whether guidance above 1 runs a negative prompt; where
    not, guidance is an input of the network, or nothing.
    """

    sampler: Sampler
    steps: int
    guidance_scale: float
    buckets: tuple[Bucket, ...]
    licence: str = "unknown"
    samplers: tuple[Sampler, ...] = tuple(Sampler)
    negatives: bool = True

    def network_rows(self, guidance_scale: float) -> int:
        """Rows of the network that a picture's step is: one, and one more for a negative prompt."""
        return 2 if self.negatives and guidance_scale > 1 else 1

    def nearest_bucket(self, width: int, height: int) -> Bucket:
        """The bucket whose aspect ratio is nearest in log space; ties go to the one nearest in area."""
        area = width * height
        return min(self.buckets, key=lambda bucket: (bucket.unlikeness(width, height), abs(bucket.area - area)))


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
    """styles: the folder of the model's own styles, None where it has none."""

    id: str
    version: str
    preview: Pool
    final: Pool
    limits: Limits
    styles: Path | None = None

    @property
    def model(self) -> str:
        """As the recipes made for it name it."""
        return model_name(self.id, self.version)
