"""Cost arithmetic: what a request costs, from measured parts.

gpu_time = encode + steps x step(bucket, network rows) + decode(bucket, images) + images x (safety + publish).
Source: the additive model by which serving systems for diffusion predict a request, as a step's time depends on its
shape alone; every part is measured on the device that it speaks of, none is derived.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

from core.pace import Pace, Shape

ANY = "any"  # stands for the bucket where a part does not depend on it
WINDOW = 60  # newest measurements of one shape; their median stands, so that an outlier counts for nothing
TRUSTED = 3  # measurements that outweigh what was stored
MOST_STRETCH = 4.0  # that one step counts for in the mean
AFTER_BROKEN, AFTER_KEPT = 1.3, 0.99  # caution settles where some 4 of 100 promises are broken
MOST_CAUTION = 6.0


class Part(StrEnum):
    """Stages of a request that take time on their own."""

    ENCODE = "encode"
    STEP = "step"
    DECODE = "decode"
    SAFETY = "safety"
    PUBLISH = "publish"


Seconds = Mapping[Part, Mapping[str, Mapping[int, float]]]
GUESS: Seconds = {
    Part.ENCODE: {ANY: {1: 0.02}},
    Part.STEP: {ANY: {1: 0.06}},
    Part.DECODE: {ANY: {1: 0.05}},
    Part.SAFETY: {ANY: {1: 0.08}},
    Part.PUBLISH: {ANY: {1: 0.05}},
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What a table's figures are true of."""

    model: str
    version: str
    device: str
    dtype: str
    threads: int

    def __str__(self) -> str:
        return f"{self.model} {self.version}, {self.dtype} on {self.device}, {self.threads} threads"


@dataclass(frozen=True, slots=True)
class CostTable:
    """Units: seconds, by part, bucket and count (a step's network rows, a decode's images); what is missing is guessed.

    stretch: wall time over the device's own time, above 1 where previews share the device.
    caution: how much more than it measures the work before a deadline is taken for, learned from promises broken.
    """

    seconds: Seconds = field(default_factory=dict)
    stretch: float = 1.0
    caution: float = 1.0

    def of(self, part: Part, count: int = 1, bucket: str = ANY) -> float:
        """Seconds of one part. Between measured counts on a line; beyond them in proportion to the nearest."""
        by_bucket = self.seconds.get(part) or GUESS[part]
        known = by_bucket.get(bucket) or by_bucket.get(ANY) or next(iter(by_bucket.values()))
        if count in known:
            return known[count]
        counts = sorted(known)
        for low, high in pairwise(counts):
            if low < count < high:
                share = (count - low) / (high - low)
                return known[low] + share * (known[high] - known[low])
        nearest = counts[0] if count < counts[0] else counts[-1]
        return known[nearest] * count / nearest

    def step_s(self, bucket: str, rows: int) -> float:
        return self.of(Part.STEP, rows, bucket)

    def after_s(self, bucket: str, images: int) -> float:
        """What follows denoising: decode, safety and publish."""
        decode_s = self.of(Part.DECODE, images, bucket)
        return decode_s + images * (self.of(Part.SAFETY) + self.of(Part.PUBLISH))

    def request_s(self, bucket: str, steps: int, rows: int, images: int = 1) -> float:
        """gpu_time of one request that runs alone, rows network rows in each step."""
        return self.of(Part.ENCODE) + steps * self.step_s(bucket, rows) + self.after_s(bucket, images)

    def work_s(self, bucket: str, steps: int, rows: int, max_rows: int) -> float:
        """Seconds of the device that rows of a full batch of max_rows take for so many steps."""
        full = max(rows, max_rows)
        return steps * self.step_s(bucket, full) * rows / full

    def only(self, parts: Collection[Part]) -> CostTable:
        return replace(self, seconds={part: shapes for part, shapes in self.seconds.items() if part in parts})

    def to_dict(self) -> dict[str, object]:
        seconds = {
            part.value: {b: dict(counts) for b, counts in shapes.items()} for part, shapes in self.seconds.items()
        }
        return {"seconds": seconds, "stretch": self.stretch, "caution": self.caution}

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> CostTable:
        """Raises: ValueError, KeyError or TypeError when the text is no table."""
        return cls.from_dict(json.loads(text))

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> CostTable:
        """Raises: ValueError, KeyError or TypeError when the fields are no table."""
        seconds = {
            Part(part): {str(b): {int(n): float(s) for n, s in counts.items()} for b, counts in shapes.items()}
            for part, shapes in fields["seconds"].items()
        }
        return cls(seconds, float(fields["stretch"]), float(fields.get("caution", 1.0)))


class CostMeter:
    """Refreshes a table from live measurements. Owned by one thread."""

    def __init__(self, stored: CostTable) -> None:
        self._stored = stored
        self._stored_steps = _shapes(stored, Part.STEP)
        self._pace = Pace(self._stored_steps)
        self._steps: Counter[Shape] = Counter()
        self._recent: defaultdict[tuple[Part, str, int], deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._stretches: deque[float] = deque(maxlen=WINDOW)
        self._caution = stored.caution

    def observe(self, part: Part, seconds: float, count: int = 1, bucket: str = ANY) -> None:
        if part is Part.STEP:
            self._pace.observe((bucket, count), seconds)
            self._steps[bucket, count] += 1
        else:
            self._recent[part, bucket, count].append(seconds)

    def observe_stretch(self, ratio: float) -> None:
        """Wall time from one step's end to the next one's, over that step's own time."""
        self._stretches.append(min(MOST_STRETCH, max(1.0, ratio)))

    def observe_promise(self, kept: bool) -> None:
        """A render with a deadline came to its end, in time or not.

        Source: multiplicative increase and decrease, as in congestion control: no model of the queue has to be right.
        """
        factor = AFTER_KEPT if kept else AFTER_BROKEN
        self._caution = min(MOST_CAUTION, max(1.0, self._caution * factor))

    def table(self) -> CostTable:
        """What was stored; steps as the device runs now, of the rest the median of a shape seen TRUSTED times or more.

        A shape of which nothing is stored takes its first measurement at once.
        """
        live = {Part.STEP: self._pace.seconds()} | {part: self._medians(part) for part in Part if part is not Part.STEP}
        seconds: dict[Part, dict[str, dict[int, float]]] = {}
        for part, shapes in live.items():
            for bucket, count in sorted(shapes):
                seconds.setdefault(part, {}).setdefault(bucket, {})[count] = shapes[bucket, count]
        stretch = statistics.fmean(self._stretches) if self._stretches else self._stored.stretch
        return CostTable(seconds, stretch, self._caution)

    def step_drift(self, bucket: str, rows: int) -> float | None:
        """Live over the stored figure, 1 where they agree; None where either is missing."""
        stored_s = self._stored_steps.get((bucket, rows))
        if stored_s is None or self._steps[bucket, rows] < TRUSTED:
            return None
        return self._pace.of((bucket, rows)) / stored_s

    def _medians(self, part: Part) -> dict[Shape, float]:
        shapes = _shapes(self._stored, part)
        for (seen_part, bucket, count), seen in self._recent.items():
            if seen_part is part and (len(seen) >= TRUSTED or (bucket, count) not in shapes):
                shapes[bucket, count] = statistics.median(seen)
        return shapes


def _shapes(table: CostTable, part: Part) -> dict[Shape, float]:
    by_bucket = table.seconds.get(part, {})
    return {(bucket, count): s for bucket, counts in by_bucket.items() for count, s in counts.items()}
