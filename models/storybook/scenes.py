"""Compose captioned scenes: one or two icons on a painted background."""

from dataclasses import dataclass
from random import Random

import numpy as np
from backgrounds import paint
from catalogue import COLOURS, PLACES, SYNONYMS, article
from PIL import Image
from styling import STYLE_OF

BUCKETS: tuple[tuple[int, int], ...] = ((128, 128), (144, 112), (112, 144), (152, 104), (104, 152))
_PAIR_SHARE = 0.15
_EMPTY_SHARE = 0.04
_SIZE_WORDS = {"": 0.8, "small": 0.1, "big": 0.1}
_FLYING = {"space", "sky"}


@dataclass(frozen=True, slots=True)
class Scene:
    """One training picture.

    Shapes: `picture` is RGB (H, W, 3) uint8, `mask` is (H, W) float in [0, 1].
    """

    picture: np.ndarray
    mask: np.ndarray
    caption: str
    objects: tuple[str, ...]
    background: str


def _noun(name: str, size_word: str, rng: Random) -> str:
    words = SYNONYMS.get(name, ())
    chosen = rng.choice(words) if words and rng.random() < 0.25 else name
    phrase = article(chosen)
    if not size_word:
        return phrase
    bare = phrase.split(" ", 1)[1] if phrase != chosen else phrase
    return f"a {size_word} {bare}" if phrase != chosen else f"{size_word} {bare}"


def _setting(background: str, rng: Random) -> str:
    if background in COLOURS:
        return f"on {article(background)} background"
    first, *others = PLACES[background]
    return first if rng.random() < 0.6 else rng.choice(others)


def _emptiness(background: str, rng: Random) -> str:
    """Name a scene without objects: "the beach", "grass", "a red background"."""
    if background in COLOURS:
        return f"{article(background)} background"
    phrase = _setting(background, rng).split(" ", 1)[1]
    return phrase.removeprefix("the ") if rng.random() < 0.5 else phrase


def _caption(nouns: list[str], background: str, rng: Random) -> str:
    if not nouns:
        return _emptiness(background, rng)
    subject = " and ".join(nouns)
    if background == "white" and rng.random() < 0.3:
        return subject  # nothing said means a plain white page
    return f"{subject} {_setting(background, rng)}"


def _place(
    canvas: Image.Image, mask: Image.Image, icon: Image.Image, centre: tuple[float, float], reach: float
) -> None:
    """Paste an icon whose longer side is `reach` pixels around `centre` (pixels)."""
    scale = reach / max(icon.size)
    size = (max(1, round(icon.width * scale)), max(1, round(icon.height * scale)))
    small = icon.resize(size, Image.Resampling.LANCZOS)
    corner = (round(centre[0] - size[0] / 2), round(centre[1] - size[1] / 2))
    canvas.paste(small, corner, small)
    mask.paste(255, corner, small.getchannel("A"))


def _single(width: int, height: int, size_word: str, background: str, rng: Random) -> tuple[tuple[float, float], float]:
    low, high = {"small": (0.34, 0.42), "big": (0.82, 0.9), "": (0.66, 0.76)}[size_word]
    reach = min(width, height) * rng.uniform(low, high)
    middle = 0.5 if background in COLOURS or background in _FLYING else 0.56
    return (width * rng.uniform(0.48, 0.52), height * (middle + rng.uniform(-0.02, 0.02))), reach


def compose(
    icons: dict[str, Image.Image],
    names: tuple[str, ...],
    background: str,
    size_hw: tuple[int, int],
    rng: Random,
    style: str = "flat",
) -> Scene:
    """Compose a scene of at most two named objects on a place or colour, painted over as the style does."""
    height, width = size_hw
    brushes = STYLE_OF[style]
    canvas = brushes.paper(paint(background, (width, height), rng), rng)
    mask = Image.new("L", (width, height), 0)
    size_word = ""
    if len(names) == 1:
        size_word = rng.choices([*_SIZE_WORDS], [*_SIZE_WORDS.values()])[0]
        _place(canvas, mask, icons[names[0]], *_single(width, height, size_word, background, rng))
    elif names:
        reach = min(width, height) * rng.uniform(0.42, 0.48)
        for name, x in zip(names, (0.28, 0.72), strict=True):
            _place(canvas, mask, icons[name], (width * x, height * rng.uniform(0.5, 0.6)), reach)
    caption = _caption([_noun(name, size_word, rng) for name in names], background, rng)
    finished = brushes.finish(canvas, rng)
    return Scene(np.asarray(finished), np.asarray(mask, dtype=np.float32) / 255, caption, names, background)


def draw_scene(icons: dict[str, Image.Image], size_hw: tuple[int, int], rng: Random, style: str = "flat") -> Scene:
    """Compose a random scene: mostly one large object, plain colours as often as places."""
    objects = sorted(icons)
    count = rng.choices((0, 1, 2), (_EMPTY_SHARE, 1 - _EMPTY_SHARE - _PAIR_SHARE, _PAIR_SHARE))[0]
    names = tuple(rng.sample(objects, count))
    plain = rng.random() < 0.6
    if plain:
        background = "white" if rng.random() < 0.4 else rng.choice(sorted(COLOURS))
    else:
        background = rng.choice(sorted(PLACES))
    return compose(icons, names, background, size_hw, rng, style)
