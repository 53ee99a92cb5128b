"""The whole final path on the bundled model and a real server; a test turns the ticks itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from benchmarks.bundle import Parts
from core.clock import SteadyClock
from core.cost import CostTable, Part
from core.metrics import Metrics
from core.recipe import Handoff
from core.render import TERMINAL, State
from core.scheduler import BatchingMode
from final_engine.admission import Admission
from final_engine.decode_stage import DecodeWork
from final_engine.door import RenderWish
from final_engine.engine import FinalEngine
from final_engine.finish_stage import FinishWork
from final_engine.glimpse import Glimpses
from final_engine.routes import Routes
from final_engine.stage import Stage
from sampling.encode_stage import EncodeStage
from sampling.picture import to_jpeg
from sampling.safety import ImageClassifier
from shared_cache.costs import Costs, LiveCosts
from shared_cache.events import Events
from shared_cache.lanes import Signal, Stream, decode_stage
from shared_cache.latents import Latents, pack
from shared_cache.objects import DiskObjects, Objects
from shared_cache.previews import Previews, StoredPreview, kept_previews
from shared_cache.queue import Backlog, Lanes, Room
from shared_cache.registry import ReadyWorkers, Registry
from shared_cache.renders import Record, Renders
from tests.makers import a_final_recipe, a_preview_recipe

LEASE_S, PATIENCE_S = 0.4, 30.0
FAST = CostTable({Part.STEP: {"128x128": {1: 0.030, 2: 0.032, 8: 0.044}}})  # rows that cost little more: batches form


class FinalPath:
    def __init__(
        self,
        client: redis.Redis,
        parts: Parts,
        classifier: ImageClassifier,
        folder: Path,
        consumer: str = "w1",
        objects: Objects | None = None,
    ) -> None:
        self.client, self.parts, self.profile = client, parts, parts.model.profile
        self.renders, self.previews, self.events = Renders(client), Previews(client), Events(client)
        self.objects = objects or DiskObjects(folder, b"secret" * 8, None)
        self.latents = Latents(client)
        self.costs, self.clock = Costs(client, "0"), SteadyClock()
        self.loop, self.metrics = parts.final, Metrics()
        self.glimpses = Glimpses(decoder=parts.decoder, classifier=classifier, events=self.events)
        self.encode = EncodeStage(parts.encoder, Signal(client, "final").notify)
        self.admission = self.admit_with()
        self.engine = FinalEngine(
            loop=self.loop,
            encode=self.encode,
            lanes=self.lanes_of(consumer),
            renders=self.renders,
            kept=kept_previews(client),
            costs=LiveCosts(self.costs, "test/final", FAST),
            batching=BatchingMode.STEP,
            routes=Routes(None, ReadyWorkers(Registry(client), "final", self.profile.model), ("ink", "noto")),
            glimpses=self.glimpses,
            metrics=self.metrics,
            latent_scale=parts.model.vae_scale,
            max_rows=8,
            lease_s=LEASE_S,
            max_attempts=3,
            clock=self.clock,
        )
        self.stages = self._stages(classifier, consumer)
        self._started: list[Any] = []

    def _stages(self, classifier: ImageClassifier, consumer: str) -> list[Stage]:
        decode = DecodeWork(
            decoder=self.parts.decoder, renders=self.renders, latents=self.latents, costs=self._live_costs("decode")
        )
        finish = FinishWork(
            classifier=classifier,
            renders=self.renders,
            latents=self.latents,
            kept=kept_previews(self.client),
            objects=self.objects,
            costs=self._live_costs("finish"),
            metrics=self.metrics,
            clock=self.clock,
        )
        return [
            Stage(
                name=name,
                stream=Stream(self.client, queue, queue, consumer),
                renders=self.renders,
                expects=expects,
                work=work,
                lease_s=LEASE_S,
                max_attempts=3,
                metrics=self.metrics,
                patience_s=PATIENCE_S,
            )
            for name, queue, expects, work in (
                ("decode", decode_stage(self.profile.model), State.DECODING, decode),
                ("finish", "finish", State.CHECKING, finish),
            )
        ]

    def admit_with(self, **changes: Any) -> Admission:
        fields: dict[str, Any] = {
            "renders": self.renders,
            "previews": self.previews,
            "kept": kept_previews(self.client),
            "costs": self.costs,
            "backlog": Backlog(self.client),
            "workers": lambda: 1,
            "clock": self.clock,
            "profile": self.profile,
            "style_ids": {"ink", "noto"},
            "room": Room(64, 64),
            "max_rows": 8,
        }
        return Admission(**{**fields, **changes})

    def lanes_of(self, consumer: str) -> Lanes:
        return Lanes(self.client, [str(bucket) for bucket in self.profile.final.buckets], consumer)

    def _live_costs(self, role: str) -> LiveCosts:
        return LiveCosts(self.costs, f"test/{role}", CostTable())

    def start(self) -> FinalPath:
        for part in (self.glimpses, *self.stages):
            part.start()
            self._started.append(part)
        return self

    def submit(self, owner: str = "ann", n: int = 1, preview_id: str | None = None, **recipe: Any) -> Record:
        return self.admission.submit(owner, RenderWish(a_final_recipe(**recipe), n, preview_id))

    def a_preview(self, owner: str = "ann", **recipe: Any) -> StoredPreview:
        """A preview that was really painted, stored as p1."""
        from benchmarks.bundle import run

        made = a_preview_recipe(**recipe)
        row = self.parts.row("preview", "p", made.prompt, made.seed)
        run(self.parts.preview, [row])
        jpeg = to_jpeg(self.parts.decoder.decode(row.latents[None])[0])
        stored = StoredPreview(owner, made, pack({"latents": row.latents.numpy()}), jpeg)
        self.previews.put("p1", stored)
        return stored

    def tick_until(self, condition: Callable[[], bool], timeout_s: float = 90.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline_s, "the condition did not come true"
            if not self.engine.tick():
                time.sleep(0.002)

    def ended(self, *records: Record) -> list[Record]:
        """Ticks until all have ended; their records."""
        self.tick_until(lambda: all(self.look(record).state in TERMINAL for record in records))
        return [self.look(record) for record in records]

    def look(self, record: Record) -> Record:
        found = self.renders.get(record.id)
        assert found is not None
        return found

    def measured(self, name: str, **labels: str) -> float | None:
        return self.metrics.registry.get_sample_value(f"firstlight_{name}", labels)

    def close(self) -> None:
        for row in self.loop.rows:
            self.loop.leave(row.id)
        self.encode.close()
        for part in self._started:
            part.close()


def following(handoff: Handoff) -> dict[str, Any]:
    return {"handoff": handoff, "preview_id": "p1"}


@pytest.fixture
def path(client: redis.Redis, parts: Parts, classifier: ImageClassifier, tmp_path: Path) -> Iterator[FinalPath]:
    path = FinalPath(client, parts, classifier, tmp_path).start()
    yield path
    path.close()
