"""Cost arithmetic: what a request costs, from measured parts.

gpu_time = encode + steps x step(bucket, network rows) + decode(bucket, images) + images x (safety + publish).
Source: the additive model by which serving systems for diffusion predict a request, as a step's time depends on its
shape alone; every part is measured on the device that it speaks of, none is derived.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

ANY = "any"  # stands for the bucket where a part does not depend on it
WINDOW = 15  # newest measurements of one shape; their median stands, so that an outlier counts for nothing
TRUSTED = 3  # measurements that outweigh what was stored


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
    """

    seconds: Seconds = field(default_factory=dict)
    stretch: float = 1.0

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

    def to_dict(self) -> dict[str, object]:
        seconds = {
            part.value: {b: dict(counts) for b, counts in shapes.items()} for part, shapes in self.seconds.items()
        }
        return {"seconds": seconds, "stretch": self.stretch}

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str | bytes) -> CostTable:
        """Raises: ValueError, KeyError or TypeError when the text is no table."""
        fields = json.loads(text)
        seconds = {
            Part(part): {str(b): {int(n): float(s) for n, s in counts.items()} for b, counts in shapes.items()}
            for part, shapes in fields["seconds"].items()
        }
        return cls(seconds, float(fields["stretch"]))


class CostMeter:
    """Refreshes a table from live measurements. Owned by one thread."""

    def __init__(self, stored: CostTable) -> None:
        self._stored = stored
        self._recent: defaultdict[tuple[Part, str, int], deque[float]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._stretches: deque[float] = deque(maxlen=WINDOW)

    def observe(self, part: Part, seconds: float, count: int = 1, bucket: str = ANY) -> None:
        self._recent[part, bucket, count].append(seconds)

    def observe_stretch(self, ratio: float) -> None:
        """Wall time from one step's end to the next one's, over that step's own time."""
        self._stretches.append(max(1.0, ratio))

    def table(self) -> CostTable:
        """What was stored, and in its place the median of what was seen of a shape at least TRUSTED times.

        A shape of which nothing is stored takes its first measurement at once.
        """
        seconds = {
            part: {b: dict(counts) for b, counts in shapes.items()} for part, shapes in self._stored.seconds.items()
        }
        for (part, bucket, count), seen in self._recent.items():
            counts = seconds.setdefault(part, {}).setdefault(bucket, {})
            if len(seen) >= TRUSTED or count not in counts:
                counts[count] = statistics.median(seen)
        return CostTable(seconds, statistics.median(self._stretches) if self._stretches else self._stored.stretch)

    def drift(self, part: Part, count: int = 1, bucket: str = ANY) -> float | None:
        """Live median over the stored figure, 1 where they agree; None where either is missing."""
        stored_s = self._stored.seconds.get(part, {}).get(bucket, {}).get(count)
        seen = self._recent[part, bucket, count]
        return None if stored_s is None or len(seen) < TRUSTED else statistics.median(seen) / stored_s
