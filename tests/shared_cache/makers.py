"""Recipes, records and requests for tests, each valid as it stands."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import redis

from core.recipe import Recipe, Sampler, StyleUse
from core.render import TERMINAL, State
from core.wire import PreviewRequest
from shared_cache.lanes import Entry, lane_name
from shared_cache.queue import Lanes
from shared_cache.renders import Record, Renders

BUCKET = "96x96"
MODEL = "storybook@1"
LANE = lane_name("standard", BUCKET)


def a_recipe(prompt: str = "a cat on the beach", **changes: Any) -> Recipe:
    fields: dict[str, Any] = {
        "prompt": prompt, "negative_prompt": "", "seed": 7, "width": 96, "height": 96, "steps": 8,
        "guidance_scale": 5.0, "sampler": Sampler.EULER, "styles": (), "model_id": "storybook", "model_version": "1",
    }  # fmt: skip
    return Recipe(**{**fields, **changes})


def a_record(render_id: str = "r1", owner: str = "ann", **changes: Any) -> Record:
    fields: dict[str, Any] = {
        "id": render_id, "owner": owner, "state": State.QUEUED, "bucket": BUCKET, "n": 1, "preview_id": None,
        "recipe": a_recipe(styles=(StyleUse("ink", 0.8),)), "attempt": 0, "created_s": time.time(), "step": 0,
        "steps": 8, "predicted_s": 1.5,
    }  # fmt: skip
    return Record(**{**fields, **changes})


def a_request(session: str = "s1", rev: int = 1, prompt: str = "a cat", **changes: Any) -> PreviewRequest:
    return PreviewRequest(session, "ann", rev, f"{session}-{rev}", "web", time.time(), a_recipe(prompt, **changes))


def lanes(client: redis.Redis, consumer: str = "worker-1") -> Lanes:
    return Lanes(client, [BUCKET, "128x96"], consumer)


def take(mine: Lanes, count: int) -> list[Entry]:
    """The next of the queue, as a worker takes them."""
    return mine.take([task.id for task in mine.peek(count)])


def running(client: redis.Redis, render_id: str = "r1", **changes: Any) -> tuple[Entry, Record]:
    """A render that a worker has taken and claimed."""
    renders = Renders(client)
    renders.create(a_record(render_id, **changes), LANE)
    (entry,) = lanes(client).take([render_id])
    record = renders.claim(render_id, 3)
    assert record is not None
    return entry, record


def ends(events: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """The terminal states that the events tell of."""
    return [event["state"] for _, event in events if event["type"] == "state" and event["state"] in TERMINAL]


def write_safetensors(path: Path, header: dict[str, Any] | None = None, data: bytes = bytes(16)) -> Path:
    """A small valid file, or one with the given header."""
    if header is None:
        header = {"w": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}, "__metadata__": {"format": "pt"}}
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path
