"""What the pictures of a set amount to, and what of it is worse than it was."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType

Figures = Mapping[str, float]

# How much lower a figure may be than the reference's; see docs/gate.md for what they were chosen by.
TOLERANCES: Mapping[str, float] = MappingProxyType(
    {
        "finite": 0.0,
        "allowed": 0.0,
        "object": 0.02,
        "background": 0.02,
        "style": 0.02,
        "follows": 0.02,
        "ssim": 0.01,
        "ssim_worst": 0.05,
        "psnr": 1.0,
    }
)


@dataclass(frozen=True, slots=True)
class Scores:
    """One picture's. None where there is nobody to judge, nothing asked for, or nothing to compare with.

    finite: it could be painted at all; allowed: the image classifier lets it out. object, background, style: how likely
    the judge finds what was asked for, 0…1; right: 1 where the object is its first guess, else 0. follows: similarity
    of a render to the preview it follows. ssim, psnr: to the reference. Units: psnr in decibels.
    """

    finite: bool
    allowed: bool
    object: float | None = None
    right: float | None = None
    background: float | None = None
    style: float | None = None
    follows: float | None = None
    ssim: float | None = None
    psnr: float | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """How long pictures of one pool take. Units: seconds; None where too few were painted.

    p50_s, p95_s: from the wish to the checked picture, one at a time. pictures_per_s and device_s are of full batches,
    the latter what the device was busy for each picture with encoder, network and decoder.
    """

    p50_s: float | None
    p95_s: float | None
    pictures_per_s: float | None
    device_s: float | None


@dataclass(frozen=True, slots=True)
class Regression:
    """A figure that is worse than the reference's by more than is allowed."""

    pool: str
    figure: str
    before: float
    now: float
    allowed: str

    def __str__(self) -> str:
        moved = f"{self.before:.4g} is {self.now:.4g} now, {abs(self.now - self.before):.3g} worse"
        return f"{self.pool} {self.figure}: {moved}; {self.allowed} is allowed"


def figures_of(scores: Sequence[Scores]) -> dict[str, float]:
    """Means over the pictures that have such a score, and the worst SSIM; what no picture has is left out."""
    found: dict[str, float] = {}
    columns = [asdict(one) for one in scores]
    for name in Scores.__dataclass_fields__:
        values = [float(column[name]) for column in columns if column[name] is not None]
        if values:
            found[name] = statistics.fmean(values)
            if name == "ssim":
                found["ssim_worst"] = min(values)
    return found


def regressions(pool: str, now: Figures, before: Figures) -> list[Regression]:
    """Of figures of the same pictures; what one side does not have is not compared."""
    return [
        Regression(pool, name, before[name], now[name], f"{allowed:g}")
        for name, allowed in TOLERANCES.items()
        if name in now and name in before and now[name] < before[name] - allowed - 1e-9
    ]


def slowdowns(pool: str, now: Pace, before: Pace, share: float) -> list[Regression]:
    """Where one picture, or a batch's picture, takes longer by more than a share (0.2: a fifth) of what it took."""
    found = []
    for name in ("p50_s", "device_s"):
        took, takes = _seconds(before, name), _seconds(now, name)
        if took is not None and takes is not None and takes > took * (1 + share):
            found.append(Regression(pool, name, took, takes, f"{share:.0%}"))
    return found


def _seconds(pace: Pace, name: str) -> float | None:
    value: float | None = asdict(pace)[name]
    return value
