"""A whole installation for as long as a benchmark takes: queue, one worker process, and the door to it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from app.context import Context, open_context
from app.embedded_queue import queue_of
from app.serve import child_environment, self_command
from app.supervise import Supervised
from benchmarks.loads import Arrival
from core.cost import CostTable
from core.errors import Overloaded
from core.profile import Bucket
from core.recipe import Recipe, StyleUse
from core.render import TERMINAL
from core.settings import BUNDLED_MODEL, Settings, load_settings
from final_engine.calibrate import calibrate, identity_of, open_bench, table_of
from final_engine.cost_file import write_costs
from final_engine.door import RenderWish
from sampling.profile import load_profile
from shared_cache.renders import Record

ROLES = "final,decode,finish"
READY_S = 120.0
END_S = 600.0


def calibrated(folder: Path, rounds: int = 9) -> CostTable:
    """Measures this machine into the folder, as `firstlight bench calibrate` does."""
    settings = load_settings(data_dir=folder)
    bench = open_bench(settings)
    table = table_of(calibrate(bench, settings.max_final_rows, rounds))
    write_costs(folder, identity_of(bench.model), table)
    return table


@contextmanager
def site(costs: Path | None = None, **changes: Any) -> Iterator[Context]:
    """A context whose worker is ready. costs: a folder that calibrated() wrote to."""
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder)
        if costs is not None:
            (data_dir / "costs.json").write_bytes((costs / "costs.json").read_bytes())
        settings = load_settings(data_dir=data_dir, roles=ROLES, lane_capacity=100_000)
        with queue_of(settings) as connected:
            worker = Supervised(
                "worker",
                self_command("worker", "--roles", ROLES, "--exit-with-parent"),
                _environment(connected, changes),
            )
            worker.start()
            try:
                context = open_context(connected)
                _await_ready(context)
                yield context
            finally:
                worker.stop()


def _environment(settings: Settings, changes: dict[str, Any]) -> dict[str, str]:
    chosen = {f"FIRSTLIGHT_{name.upper()}": str(value) for name, value in changes.items()}
    return {**child_environment(settings), **chosen}


def _await_ready(context: Context) -> None:
    ends_s = time.monotonic() + READY_S
    while not set(ROLES.split(",")) <= set(context.registry.ready_counts(context.profile.model)):
        if time.monotonic() > ends_s:
            raise TimeoutError("the worker was not ready in time")
        time.sleep(0.1)


def wish_of(context: Context, arrival: Arrival, prompt: str) -> RenderWish:
    """The arrival as a render, guided as the model's finals are; without a deadline where it has none."""
    profile, bucket = context.profile, Bucket.parse(arrival.bucket)
    recipe = Recipe(
        prompt=prompt,
        negative_prompt="",
        seed=arrival.number,
        width=bucket.width,
        height=bucket.height,
        steps=arrival.steps,
        guidance_scale=profile.final.guidance_scale,
        sampler=profile.final.sampler,
        styles=() if arrival.style is None else (StyleUse(arrival.style, 1.0),),
        model_id=profile.id,
        model_version=profile.version,
    )
    return RenderWish(recipe, deadline_s=None if arrival.limit_s == float("inf") else arrival.limit_s)


def submit(context: Context, arrival: Arrival, prompt: str, key: str | None = None) -> Record | None:
    """None when the door refuses it. key is one for asking again."""
    idempotency = None if key is None else (key, key)
    try:
        return context.admission.submit(arrival.owner, wish_of(context, arrival, prompt), idempotency)
    except Overloaded:
        return None


def await_ends(context: Context, ids: Sequence[str]) -> list[Record]:
    """The records once all have ended."""
    ends_s = time.monotonic() + END_S
    open_ids = list(ids)
    while open_ids:
        if time.monotonic() > ends_s:
            raise TimeoutError(f"{len(open_ids)} renders did not end")
        open_ids = [i for i in open_ids if (r := context.renders.get(i)) is not None and r.state not in TERMINAL]
        time.sleep(0.02)
    return [record for render_id in ids if (record := context.renders.get(render_id)) is not None]


class Stock:
    """diffusers' own pipeline as its guides use it: one request after the other, styles set for each."""

    def __init__(self, styles: Sequence[str] = ()) -> None:
        from diffusers import StableDiffusionXLPipeline

        torch.set_num_threads(os.cpu_count() or 1)  # its default, whatever was measured in this process before
        self._pipe = StableDiffusionXLPipeline.from_pretrained(BUNDLED_MODEL, torch_dtype=torch.float32)
        self._pipe.set_progress_bar_config(disable=True)
        for style in styles:
            self._pipe.load_lora_weights(BUNDLED_MODEL / "styles" / f"{style}.safetensors", adapter_name=style)
        self._styled = bool(styles)
        self._guidance_scale = load_profile(BUNDLED_MODEL).final.guidance_scale

    def render(self, arrival: Arrival, prompt: str) -> Any:
        bucket = Bucket.parse(arrival.bucket)
        if self._styled and arrival.style is not None:
            self._pipe.enable_lora()
            self._pipe.set_adapters([arrival.style], [1.0])
        elif self._styled:
            self._pipe.disable_lora()
        return self._pipe(
            prompt,
            num_inference_steps=arrival.steps,
            guidance_scale=self._guidance_scale,
            width=bucket.width,
            height=bucket.height,
            generator=torch.Generator().manual_seed(arrival.number),
        ).images[0]
