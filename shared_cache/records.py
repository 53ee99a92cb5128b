"""A render's record and its shape in a Redis hash.

Single values stand as JSON, one a field. `timings_ms` and `handoff` stand one hash field an entry
("timings_ms.queue_ms"), so that two stages add theirs without reading first. `batch_sizes` is a comma list, which
a script can append to. `model` repeats the recipe's model and version for scripts that decide who may work on it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.recipe import Recipe, spelled
from core.render import State

log = logging.getLogger(__name__)
RAW = ("id", "owner", "bucket")
MERGED = ("timings_ms", "handoff")
PLAIN = (
    "n", "preview_id", "attempt", "created_s", "step", "steps", "predicted_s", "predicted_gpu_s", "rows", "work_s",
    "images", "error", "deadline_s",
)  # fmt: skip
CHANGEABLE = frozenset(
    {"step", "steps", "predicted_s", "timings_ms", "batch_sizes", "handoff", "images", "error", "deadline_s", "bucket"}
)


@dataclass(frozen=True, slots=True)
class Record:
    """All that is known of one render.

    rows: network rows of one of its steps. work_s: what its steps take of the device, as its owner's share counts it.
    Units: created_s is the shared wall clock; deadline_s is relative to it.
    """

    id: str
    owner: str
    state: State
    recipe: Recipe
    bucket: str
    n: int
    preview_id: str | None
    attempt: int
    created_s: float
    step: int
    steps: int
    predicted_s: float
    timings_ms: dict[str, float] = field(default_factory=dict)
    batch_sizes: list[int] = field(default_factory=list)
    handoff: dict[str, Any] = field(default_factory=dict)
    images: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    deadline_s: float | None = None
    predicted_gpu_s: float = 0.0
    rows: int = 1
    work_s: float = 0.0

    @property
    def due_s(self) -> float | None:
        return None if self.deadline_s is None else self.created_s + self.deadline_s


def encode(record: Record) -> list[str]:
    """Field, value, field, value … for HSET."""
    pairs = ["state", record.state.value, "recipe", json.dumps(record.recipe.as_dict())]
    pairs += ["model", record.recipe.model, "styles", spelled(record.recipe.styles)]  # to choose by
    for name in (*RAW, *PLAIN, *MERGED, "batch_sizes"):
        pairs += _pairs(name, getattr(record, name))
    return pairs


def encode_changes(fields: Mapping[str, Any]) -> list[str]:
    """As encode, for the fields that may change after the creation.

    Raises: TypeError when a field is none of these.
    """
    unknown = set(fields) - CHANGEABLE
    if unknown:
        raise TypeError(f"not a changeable field of a record: {', '.join(sorted(unknown))}")
    return [text for name, value in fields.items() for text in _pairs(name, value)]


def decode(flat: Sequence[bytes]) -> Record | None:
    """The record of an HGETALL reply, None when there is none or it cannot be read (which is logged)."""
    if not flat:
        return None
    hashed = {flat[i].decode(): flat[i + 1].decode() for i in range(0, len(flat), 2)}
    try:
        return _build(hashed)
    except (KeyError, ValueError, TypeError) as error:
        log.error("record %s cannot be read: %r", hashed.get("id", "?"), error)
        return None


def _pairs(name: str, value: Any) -> list[str]:
    if name in RAW:
        return [name, value]
    if name == "batch_sizes":
        return [name, ",".join(str(size) for size in value)]
    if name in MERGED:
        return [text for key, item in value.items() for text in (f"{name}.{key}", json.dumps(item))]
    return [name, json.dumps(value)]


def _build(hashed: Mapping[str, str]) -> Record:
    merged: dict[str, dict[str, Any]] = {name: {} for name in MERGED}
    for key, text in hashed.items():
        name, dot, entry = key.partition(".")
        if dot and name in merged:
            merged[name][entry] = json.loads(text)
    plain: dict[str, Any] = {name: json.loads(hashed[name]) for name in PLAIN if name in hashed}
    return Record(
        state=State(hashed["state"]),
        recipe=Recipe.from_json(hashed["recipe"]),
        batch_sizes=[int(size) for size in hashed["batch_sizes"].split(",") if size],
        timings_ms=merged["timings_ms"],
        handoff=merged["handoff"],
        id=hashed["id"],
        owner=hashed["owner"],
        bucket=hashed["bucket"],
        **plain,
    )
