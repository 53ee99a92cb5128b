"""A rolling pool of encoded scenes: each batch is drawn from it, and it is renewed a little every step."""

from dataclasses import dataclass
from random import Random

import numpy as np
import torch
import torch.nn.functional as F
from family import Family, encode_pictures
from PIL import Image
from scenes import BUCKETS, draw_scene
from torch import Tensor

_SQUARE_SHARE = 0.72
_FILLED_AT_START = 0.25


@dataclass(frozen=True, slots=True)
class Batch:
    """Scenes of one size.

    Shapes: `latents` (N, 8, h, w), `mask` (N, 1, h, w) in [0, 1].
    """

    latents: Tensor
    mask: Tensor
    captions: list[str]
    size_hw: tuple[int, int]


def _joined(parts: list[Batch]) -> Batch:
    return Batch(
        torch.cat([part.latents for part in parts]),
        torch.cat([part.mask for part in parts]),
        [caption for part in parts for caption in part.captions],
        parts[0].size_hw,
    )


class Pool:
    """Owns the encoded scenes of every bucket; everything random comes from its seed."""

    def __init__(
        self, family: Family, icons: dict[str, Image.Image], capacity: int, seed: int, style: str = "flat"
    ) -> None:
        self._family = family
        self._icons = icons
        self._style = style
        self._rng = Random(seed)
        self._batches: dict[tuple[int, int], Batch] = {}
        self._cursor = dict.fromkeys(BUCKETS, 0)
        self._limits: dict[tuple[int, int], int] = {}
        for size in BUCKETS:
            share = _SQUARE_SHARE if size == BUCKETS[0] else (1 - _SQUARE_SHARE) / 4
            self._limits[size] = round(capacity * share)
            parts = [self._fresh(size, 8) for _ in range(round(self._limits[size] * _FILLED_AT_START / 8))]
            self._batches[size] = _joined(parts)

    def _fresh(self, size_hw: tuple[int, int], count: int) -> Batch:
        scenes = [draw_scene(self._icons, size_hw, self._rng, self._style) for _ in range(count)]
        pictures = torch.from_numpy(np.stack([scene.picture for scene in scenes]))
        masks = torch.from_numpy(np.stack([scene.mask for scene in scenes])).unsqueeze(1)
        return Batch(
            encode_pictures(self._family, pictures), F.avg_pool2d(masks, 8), [s.caption for s in scenes], size_hw
        )

    def _pick_size(self) -> tuple[int, int]:
        return BUCKETS[0] if self._rng.random() < _SQUARE_SHARE else self._rng.choice(BUCKETS[1:])

    def renew(self, count: int) -> None:
        """Add `count` scenes to one bucket, or replace its oldest once it is full."""
        size = self._pick_size()
        fresh, held = self._fresh(size, count), self._batches[size]
        if len(held.captions) < self._limits[size]:
            self._batches[size] = _joined([held, fresh])
            return
        for i in range(count):
            at = (self._cursor[size] + i) % len(held.captions)
            held.latents[at], held.mask[at], held.captions[at] = fresh.latents[i], fresh.mask[i], fresh.captions[i]
        self._cursor[size] = (self._cursor[size] + count) % len(held.captions)

    def draw(self, count: int) -> Batch:
        """Draw a batch of one bucket."""
        held = self._batches[self._pick_size()]
        rows = self._rng.sample(range(len(held.captions)), count)
        return Batch(held.latents[rows], held.mask[rows], [held.captions[i] for i in rows], held.size_hw)
