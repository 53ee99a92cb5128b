"""Ten places and twelve colours, drawn in code at any size."""

import math
from random import Random

from catalogue import COLOURS
from PIL import Image, ImageDraw, ImageFilter

Rgb = tuple[int, int, int]
_SCALE = 2  # drawn twice as large, then reduced, so that edges are smooth


def _jitter(rng: Random, colour: Rgb, amount: int = 8) -> Rgb:
    shift = rng.randint(-amount, amount)
    return (_byte(colour[0] + shift), _byte(colour[1] + shift), _byte(colour[2] + shift))


def _byte(value: float) -> int:
    return max(0, min(255, round(value)))


def _gradient(size: tuple[int, int], top: Rgb, bottom: Rgb) -> Image.Image:
    strip = Image.new("RGB", (1, 2))
    strip.putpixel((0, 0), top)
    strip.putpixel((0, 1), bottom)
    return strip.resize(size, Image.Resampling.BILINEAR, box=(0, 0.5, 1, 1.5))


def _hill(
    draw: ImageDraw.ImageDraw, rng: Random, size: tuple[int, int], level: float, colour: Rgb, swing: float
) -> None:
    """Fill everything below a gentle sine at `level` (a fraction of the height)."""
    width, height = size
    phase, waves = rng.uniform(0, math.tau), rng.uniform(0.6, 1.4)
    points = [
        (x, height * (level + swing * math.sin(phase + waves * math.tau * x / width))) for x in range(0, width + 8, 8)
    ]
    draw.polygon([*points, (width + 8, height), (0, height)], fill=colour)


def _stars(draw: ImageDraw.ImageDraw, rng: Random, size: tuple[int, int], count: int, lowest: float) -> None:
    for _ in range(count):
        x, y, r = rng.uniform(0, size[0]), rng.uniform(0, size[1] * lowest), rng.uniform(1.2, 2.6)
        draw.ellipse((x - r, y - r, x + r, y + r), fill=(245, 240, 210))


def _clouds(draw: ImageDraw.ImageDraw, rng: Random, size: tuple[int, int], count: int, lowest: float) -> None:
    for _ in range(count):
        x, y = rng.uniform(0, size[0]), rng.uniform(0.05, lowest) * size[1]
        for _puff in range(4):
            r = rng.uniform(0.05, 0.09) * size[0]
            dx, dy = rng.uniform(-0.1, 0.1) * size[0], rng.uniform(-0.02, 0.02) * size[1]
            draw.ellipse((x + dx - r, y + dy - r * 0.7, x + dx + r, y + dy + r * 0.7), fill=(250, 252, 255))


def _trees(draw: ImageDraw.ImageDraw, rng: Random, size: tuple[int, int], level: float) -> None:
    width, height = size
    for i in range(7):
        x, tall = width * (i + rng.uniform(0.1, 0.9)) / 7, height * rng.uniform(0.3, 0.45)
        foot, half = height * (level + 0.04), width * rng.uniform(0.07, 0.1)
        green = _jitter(rng, (38, 110, 66), 14)
        draw.rectangle((x - 4, foot - 12, x + 4, foot), fill=(110, 76, 50))
        draw.polygon([(x, foot - tall), (x - half, foot - 10), (x + half, foot - 10)], fill=green)


def _beach(rng: Random, size: tuple[int, int]) -> Image.Image:
    image = _gradient(size, _jitter(rng, (130, 205, 245)), (205, 236, 250))
    draw = ImageDraw.Draw(image)
    _hill(draw, rng, size, 0.42, (50, 150, 205), 0.0)
    _hill(draw, rng, size, rng.uniform(0.56, 0.62), _jitter(rng, (244, 216, 154)), 0.02)
    return image


def _meadow(rng: Random, size: tuple[int, int]) -> Image.Image:
    image = _gradient(size, _jitter(rng, (135, 206, 250)), (214, 240, 252))
    draw = ImageDraw.Draw(image)
    _hill(draw, rng, size, 0.5, (148, 205, 110), 0.05)
    _hill(draw, rng, size, rng.uniform(0.58, 0.64), _jitter(rng, (108, 182, 82)), 0.04)
    return image


def _sea(rng: Random, size: tuple[int, int]) -> Image.Image:
    image = _gradient(size, _jitter(rng, (150, 214, 248)), (220, 242, 252))
    draw = ImageDraw.Draw(image)
    for i, colour in enumerate(((60, 160, 215), (44, 138, 198), (30, 116, 178))):
        _hill(draw, rng, size, 0.5 + 0.16 * i, _jitter(rng, colour, 4), 0.015)
    return image


def _desert(rng: Random, size: tuple[int, int]) -> Image.Image:
    image = _gradient(size, _jitter(rng, (250, 214, 150)), (254, 236, 200))
    draw = ImageDraw.Draw(image)
    _hill(draw, rng, size, 0.5, (226, 170, 100), 0.07)
    _hill(draw, rng, size, rng.uniform(0.62, 0.68), _jitter(rng, (212, 148, 82)), 0.06)
    return image


def _snow(rng: Random, size: tuple[int, int]) -> Image.Image:
    image = _gradient(size, _jitter(rng, (168, 196, 222)), (216, 228, 240))
    draw = ImageDraw.Draw(image)
    _hill(draw, rng, size, 0.52, (232, 240, 248), 0.05)
    _hill(draw, rng, size, rng.uniform(0.62, 0.68), (250, 252, 255), 0.04)
    _stars_white = [(rng.uniform(0, size[0]), rng.uniform(0, size[1] * 0.55)) for _ in range(26)]
    for x, y in _stars_white:
        draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=(255, 255, 255))
    return image


def _forest(rng: Random, size: tuple[int, int]) -> Image.Image:
    image = _gradient(size, _jitter(rng, (176, 220, 214)), (216, 238, 220))
    draw = ImageDraw.Draw(image)
    _trees(draw, rng, size, 0.58)
    _hill(draw, rng, size, 0.6, _jitter(rng, (72, 136, 72)), 0.03)
    return image


def _night(rng: Random, size: tuple[int, int]) -> Image.Image:
    image = _gradient(size, _jitter(rng, (22, 28, 66)), (56, 62, 120))
    draw = ImageDraw.Draw(image)
    _stars(draw, rng, size, 24, 0.6)
    _hill(draw, rng, size, rng.uniform(0.64, 0.7), (32, 44, 70), 0.04)
    return image


def _sunset(rng: Random, size: tuple[int, int]) -> Image.Image:
    image = _gradient(size, _jitter(rng, (244, 120, 86)), (254, 206, 120))
    draw = ImageDraw.Draw(image)
    x, y, r = size[0] * rng.uniform(0.3, 0.7), size[1] * 0.58, size[0] * 0.13
    draw.ellipse((x - r, y - r, x + r, y + r), fill=(255, 236, 160))
    _hill(draw, rng, size, rng.uniform(0.64, 0.68), _jitter(rng, (120, 64, 96)), 0.03)
    return image


def _space(rng: Random, size: tuple[int, int]) -> Image.Image:
    image = _gradient(size, _jitter(rng, (16, 14, 40)), (30, 20, 60))
    _stars(ImageDraw.Draw(image), rng, size, 46, 1.0)
    return image


def _sky(rng: Random, size: tuple[int, int]) -> Image.Image:
    image = _gradient(size, _jitter(rng, (104, 180, 240)), (190, 226, 250))
    _clouds(ImageDraw.Draw(image), rng, size, 4, 0.95)
    return image


_PAINTERS = {
    "beach": _beach, "meadow": _meadow, "sea": _sea, "desert": _desert, "snow": _snow,
    "forest": _forest, "night": _night, "sunset": _sunset, "space": _space, "sky": _sky,
}  # fmt: skip


def paint(name: str, size_wh: tuple[int, int], rng: Random) -> Image.Image:
    """Paint a place or a plain colour.

    Raises: KeyError for a name that is neither.
    """
    if name in COLOURS:
        return Image.new("RGB", size_wh, _jitter(rng, COLOURS[name], 4))
    large = (size_wh[0] * _SCALE, size_wh[1] * _SCALE)
    image = _PAINTERS[name](rng, large).filter(ImageFilter.GaussianBlur(0.6))
    return image.resize(size_wh, Image.Resampling.BOX)
