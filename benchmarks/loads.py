"""Open-loop loads: requests that come when they come, whether or not the last one is done."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from core.cost import CostTable

STEPS = (10, 20, 25, 30, 50)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. Units: at_s since the load began; limit_s from then until it must be done, infinite without one."""

    number: int
    at_s: float
    owner: str
    bucket: str
    steps: int
    rows: int
    style: str | None
    limit_s: float


def poisson(
    *,
    seed: int,
    count: int,
    rate: float,
    buckets: Sequence[str],
    table: CostTable,
    slack: tuple[float, float] | None,
    styles: Sequence[str | None] = (None,),
    owners: int = 20,
) -> Iterator[Arrival]:
    """count requests at rate a second on average, guided, with mixed steps, sizes and styles.

    slack: a request's deadline is its time alone multiplied by a number between these; None for no deadlines.
    """
    chance = random.Random(seed)
    at_s = 0.0
    for number in range(count):
        at_s += chance.expovariate(rate)
        bucket, steps = chance.choice(buckets), chance.choice(STEPS)
        limit_s = math.inf if slack is None else table.request_s(bucket, steps, 2) * chance.uniform(*slack)
        style = chance.choice(styles)
        yield Arrival(number, at_s, f"owner{chance.randrange(owners)}", bucket, steps, 2, style, limit_s)


def capacity(table: CostTable, buckets: Sequence[str]) -> float:
    """Requests a second that one device renders one after the other, without a pause."""
    times = [steps * table.step_s(bucket, 2) for bucket in buckets for steps in STEPS]
    return len(times) / sum(times)
