"""Cost arithmetic: what a request costs, from measured parts.

gpu_time = encode + steps x step(bucket, network rows) + decode(bucket, images) + images x (safety + publish).
Source: the additive model by which serving systems for diffusion predict a request, as a step's time depends on its
shape alone; every part is measured on the device that it speaks of, none is derived.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from typing import Any

ANY = "any"  # stands for the bucket where a part does not depend on it
WINDOW = 60  # newest measurements of one shape; their median stands, so that an outlier counts for nothing
PACE_WINDOW = 100  # newest steps of any shape whose median says how fast the device runs now
TRUSTED = 3  # measurements that outweigh what was stored
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
    """Refreshes a table from live measurements. Owned by one thread.

    A device is not always as fast, with heat and neighbours. What the newest steps show of that, of whatever shape, is
    true of the shapes too that were not seen since.
    """

    def __init__(self, stored: CostTable) -> None:
        self._stored = stored
        self._recent: defaultdict[tuple[Part, str, int], deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._paces: deque[float] = deque(maxlen=PACE_WINDOW)
        self._pace = 1.0  # how much longer than stored the newest steps took
        self._pace_then: dict[tuple[str, int], float] = {}  # by shape of a step, when it was seen last
        self._stretches: deque[float] = deque(maxlen=WINDOW)
        self._caution = stored.caution

    def observe(self, part: Part, seconds: float, count: int = 1, bucket: str = ANY) -> None:
        self._recent[part, bucket, count].append(seconds)
        if part is Part.STEP:
            stored_s = self._stored_s(part, bucket, count)
            if stored_s is not None:
                self._paces.append(seconds / stored_s)
                self._pace = statistics.median(self._paces) if len(self._paces) >= TRUSTED else 1.0
            self._pace_then[bucket, count] = self._pace

    def observe_stretch(self, ratio: float) -> None:
        """Wall time from one step's end to the next one's, over that step's own time."""
        self._stretches.append(max(1.0, ratio))

    def observe_promise(self, kept: bool) -> None:
        """A render with a deadline came to its end, in time or not.

        Source: multiplicative increase and decrease, as in congestion control: no model of the queue has to be right.
        """
        factor = AFTER_KEPT if kept else AFTER_BROKEN
        self._caution = min(MOST_CAUTION, max(1.0, self._caution * factor))

    def table(self) -> CostTable:
        """What was stored, and in its place the median of what was seen of a shape at least TRUSTED times.

        A shape of which nothing is stored takes its first measurement at once. Steps are as the device runs now.
        """
        stored = self._stored.seconds.items()
        shapes = {(part, b, count) for part, by_bucket in stored for b, counts in by_bucket.items() for count in counts}
        seconds: dict[Part, dict[str, dict[int, float]]] = {}
        for part, bucket, count in sorted(shapes | set(self._recent)):
            live_s = self._live_s(part, bucket, count)
            if live_s is not None:
                seconds.setdefault(part, {}).setdefault(bucket, {})[count] = live_s
        stretch = statistics.median(self._stretches) if self._stretches else self._stored.stretch
        return CostTable(seconds, stretch, self._caution)

    def drift(self, part: Part, count: int = 1, bucket: str = ANY) -> float | None:
        """Live over the stored figure, 1 where they agree; None where either is missing."""
        stored_s, live_s = self._stored_s(part, bucket, count), self._live_s(part, bucket, count)
        trusted = len(self._recent.get((part, bucket, count), ())) >= TRUSTED
        return live_s / stored_s if trusted and stored_s is not None and live_s is not None else None

    def _live_s(self, part: Part, bucket: str, count: int) -> float | None:
        """A shape's figure, a step's at the pace of now."""
        seen, stored_s = self._recent.get((part, bucket, count), ()), self._stored_s(part, bucket, count)
        own = len(seen) >= TRUSTED or (seen and stored_s is None)
        known_s = statistics.median(seen) if own else stored_s
        if known_s is None or part is not Part.STEP:
            return known_s
        return known_s * self._pace / (self._pace_then[bucket, count] if own else 1.0)

    def _stored_s(self, part: Part, bucket: str, count: int) -> float | None:
        return self._stored.seconds.get(part, {}).get(bucket, {}).get(count)
