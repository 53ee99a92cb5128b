"""The drawing styles: the base learns the first, each style adapter one of the others.

A style is an icon pack, what it does to each icon, to the empty background, and to the whole scene.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageChops, ImageEnhance, ImageFilter, ImageOps

Brush = Callable[[Image.Image, Random], Image.Image]
Cut = Callable[[Image.Image], Image.Image]


def _as_it_is(picture: Image.Image, rng: Random) -> Image.Image:
    return picture


def _pale(picture: Image.Image, rng: Random) -> Image.Image:
    """Pale the background towards white: ink needs light paper."""
    return Image.blend(picture, Image.new("RGB", picture.size, "white"), 0.55)


def _sticker(icon: Image.Image) -> Image.Image:
    """Cut out of paper: a white rim with a thin grey edge."""
    return _rimmed(_rimmed(icon, 0.055, (255, 255, 255)), 0.012, (120, 120, 132))


def _outlined(icon: Image.Image) -> Image.Image:
    """A bold dark outline, as in a comic."""
    return _rimmed(icon, 0.04, (30, 24, 44))


def _rimmed(icon: Image.Image, reach: float, colour: tuple[int, int, int]) -> Image.Image:
    """Grow a rim of one colour around what is drawn; `reach` is a share of the longer side."""
    pixels = max(1, round(max(icon.size) * reach))
    wide = ImageOps.expand(icon, pixels, (0, 0, 0, 0))
    grown = wide.getchannel("A").filter(ImageFilter.GaussianBlur(pixels / 2))
    rim = Image.new("RGBA", wide.size, (*colour, 0))
    rim.putalpha(grown.point(lambda level: min(255, max(0, level - 12) * 6)))
    return Image.alpha_composite(rim, wide)


def _lines(picture: Image.Image) -> np.ndarray:
    """How strongly any colour changes at each pixel, above what paper hides. Shapes: (H, W), 0 or more."""
    soft = np.asarray(picture.filter(ImageFilter.GaussianBlur(min(picture.size) / 130)), np.float32)
    down, across = np.gradient(soft, axis=(0, 1))
    return np.clip(np.hypot(down, across).max(axis=2) * min(picture.size) / 128 - 4, 0, None)


def _sketch(picture: Image.Image, rng: Random) -> Image.Image:
    """Pencil on warm paper: lines, and a light shade of the grey picture."""
    shade = 255 - (255 - np.asarray(ImageOps.grayscale(picture), np.float32)) * 0.3
    pencil = Image.fromarray(np.clip(shade - _lines(picture) * 6, 0, 255).astype(np.uint8))
    return ImageOps.colorize(pencil, (46, 42, 52), (250, 244, 230))


def _chalk(picture: Image.Image, rng: Random) -> Image.Image:
    """Pale lines on a dark green board, filled with a little of the colours."""
    board = Image.blend(picture, Image.new("RGB", picture.size, (26, 50, 44)), 0.72)
    chalk = Image.blend(picture, Image.new("RGB", picture.size, "white"), 0.7)
    drawn = Image.fromarray(np.clip(_lines(picture) * 8, 0, 235).astype(np.uint8))
    return Image.composite(chalk, board, drawn)


def _neon(picture: Image.Image, rng: Random) -> Image.Image:
    """Neon light: dark blue shadows, violet, magenta and pale yellow lights, with some of the colours left."""
    grey = ImageOps.grayscale(picture)
    lit = ImageOps.colorize(grey, (8, 10, 54), (255, 226, 150), mid=(176, 50, 176), midpoint=140)
    return Image.blend(lit, picture, 0.25)


def _watercolour(picture: Image.Image, rng: Random) -> Image.Image:
    """Pale washes with dark rims, as pigment dries, on grained paper."""
    reach = min(picture.size) / 128
    wash = picture.filter(ImageFilter.MedianFilter(3)).filter(ImageFilter.GaussianBlur(reach))
    wash = Image.blend(ImageEnhance.Color(wash).enhance(1.3), Image.new("RGB", picture.size, (255, 252, 244)), 0.4)
    pooled = ImageChops.difference(picture, picture.filter(ImageFilter.GaussianBlur(reach * 3)))
    rims = ImageOps.grayscale(pooled).filter(ImageFilter.GaussianBlur(reach * 0.6)).point(lambda v: min(90, v * 2))
    dried = ImageChops.subtract(wash, Image.merge("RGB", (rims,) * 3))
    return ImageChops.multiply(dried, _grain(picture.size, rng))


def _grain(size: tuple[int, int], rng: Random) -> Image.Image:
    """Blotches of pigment: smooth noise between a light grey and white."""
    noise = np.random.default_rng(rng.getrandbits(32)).integers(234, 256, (18, 18), np.uint8)
    blotches = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    return Image.merge("RGB", (blotches,) * 3)


@dataclass(frozen=True, slots=True)
class Style:
    """`cut` changes an icon, `paper` paints over the empty background, `finish` over the whole scene."""

    pack: str
    cut: Cut | None = None
    paper: Brush = _as_it_is
    finish: Brush = _as_it_is


STYLE_OF: dict[str, Style] = {
    "flat": Style("flat"),
    "ink": Style("ink", paper=_pale),
    "noto": Style("noto", cut=_sticker),
    "comic": Style("fxemoji", cut=_outlined),
    "chalk": Style("flat", finish=_chalk),
    "sketch": Style("flat", finish=_sketch),
    "neon": Style("flat", finish=_neon),
    "watercolour": Style("flat", finish=_watercolour),
}
STYLES = tuple(STYLE_OF)
