"""Recipes and requests for tests, each valid as it stands for the bundled model."""

from __future__ import annotations

import time
from typing import Any

from core.recipe import Recipe, Sampler
from core.wire import PreviewRequest


def a_preview_recipe(prompt: str = "a cat on the beach", **changes: Any) -> Recipe:
    fields: dict[str, Any] = {
        "prompt": prompt,
        "negative_prompt": "",
        "seed": 7,
        "width": 128,
        "height": 128,
        "steps": 4,
        "guidance_scale": 1.0,
        "sampler": Sampler.LCM,
        "styles": (),
        "model_id": "storybook",
        "model_version": "0",
    }
    return Recipe(**{**fields, **changes})


def a_final_recipe(prompt: str = "a cat on the beach", **changes: Any) -> Recipe:
    return a_preview_recipe(prompt, **{"steps": 6, "guidance_scale": 4.0, "sampler": Sampler.EULER, **changes})


def a_request(session: str = "s1", rev: int = 1, owner: str = "ann", **changes: Any) -> PreviewRequest:
    recipe = a_preview_recipe(**changes)
    return PreviewRequest(session, owner, rev, f"{session}-{rev}", "web", time.time(), recipe)
