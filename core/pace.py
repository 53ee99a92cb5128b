"""How long a step takes, of each shape, as the device runs now.

log(seconds(shape) / known(shape)) = pace + base(shape) + noise. A device slows and recovers as a whole, with heat and
neighbours, and a step of any shape shows that of all shapes; each has its own figure beside it. Both drift.
Source: Kalman 1960, "A New Approach to Linear Filtering and Prediction Problems", equations 21 to 25, for a random walk
that is observed as a sum; what surprises too much is cut off, as Huber 1964 does for a mean.

That follows the typical step. A request waits for all of its steps, also the slow ones, so what steps take on average
is told: the typical step times the mean of measured over typical.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

import numpy as np

Shape = tuple[str, int]  # bucket and network rows
NOISE = 0.02  # variances, all of log seconds: a step's own, which the next steps share in part
PACE_WALK, BASE_WALK = 3e-5, 1e-5  # drift from a step to the next
PACE_AT_FIRST, BASE_AT_FIRST = 3e-3, 1e-3  # how far what was stored may be from now
CUT = 3.0  # standard deviations that one step may count for
SURPRISES = 3  # steps of one shape in a row, cut off on the same side, that are no accident
LEAST_S = 1e-6  # a clock may be too coarse to see a step
EXCESS_STEPS = 200  # newest ones, that the mean over the typical step is taken of
MOST_EXCESS = 3.0  # times the typical step that one step counts for
PACE_SHARE = 0.9  # of such a change: more often it is the device than the figure of a shape


class Pace:
    """Owned by one thread. Seconds of stored shapes are where it starts from."""

    def __init__(self, stored: Mapping[Shape, float]) -> None:
        self._known_s = {shape: max(LEAST_S, seconds) for shape, seconds in stored.items()}
        self._places = {shape: place for place, shape in enumerate(stored, start=1)}
        self._logs = np.zeros(1 + len(stored))  # pace, then bases
        self._covariance = np.diag([PACE_AT_FIRST, *(BASE_AT_FIRST for _ in stored)])
        self._surprises: defaultdict[Shape, int] = defaultdict(int)
        self._excess = 1.0

    def observe(self, shape: Shape, seconds: float) -> None:
        """One step. The first of a shape that was not stored stands as it is."""
        seconds = max(LEAST_S, seconds)
        if shape not in self._places:
            self._place(shape, seconds)
            return
        place = self._places[shape]
        self._covariance[0, 0] += PACE_WALK
        self._covariance[place, place] += BASE_WALK
        self._learn(shape, place, math.log(seconds / self._typical(shape)))
        over = min(MOST_EXCESS, seconds / self._typical(shape))
        self._excess += (over - self._excess) / EXCESS_STEPS

    def of(self, shape: Shape) -> float:
        """Seconds that steps of a shape known take now, on average. Raises: KeyError for one never seen nor stored."""
        return self._excess * self._typical(shape)

    def _typical(self, shape: Shape) -> float:
        return self._known_s[shape] * math.exp(self._logs[0] + self._logs[self._places[shape]])

    def seconds(self) -> dict[Shape, float]:
        return {shape: self.of(shape) for shape in self._places}

    def _learn(self, shape: Shape, place: int, error: float) -> None:
        with_step, variance = self._step(place)
        most = CUT * math.sqrt(variance)
        side = int(math.copysign(1, error)) if abs(error) > most else 0
        before = self._surprises[shape]
        self._surprises[shape] = before + side if before * side > 0 else side
        if abs(self._surprises[shape]) >= SURPRISES:
            self._surprises[shape] = 0
            self._doubt(place, error**2)
            with_step, variance = self._step(place)
            most = CUT * math.sqrt(variance)
        self._logs += with_step / variance * max(-most, min(most, error))
        self._covariance -= np.outer(with_step, with_step) / variance

    def _step(self, place: int) -> tuple[np.ndarray, float]:
        """Covariance of everything with a step of the shape at this place, and the variance of that step."""
        with_step = self._covariance[0] + self._covariance[place]
        return with_step, float(with_step[0] + with_step[place]) + NOISE

    def _doubt(self, place: int, variance: float) -> None:
        self._covariance[0, 0] += PACE_SHARE * variance
        self._covariance[place, place] += (1 - PACE_SHARE) * variance

    def _place(self, shape: Shape, seconds: float) -> None:
        """Its base is what undoes the pace, and as uncertain as that makes it."""
        self._known_s[shape] = seconds
        self._places[shape] = len(self._logs)
        self._logs = np.append(self._logs, -self._logs[0])
        with_others = -self._covariance[0]
        own = self._covariance[0, 0] + NOISE
        self._covariance = np.block([[self._covariance, with_others[:, None]], [with_others, np.array([[own]])]])
