"""A recipe: all that decides a picture."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

MAX_SEED = 2**53 - 1  # the largest integer that a browser's number holds exactly


class Sampler(StrEnum):
    EULER = "euler"
    EULER_A = "euler_a"
    DPMPP_2M = "dpmpp_2m"
    DDIM = "ddim"
    LCM = "lcm"


def model_name(model_id: str, version: str) -> str:
    """One name for a model and its version: what one of them began, no other continues."""
    return f"{model_id}@{version}"


class Handoff(StrEnum):
    """How a render follows its preview."""

    MATCH = "match"
    BALANCED = "balanced"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True)
class StyleUse:
    """One style on a request; weight multiplies the adapter's delta."""

    id: str
    weight: float

    def __str__(self) -> str:
        return f"{self.id}:{self.weight:g}"

    @classmethod
    def parse(cls, text: str) -> StyleUse:
        """Reads "ink" or "ink:0.8". Raises: ValueError when the weight is no number."""
        style_id, colon, weight = text.partition(":")
        return cls(style_id, float(weight) if colon else 1.0)


def styles_of(text: str) -> frozenset[str]:
    """The ids of the styles that were spelled so."""
    return frozenset(use.rpartition(":")[0] for use in text.split("+") if use)


def spelled(styles: tuple[StyleUse, ...]) -> str:
    """The same text for the same styles in any order; empty for none."""
    return "+".join(sorted(str(use) for use in styles))


@dataclass(frozen=True, slots=True)
class Recipe:
    """Units: width and height in pixels, as asked (not the bucket); guidance_scale as in the CFG paper."""

    prompt: str
    negative_prompt: str
    seed: int
    width: int
    height: int
    steps: int
    guidance_scale: float
    sampler: Sampler
    styles: tuple[StyleUse, ...]
    model_id: str
    model_version: str
    handoff: Handoff = Handoff.FRESH

    @property
    def model(self) -> str:
        return model_name(self.model_id, self.model_version)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.as_dict(), ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Recipe:
        known = dict(fields)
        known["sampler"] = Sampler(known["sampler"])
        known["handoff"] = Handoff(known["handoff"])
        known["styles"] = tuple(StyleUse(s["id"], float(s["weight"])) for s in known["styles"])
        return cls(**known)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        return cls.from_dict(json.loads(text))

    def content_hash(self) -> str:
        """SHA-256 over the canonical JSON, 64 hex digits."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def with_seed(self, seed: int) -> Recipe:
        return replace(self, seed=seed)
