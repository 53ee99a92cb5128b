"""What the roles of one worker process share, and how their parts are started and stopped."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

import redis

from core.cost import CostTable, Part
from core.metrics import Metrics
from core.profile import ModelProfile
from core.recipe import StyleUse
from core.render import State
from core.settings import Settings
from final_engine.stage import Stage, Work
from sampling.safety import ImageClassifier
from shared_cache.costs import Costs, LiveCosts
from shared_cache.lanes import Stream
from shared_cache.latents import Latents
from shared_cache.registry import Registry
from shared_cache.renders import Renders

MEASURES = {"final": (Part.ENCODE, Part.STEP), "decode": (Part.DECODE,), "finish": (Part.SAFETY, Part.PUBLISH)}


class Running(Protocol):
    """A part with a thread of its own."""

    def start(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Shared:
    """fused: the style that a worker is dedicated to. parts: what was started, each closed on exit, in reverse order.
    stages: those of them that are stages."""

    worker_id: str
    settings: Settings
    redis: redis.Redis
    clock: Callable[[], float]
    metrics: Metrics
    classifier: ImageClassifier
    renders: Renders
    latents: Latents
    costs: Costs
    registry: Registry
    profile: ModelProfile
    fused: StyleUse | None
    parts: ExitStack = field(default_factory=ExitStack)
    stages: list[Stage] = field(default_factory=list)

    def start(self, part: Running) -> None:
        part.start()
        self.parts.callback(part.close)

    def start_stage(self, name: str, queue: str, expects: State, work: Work) -> None:
        stage = Stage(
            name=name,
            stream=Stream(self.redis, queue, queue, self.worker_id),
            renders=self.renders,
            expects=expects,
            work=work,
            lease_s=self.settings.lease_s,
            max_attempts=self.settings.max_attempts,
            metrics=self.metrics,
            patience_s=self.settings.publish_patience_s,
        )
        self.stages.append(stage)
        self.start(stage)

    def live_costs(self, role: str, stored: CostTable | None) -> LiveCosts:
        """Named by machine and role: what is measured here is true of here."""
        return LiveCosts(self.costs, f"{os.uname().nodename}/{role}", stored or CostTable(), MEASURES[role])
