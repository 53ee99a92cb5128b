"""What a process counts and measures, in the product's words; docs/metrics.md says what each name means.

Labels come from small closed sets: no owner, no prompt and nothing else that a user types is one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from core.render import TERMINAL, State

Predicted = Literal["gpu", "total"]
Preview = Literal["shown", "withheld", "failed"]

POOLS = ("preview", "final")
PREVIEWS: tuple[Preview, ...] = ("shown", "withheld", "failed")
TIERS = ("process", "shared")
REASONS = ("invalid", "blocked", "conflict", "overloaded", "deadline", "doomed")

STEP_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
STAGE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
REQUEST_S = (0.1, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 900.0)
ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
RATIO = (0.25, 0.5, 0.67, 0.75, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
HEAD = "# HELP "
BLOCKS = re.compile("^" + HEAD, re.MULTILINE)


class Metrics:
    """One for each process, with a registry of its own; safe for threads."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._define_pools()
        self._define_previews()
        self._define_renders()
        self._cache_counts: dict[str, int] = {}
        self._compile_counts: dict[str, int] = {}

    def _define_pools(self) -> None:
        to = self.registry
        of_step = ("pool", "bucket", "rows")
        self._step = Histogram(
            "firstlight_step_seconds", "Time of one denoising step.", of_step, buckets=STEP_S, registry=to
        )
        self._batch = Histogram(
            "firstlight_batch_rows", "Requests in one denoising step.", ("pool",), buckets=ROWS, registry=to
        )
        self._busy = Counter("firstlight_pool_busy_seconds", "Time at work, waits left out.", ("pool",), registry=to)
        self._wasted = Counter("firstlight_wasted_steps", "Steps whose picture nobody sees.", ("pool",), registry=to)
        self._stage = Histogram(
            "firstlight_stage_seconds", "Time of one stage.", ("pool", "stage"), buckets=STAGE_S, registry=to
        )
        self._request = Histogram(
            "firstlight_request_seconds", "From asked to answered.", ("pool",), buckets=REQUEST_S, registry=to
        )
        self._recompiles = Counter(
            "firstlight_recompiles", "Times that a network was compiled after the worker was ready.", registry=to
        )
        self._uncompiled = Counter(
            "firstlight_uncompiled_steps", "Steps of a compiled network that ran as it is.", ("pool",), registry=to
        )
        for pool in POOLS:
            self._wasted.labels(pool)
            self._uncompiled.labels(pool)

    def _define_previews(self) -> None:
        to = self.registry
        self._previews = Counter("firstlight_previews", "Previews that were answered.", ("outcome",), registry=to)
        self._superseded = Counter(
            "firstlight_previews_superseded", "Previews given up because their session typed on.", registry=to
        )
        self._hits = Counter(
            "firstlight_embedding_cache_hits", "Prompts whose embedding was there.", ("tier",), registry=to
        )
        self._misses = Counter("firstlight_embedding_cache_misses", "Prompts that were encoded.", registry=to)
        self._cached = Gauge("firstlight_embedding_cache_bytes", "Size of the kept embeddings.", registry=to)
        for tier in TIERS:
            self._hits.labels(tier)
        for outcome in PREVIEWS:
            self._previews.labels(outcome)

    def _define_renders(self) -> None:
        to = self.registry
        self._renders = Counter("firstlight_renders", "Renders that ended.", ("state",), registry=to)
        self._rejected = Counter("firstlight_renders_rejected", "Renders refused.", ("reason",), registry=to)
        self._doomed = Counter("firstlight_doomed_steps", "Steps spent on work that missed its deadline.", registry=to)
        self._ratio = Histogram(
            "firstlight_prediction_ratio", "Actual over predicted time.", ("kind",), buckets=RATIO, registry=to
        )
        of_cost = ("bucket", "rows")
        self._drift = Gauge("firstlight_cost_drift_ratio", "Step time over the calibrated one.", of_cost, registry=to)
        self._calibrated = Gauge("firstlight_calibrated_step_seconds", "Step time as calibrated.", of_cost, registry=to)
        for state in TERMINAL:
            self._renders.labels(state.value)
        for reason in REASONS:
            self._rejected.labels(reason)

    def stepped(self, pool: str, bucket: str, network_rows: int, rows: int, seconds: float) -> None:
        """One denoising step of rows requests, which took network_rows rows of the network."""
        self._step.labels(pool, bucket, str(network_rows)).observe(seconds)
        self._batch.labels(pool).observe(rows)

    def busy(self, pool: str, seconds: float) -> None:
        """Time that a pool or a stage behind it was at work."""
        self._busy.labels(pool).inc(seconds)

    def wasted(self, pool: str, steps: int) -> None:
        """Steps of rows whose picture nobody will see: left, cancelled, given up. superseded() counts its own."""
        self._wasted.labels(pool).inc(steps)

    def stage(self, pool: str, stage: str, seconds: float) -> None:
        """Time of one stage of one request: queue, encode, denoise, decode, safety, publish."""
        self._stage.labels(pool, stage).observe(seconds)

    def answered(self, pool: str, seconds: float) -> None:
        """Time from asked to answered: a preview's from its key, a render's from its acceptance."""
        self._request.labels(pool).observe(seconds)

    def previewed(self, outcome: Preview) -> None:
        """A preview was answered."""
        self._previews.labels(outcome).inc()

    def superseded(self, steps: int) -> None:
        """A preview was given up for a newer one of its session, steps steps into it; these are wasted."""
        self._superseded.inc()
        self.wasted("preview", steps)

    def cache(self, hits: int, misses: int, size_bytes: int, shared: int = 0) -> None:
        """Hits and misses of the process's cache since it was made, and its size now; shared: misses that others had.

        For one thread alone.
        """
        now = {"process": hits, "shared": shared, "encoded": misses - shared}
        grown = _grown(self._cache_counts, now)
        for tier in TIERS:
            self._hits.labels(tier).inc(grown[tier])
        self._misses.inc(grown["encoded"])
        self._cached.set(size_bytes)

    def compiled(self, recompiles: int, uncompiled: Mapping[str, int]) -> None:
        """Since the worker was ready: compilations, and by pool the steps that no compiled shape fitted.

        For one thread alone.
        """
        now = {"": recompiles, **uncompiled}
        grown = _grown(self._compile_counts, now)
        self._recompiles.inc(grown[""])
        for pool in uncompiled:
            self._uncompiled.labels(pool).inc(grown[pool])

    def ended(self, state: State) -> None:
        """A render ended, once. Call it where Renders.finish said True, or it is counted twice.

        Raises: ValueError when the state is not terminal.
        """
        if state not in TERMINAL:
            raise ValueError(f"{state} is not terminal")
        self._renders.labels(state.value).inc()

    def rejected(self, reason: str) -> None:
        """A render was refused: at the door by the code of its error, or for its "deadline"; later as "doomed"."""
        self._rejected.labels(reason).inc()

    def missed_deadline(self, steps: int) -> None:
        """A render was done after its deadline, or was given up because it would be; steps of all its rows."""
        self._doomed.inc(steps)

    def predicted(self, kind: Predicted, predicted_s: float, actual_s: float) -> None:
        """How true a prediction came: of the time on the device ("gpu"), or from acceptance to the end ("total")."""
        if predicted_s > 0:
            self._ratio.labels(kind).observe(actual_s / predicted_s)

    def calibrated(self, bucket: str, network_rows: int, seconds: float) -> None:
        """What a step costs according to the table that predictions are made from."""
        self._calibrated.labels(bucket, str(network_rows)).set(seconds)

    def drift(self, bucket: str, network_rows: int, ratio: float) -> None:
        """What a step costs now over what it was calibrated to cost; 1 is true to the table."""
        self._drift.labels(bucket, str(network_rows)).set(ratio)

    def text(self) -> str:
        """All of it in Prometheus' text format."""
        return text_of(self.registry)


def _grown(known: dict[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """What counts that only grow have grown by since they were known, which they are from here on."""
    grown = {name: max(0, count - known.get(name, 0)) for name, count in now.items()}
    known |= {name: known.get(name, 0) + more for name, more in grown.items()}
    return grown


def text_of(registry: CollectorRegistry) -> str:
    """The text format without the library's times of creation, which would double the series."""
    blocks = BLOCKS.split(generate_latest(registry).decode())[1:]
    return "".join(HEAD + block for block in blocks if not _name(block).endswith("_created"))


def merged(texts: Mapping[str, str]) -> str:
    """One text of several processes, each family once; every sample gets its process as the label `worker`.

    Texts are taken apart by lines, not parsed: a page of many workers costs milliseconds that way.
    """
    families: dict[str, list[str]] = {}
    for worker, text in texts.items():
        for block in BLOCKS.split(text)[1:]:
            about, kind, *samples = block.rstrip("\n").split("\n")
            lines = families.setdefault(_name(block), [HEAD + about, kind])
            lines += [_labelled(sample, worker) for sample in samples]
    return "".join(line + "\n" for lines in families.values() for line in lines)


def _name(block: str) -> str:
    return block.partition(" ")[0]


def _labelled(sample: str, worker: str) -> str:
    name, brace, labels = sample.partition("{")
    if brace:
        return f'{name}{{worker="{worker}",{labels}'
    name, _, value = sample.partition(" ")
    return f'{name}{{worker="{worker}"}} {value}'
