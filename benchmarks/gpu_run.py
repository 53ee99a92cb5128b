"""Sections of one run on a GPU: each within a time of its own, and what it told is kept where it fails."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import torch

from benchmarks.gpu_model import Scale
from sampling.model import Model

Figures: TypeAlias = Iterator[tuple[str, float, str]]  # what, how much, of which unit
Section: TypeAlias = "Callable[[Check], Figures]"


class OutOfTime(BaseException):
    """A section's time is over; no part of what it runs takes it for an error of its own."""


@dataclass(slots=True)
class Check:
    """The model that all sections share, and what they found. folder: for files of styles."""

    model: Model
    scale: Scale
    backend: str
    folder: Path
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    rows: list[tuple[str, str, float | str, str]] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)

    @property
    def sides(self) -> tuple[int, int]:
        return self.scale.small_side, self.scale.large_side

    def run(self, name: str, section: Section, limit_s: float) -> None:
        """Keeps what a section told until it failed, if it did."""
        found = self.figures[name] = {}
        started_s = time.perf_counter()
        try:
            with at_most(limit_s):
                for what, figure, unit in section(self):
                    found[what] = float(f"{figure:.4g}")
                    self.rows.append((name, what, found[what], unit))
        except (Exception, OutOfTime) as error:  # the sections after it are worth as much
            self.errors[name] = f"{type(error).__name__}: {error}".splitlines()[0][:300]
            self.rows.append((name, "failed", self.errors[name], ""))
        if self.model.device.type == "cuda":
            found["peak GiB"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
            torch.cuda.reset_peak_memory_stats()
        self.rows.append((name, "section", round(time.perf_counter() - started_s, 1), "s"))


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raises: OutOfTime inside it once the time is over."""

    def over(*_: object) -> None:
        raise OutOfTime(f"{seconds:.0f} s are over")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def seconds_of(check: Check, work: Callable[[], object], warm: int = 2) -> float:
    """The median of some rounds, the device waited for; the first ones set it up."""
    times = []
    for _ in range(warm + check.scale.rounds):
        settle(check.model)
        started_s = time.perf_counter()
        work()
        settle(check.model)
        times.append(time.perf_counter() - started_s)
    return statistics.median(times[warm:])


def settle(model: Model) -> None:
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)
