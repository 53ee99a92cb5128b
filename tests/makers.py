"""Recipes, requests and measurements for tests, each valid as it stands for the bundled model."""

from __future__ import annotations

import json
import time
from typing import Any

from core.metrics import Metrics
from core.recipe import Recipe, Sampler
from core.render import State
from core.settings import BUNDLED_MODEL
from core.wire import PreviewRequest

VERSION = json.loads((BUNDLED_MODEL / "storybook.json").read_text())["version"]


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
        "model_version": VERSION,
    }
    return Recipe(**{**fields, **changes})


def a_final_recipe(prompt: str = "a cat on the beach", **changes: Any) -> Recipe:
    return a_preview_recipe(prompt, **{"steps": 6, "guidance_scale": 4.0, "sampler": Sampler.EULER, **changes})


def a_request(session: str = "s1", rev: int = 1, owner: str = "ann", **changes: Any) -> PreviewRequest:
    recipe = a_preview_recipe(**changes)
    return PreviewRequest(session, owner, rev, f"{session}-{rev}", "web", time.time(), recipe)


def all_metrics() -> Metrics:
    """Every method called once, so that every family has a sample."""
    metrics = Metrics()
    metrics.stepped("preview", "128x128", 2, 1, 0.04)
    metrics.busy("preview", 0.04)
    metrics.wasted("final", 3)
    metrics.stage("final", "decode", 0.1)
    metrics.answered("final", 2.0)
    metrics.previewed("shown")
    metrics.superseded(2)
    metrics.cache(hits=3, misses=1, size_bytes=1024)
    metrics.ended(State.DONE)
    metrics.rejected("deadline")
    metrics.missed_deadline(8)
    metrics.predicted("total", 2.0, 3.0)
    metrics.calibrated("128x128", 2, 0.03)
    metrics.drift("128x128", 2, 1.3)
    return metrics
