"""Bounds of a recipe, checked before anything is queued or computed."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Literal

from core.errors import InvalidInput
from core.profile import Limits, ModelProfile, Pool
from core.prompt import parse_weights
from core.recipe import MAX_SEED, Recipe

SHOWN_CHARACTERS = 40
MAX_BUCKETS = 5
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")
PoolName = Literal["preview", "final"]
_LIMITS = {  # of a profile's whole numbers, least and most
    "prompt_characters": (1, 100_000), "max_preview_steps": (1, 1000), "max_steps": (1, 1000), "min_side": (1, 8192),
    "max_side": (1, 8192), "max_seed": (0, MAX_SEED), "max_styles": (0, 100), "max_images": (1, 100),
}  # fmt: skip


def check_recipe(recipe: Recipe, profile: ModelProfile, style_ids: Collection[str], pool: PoolName) -> None:
    """Raises: InvalidInput naming the first field that is out of bounds, and the bound."""
    limits = profile.limits
    check_text(recipe.prompt, "prompt", limits)
    if not _visible(recipe.prompt):
        raise InvalidInput("prompt", "must not be empty; describe the picture in a few words")
    check_text(recipe.negative_prompt, "negative_prompt", limits)
    check_int(recipe.seed, "seed", 0, limits.max_seed)
    check_int(recipe.width, "width", limits.min_side, limits.max_side)
    check_int(recipe.height, "height", limits.min_side, limits.max_side)
    check_int(recipe.steps, "steps", 1, limits.max_preview_steps if pool == "preview" else limits.max_steps)
    check_number(recipe.guidance_scale, "guidance_scale", 0.0, limits.max_guidance_scale)
    _check_network(recipe, profile.preview if pool == "preview" else profile.final)
    _check_styles(recipe, limits, style_ids)


def check_profile(profile: ModelProfile) -> None:
    """The limits make sense, and what a request gets that names nothing keeps them.

    Raises: InvalidInput naming the first field that is out of bounds.
    """
    for name in ("id", "version"):
        if not NAME.fullmatch(getattr(profile, name)):
            raise InvalidInput(name, "must be letters, digits, - . and _, at most 100")
    limits = profile.limits
    for name, (low, high) in _LIMITS.items():
        value = getattr(limits, name)
        if type(value) is not int:
            raise InvalidInput(f"limits.{name}", "must be a whole number")
        check_int(value, f"limits.{name}", low, high)
    for name in ("max_guidance_scale", "max_style_weight"):
        check_number(float(getattr(limits, name)), f"limits.{name}", 0.0, 1000.0)
    size = profile.final.buckets[0]
    pools: tuple[tuple[PoolName, Pool], ...] = ("preview", profile.preview), ("final", profile.final)
    for pool_name, pool in pools:
        if len(set(pool.buckets)) != len(pool.buckets) or len(pool.buckets) > MAX_BUCKETS:
            raise InvalidInput("buckets", f"must be {MAX_BUCKETS} different sizes at most")
        settings = (size.width, size.height, pool.steps, pool.guidance_scale, pool.sampler)
        try:
            check_recipe(Recipe("a", "", 0, *settings, (), profile.id, profile.version), profile, (), pool_name)
        except InvalidInput as error:
            raise InvalidInput(pool_name, f"its own {error.message}") from error


def check_text(text: str, field: str, limits: Limits) -> None:
    if len(text) > limits.prompt_characters:
        raise InvalidInput(field, f"has {len(text)} characters, at most {limits.prompt_characters} are read")
    if "\0" in text:
        raise InvalidInput(field, "holds a NUL character")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise InvalidInput(field, "holds a lone surrogate; send well-formed Unicode")
    parse_weights(text, field)


def check_int(value: int, field: str, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidInput(field, f"must be a whole number in {low}…{high}")


def check_number(value: float, field: str, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        raise InvalidInput(field, f"must be a number in {low:g}…{high:g}")


def _check_network(recipe: Recipe, pool: Pool) -> None:
    """What not every network can do."""
    if recipe.sampler not in pool.samplers:
        known = ", ".join(pool.samplers)
        raise InvalidInput("sampler", f"{recipe.sampler} cannot paint with this model; possible: {known}")
    if not pool.negatives and recipe.negative_prompt.strip():
        remedy = "leave it empty, and say in the prompt what there shall be instead"
        raise InvalidInput("negative_prompt", f"this model reads none; {remedy}")


def _visible(text: str) -> bool:
    return any(c.isprintable() and not c.isspace() for c in text)


def _check_styles(recipe: Recipe, limits: Limits, style_ids: Collection[str]) -> None:
    if recipe.styles and limits.max_styles == 0:
        raise InvalidInput("styles", "this model takes none; leave them out")
    if len(recipe.styles) > limits.max_styles:
        raise InvalidInput("styles", f"at most {limits.max_styles} at once")
    ids = [use.id for use in recipe.styles]
    if len(set(ids)) != len(ids):
        raise InvalidInput("styles", "names a style twice; give it one weight")
    for place, use in enumerate(recipe.styles):
        if use.id not in style_ids:
            known = ", ".join(sorted(style_ids)) or "none"
            raise InvalidInput(f"styles.{place}.id", f'no style "{_short(use.id)}"; known are {known}')
        check_number(use.weight, f"styles.{place}.weight", 0.0, limits.max_style_weight)


def _short(name: str) -> str:
    return name if len(name) <= SHOWN_CHARACTERS else name[: SHOWN_CHARACTERS - 1] + "…"
