"""Cost arithmetic: what a request costs, from measured parts.

gpu_time = encode + steps x step(bucket, network rows) + decode + safety and publish.
Source: the linear cost model that step-batched serving papers use for diffusion; parts are measured, not derived.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

SMOOTHING = 0.2


@dataclass(frozen=True, slots=True)
class CostTable:
    """Units: seconds. step_s maps bucket name to network rows to seconds of one step."""

    encode_s: float = 0.02
    decode_s: float = 0.05
    finish_s: float = 0.15
    step_s: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def one_step_s(self, bucket: str, rows: int) -> float:
        """Measured seconds of a step; between and beyond measured row counts it scales linearly from the nearest."""
        known = self.step_s.get(bucket) or next(iter(self.step_s.values()), {1: 0.06})
        nearest = min(known, key=lambda measured: abs(measured - rows))
        return known[nearest] * (rows / nearest if nearest else 1.0)

    def request_s(self, bucket: str, steps: int, rows: int, images: int = 1) -> float:
        """Seconds of one request that runs alone, rows network rows in each step."""
        return self.encode_s + steps * self.one_step_s(bucket, rows) + images * (self.decode_s + self.finish_s)

    def observed(self, bucket: str, rows: int, step_s: float) -> CostTable:
        """The table after one more step: a moving average in which an outlier counts at most double."""
        known = self.step_s.get(bucket, {})
        old = known.get(rows, step_s)
        new = old + SMOOTHING * (min(step_s, 2 * old) - old)
        steps = {**self.step_s, bucket: {**known, rows: new}}
        return CostTable(self.encode_s, self.decode_s, self.finish_s, steps)

    def to_json(self) -> str:
        parts = {"encode_s": self.encode_s, "decode_s": self.decode_s, "finish_s": self.finish_s}
        return json.dumps({**parts, "step_s": {b: dict(rows) for b, rows in self.step_s.items()}})

    @classmethod
    def from_json(cls, text: str | bytes) -> CostTable:
        parts = json.loads(text)
        steps = {b: {int(r): float(s) for r, s in rows.items()} for b, rows in parts.pop("step_s").items()}
        return cls(**parts, step_s=steps)
