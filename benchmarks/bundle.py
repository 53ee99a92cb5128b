"""The bundled model's parts in one process, as the engines hold them, and the prompts that benchmarks use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any

from core.profile import Bucket, Pool
from core.settings import BUNDLED_MODEL
from sampling.bank import Bank
from sampling.decode import Decoder
from sampling.denoiser import Denoiser
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import Model, PoolName, load_model
from sampling.rows import Row
from sampling.threads import use_threads
from shared_cache.embeddings import ByteLRU
from styles.catalogue import load_catalogue

SQUARE = Bucket(128, 128)


@dataclass(frozen=True, slots=True)
class Parts:
    model: Model
    encoder: Encoder
    decoder: Decoder
    preview: StepLoop
    final: StepLoop

    def pool(self, name: PoolName) -> Pool:
        return self.model.profile.preview if name == "preview" else self.model.profile.final

    def row(self, pool: PoolName, name: str, prompt: str, seed: int, **fields: Any) -> Row:
        chosen = self.pool(pool)
        negative = self.encoder.encode("") if chosen.guidance_scale > 1 else None
        return Row(
            id=name,
            bucket=SQUARE,
            steps=chosen.steps,
            guidance_scale=chosen.guidance_scale,
            sampler=chosen.sampler,
            seed=seed,
            styles=(),
            embedding=self.encoder.encode(prompt),
            negative=negative,
            **fields,
        )


def load_parts(max_rows: int = 8, style_slots: int = 8) -> Parts:
    use_threads(None)  # as a worker does
    model = load_model(BUNDLED_MODEL)
    paths = load_catalogue(BUNDLED_MODEL / "styles").paths()

    def loop(pool: PoolName) -> StepLoop:
        bank = Bank(model, paths, style_slots, lambda: None)
        return StepLoop(Denoiser(model, pool), bank, max_rows, perf_counter)

    encoder = Encoder(model, ByteLRU(2**26), paths)
    return Parts(model, encoder, Decoder(model, "preview"), loop("preview"), loop("final"))


def run(loop: StepLoop, rows: Sequence[Row]) -> list[float]:
    """Steps until every row has finished; the seconds of each."""
    for row in rows:
        loop.join(row)
    seconds = []
    while loop.rows:
        report = loop.step()
        for _, error in report.failed:
            raise error
        if report.batch_size == 0:
            sleep(0.001)  # a style is being read
        else:
            seconds.append(report.seconds)
    return seconds


def prompts(count: int) -> list[str]:
    """Things in places and on colours, as the bundle was taught to paint them, always the same ones."""
    known = json.loads((BUNDLED_MODEL / "storybook.json").read_text())
    objects, places, colours = known["objects"], known["places"], known["colours"]
    grounds = [*places, *(f"on a {colour} background" for colour in colours)]
    return [f"a {objects[(7 * i) % len(objects)]} {_ground(grounds[i % len(grounds)])}" for i in range(count)]


def _ground(place: str) -> str:
    return place if place.startswith(("on ", "in ", "at ", "under ")) else f"in the {place}"
