"""The drawing styles: the base learns the first, each style adapter one of the others.

A style is an icon pack, what it does to the empty background, and what it does to the whole scene.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageChops, ImageEnhance, ImageFilter, ImageOps

Brush = Callable[[Image.Image, Random], Image.Image]


def _as_it_is(picture: Image.Image, rng: Random) -> Image.Image:
    return picture


def _pale(picture: Image.Image, rng: Random) -> Image.Image:
    """Pale the background towards white: ink needs light paper."""
    return Image.blend(picture, Image.new("RGB", picture.size, "white"), 0.55)


def _pixel(picture: Image.Image, rng: Random) -> Image.Image:
    """A grid of 32 cells on the shorter side in few colours."""
    cell = min(picture.size) / 32
    small = picture.resize((round(picture.width / cell), round(picture.height / cell)), Image.Resampling.BOX)
    few = small.quantize(20, dither=Image.Dither.NONE).convert("RGB")
    return few.resize(picture.size, Image.Resampling.NEAREST)


def _sketch(picture: Image.Image, rng: Random) -> Image.Image:
    """Pencil on warm paper: a colour dodge of the grey picture with its own blurred negative."""
    grey = ImageOps.grayscale(picture)
    reach = min(picture.size) / 40
    blurred = np.asarray(ImageOps.invert(grey).filter(ImageFilter.GaussianBlur(reach)), np.float32)
    light = np.clip(np.asarray(grey, np.float32) * 255 / np.maximum(255 - blurred, 1), 0, 255)
    strokes = Image.fromarray(np.clip(255 - (255 - light) * 2.6, 30, 255).astype(np.uint8))
    shade = Image.blend(strokes, ImageChops.multiply(strokes, grey), 0.25)
    return ImageOps.colorize(shade, (58, 52, 60), (250, 244, 230))


def _night(picture: Image.Image, rng: Random) -> Image.Image:
    """Moonlight: brightness becomes navy, violet and pale yellow, with a little of the colours left."""
    grey = ImageOps.grayscale(picture)
    moonlit = ImageOps.colorize(grey, (10, 12, 48), (222, 214, 196), mid=(88, 78, 168))
    return Image.blend(moonlit, ImageEnhance.Brightness(picture).enhance(0.6), 0.22)


def _watercolour(picture: Image.Image, rng: Random) -> Image.Image:
    """Soft washes with darker rims on grained paper."""
    reach = min(picture.size) / 110
    wash = picture.filter(ImageFilter.GaussianBlur(reach)).filter(ImageFilter.MedianFilter(3))
    wash = Image.blend(ImageEnhance.Color(wash).enhance(1.25), Image.new("RGB", picture.size, (255, 252, 244)), 0.3)
    rims = ImageOps.grayscale(picture).filter(ImageFilter.FIND_EDGES).filter(ImageFilter.GaussianBlur(reach * 0.7))
    rims = rims.crop((2, 2, rims.width - 2, rims.height - 2)).resize(picture.size)
    darker = ImageChops.multiply(wash, ImageOps.colorize(rims, "white", (120, 110, 130)))
    return ImageChops.multiply(darker, _grain(picture.size, rng))


def _grain(size: tuple[int, int], rng: Random) -> Image.Image:
    """Blotches of pigment: smooth noise between a light grey and white."""
    noise = np.random.default_rng(rng.getrandbits(32)).integers(226, 256, (22, 22), np.uint8)
    blotches = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    return Image.merge("RGB", (blotches,) * 3)


@dataclass(frozen=True, slots=True)
class Style:
    """`paper` paints over the empty background, `finish` over the whole scene."""

    pack: str
    paper: Brush = _as_it_is
    finish: Brush = _as_it_is


STYLE_OF: dict[str, Style] = {
    "flat": Style("flat"),
    "ink": Style("ink", paper=_pale),
    "noto": Style("noto"),
    "fxemoji": Style("fxemoji"),
    "pixel": Style("flat", finish=_pixel),
    "sketch": Style("flat", finish=_sketch),
    "night": Style("flat", finish=_night),
    "watercolour": Style("flat", finish=_watercolour),
}
STYLES = tuple(STYLE_OF)
