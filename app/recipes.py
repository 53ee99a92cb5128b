"""From bodies to recipes: defaults of the pool, a random seed, names to enums. Bounds are core.validate's."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import TypeVar

from app.bodies import PreviewBody, RenderBody, StyleBody
from core.errors import InvalidInput
from core.profile import Limits, ModelProfile, Pool
from core.prompt_rules import check_prompt
from core.recipe import Handoff, Recipe, Sampler, StyleUse
from core.validate import PoolName, check_recipe
from styles.catalogue import Catalogue

Choice = TypeVar("Choice", bound=StrEnum)


class Recipes:
    """Makes checked recipes for one model and its styles."""

    def __init__(self, profile: ModelProfile, catalogue: Catalogue) -> None:
        self._profile = profile
        self._weights = {style.id: style.weight for style in catalogue.all()}
        self._left_out = catalogue.reasons()

    def for_preview(self, body: PreviewBody, seed: int | None = None) -> Recipe:
        """seed is what an unseeded body gets; a random one when that is None too."""
        if seed is None:
            seed = random_seed(self._profile.limits)
        recipe = self._recipe(body, body.prompt, self._profile.preview, body.seed if body.seed is not None else seed)
        return self._checked(recipe, "preview")

    def for_render(self, body: RenderBody) -> Recipe:
        """A recipe of its own, without a preview."""
        if body.prompt is None:
            raise InvalidInput("prompt", "is required when there is no preview_id")
        handoff = _handoff(body, Handoff.FRESH)
        if handoff is not Handoff.FRESH:
            raise InvalidInput("handoff", f"{handoff} follows a preview; send its preview_id too")
        seed = body.seed if body.seed is not None else random_seed(self._profile.limits)
        recipe = self._recipe(body, body.prompt, self._profile.final, seed)
        return self._checked(self._final_fields(recipe, body, Handoff.FRESH), "final")

    def following(self, preview: Recipe, body: RenderBody) -> Recipe:
        """The preview's recipe as a render; fields that shaped the preview may be repeated, not changed."""
        if preview.model != self._profile.model:
            raise InvalidInput("preview_id", "was made by another version of the model; preview the text again")
        for name in ("prompt", "seed", "width", "height"):
            given = getattr(body, name)
            if given is not None and given != getattr(preview, name):
                raise InvalidInput(name, "differs from the preview that is followed; leave it out")
        if body.styles is not None and _by_id(self._styles(body.styles)) != _by_id(preview.styles):
            raise InvalidInput("styles", "differ from the preview that is followed; leave them out")
        handoff = _handoff(body, Handoff.MATCH)
        pool = self._profile.final
        recipe = replace(preview, steps=pool.steps, guidance_scale=pool.guidance_scale, sampler=pool.sampler)
        return self._checked(self._final_fields(recipe, body, handoff), "final")

    def _recipe(self, body: PreviewBody | RenderBody, prompt: str, pool: Pool, seed: int) -> Recipe:
        size = self._profile.final.buckets[0]
        return Recipe(
            prompt=prompt,
            negative_prompt=body.negative_prompt or "",
            seed=seed,
            width=size.width if body.width is None else body.width,
            height=size.height if body.height is None else body.height,
            steps=pool.steps if body.steps is None else body.steps,
            guidance_scale=pool.guidance_scale,
            sampler=pool.sampler,
            styles=self._styles(body.styles or ()),
            model_id=self._profile.id,
            model_version=self._profile.version,
        )

    def _final_fields(self, recipe: Recipe, body: RenderBody, handoff: Handoff) -> Recipe:
        sampler = recipe.sampler if body.sampler is None else choice(Sampler, body.sampler, "sampler")
        guidance = recipe.guidance_scale if body.guidance_scale is None else body.guidance_scale
        return replace(
            recipe,
            negative_prompt=recipe.negative_prompt if body.negative_prompt is None else body.negative_prompt,
            steps=recipe.steps if body.steps is None else body.steps,
            guidance_scale=float(guidance),
            sampler=sampler,
            handoff=handoff,
        )

    def _styles(self, uses: Sequence[StyleBody]) -> tuple[StyleUse, ...]:
        defaults = self._weights
        weights = [defaults.get(use.id, 1.0) if use.weight is None else use.weight for use in uses]
        return tuple(StyleUse(use.id, float(weight)) for use, weight in zip(uses, weights, strict=True))

    def _checked(self, recipe: Recipe, pool: PoolName) -> Recipe:
        for place, use in enumerate(recipe.styles):
            if use.id in self._left_out:
                raise InvalidInput(f"styles.{place}.id", f"{use.id} is left out: {self._left_out[use.id]}")
        check_recipe(recipe, self._profile, self._weights, pool)
        check_prompt(recipe.prompt)
        return recipe


def random_seed(limits: Limits) -> int:
    return secrets.randbelow(limits.max_seed + 1)


def _handoff(body: RenderBody, default: Handoff) -> Handoff:
    return default if body.handoff is None else choice(Handoff, body.handoff, "handoff")


def _by_id(styles: Sequence[StyleUse]) -> list[StyleUse]:
    """Their order changes nothing."""
    return sorted(styles, key=lambda use: use.id)


def choice(options: type[Choice], name: str, field: str) -> Choice:
    """Raises: InvalidInput that lists what there is."""
    try:
        return options(name)
    except ValueError:
        raise InvalidInput(field, f"must be one of {', '.join(options)}") from None
