from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator

import pytest

from core.pace import Pace, Shape

A, B, NEW = ("128x128", 2), ("128x128", 8), ("128x128", 3)
STORED = {A: 0.05, B: 0.11}


def steps(pace: Pace, shape: Shape, seconds: float, count: int = 1) -> None:
    for _ in range(count):
        pace.observe(shape, seconds)


def test_step_that_took_far_longer_than_others_counts_for_little() -> None:
    pace = Pace(STORED)
    steps(pace, A, 0.5)
    assert pace.of(A) == pytest.approx(0.05, rel=0.1)
    steps(pace, A, 0.05, 10)
    before = pace.of(A)
    steps(pace, A, 9.0)
    assert pace.of(A) == pytest.approx(before, rel=0.06)


def test_slow_steps_among_others_count_in_what_steps_take_on_average() -> None:
    pace = Pace(STORED)
    for _ in range(60):
        steps(pace, A, 0.05, 9)
        steps(pace, A, 0.12)
    assert pace.of(A) == pytest.approx(0.9 * 0.05 + 0.1 * 0.12, rel=0.03)
    assert pace.of(B) > 0.11


def test_slower_device_shows_in_shapes_that_were_not_seen_since() -> None:
    pace = Pace(STORED)
    steps(pace, A, 1.5 * 0.05, 60)
    assert pace.of(A) == pytest.approx(0.075, rel=0.03) and pace.of(B) == pytest.approx(0.165, rel=0.12)
    steps(pace, A, 0.05, 100)
    assert pace.of(A) == pytest.approx(0.05, rel=0.03) and pace.of(B) == pytest.approx(0.11, rel=0.08)


def test_device_that_suddenly_takes_five_times_as_long_is_believed_within_a_few_steps() -> None:
    pace = Pace(STORED)
    steps(pace, A, 0.05, 50)
    steps(pace, A, 0.25, 4)
    assert pace.of(A) == pytest.approx(0.25, rel=0.1) and pace.of(B) == pytest.approx(0.55, rel=0.25)


def test_shape_that_was_stored_wrong_is_mended_and_leaves_the_others_alone() -> None:
    pace = Pace(STORED)
    for _ in range(5):
        steps(pace, A, 0.05, 2)
        steps(pace, B, 3 * 0.11)
    assert pace.of(A) == pytest.approx(0.05, rel=0.1) and pace.of(B) == pytest.approx(0.33, rel=0.1)


def test_first_step_of_a_shape_that_was_not_stored_stands_and_follows_the_device() -> None:
    pace = Pace(STORED)
    steps(pace, NEW, 0.08)
    assert pace.of(NEW) == pytest.approx(0.08) and pace.seconds().keys() == {A, B, NEW}
    steps(pace, A, 2 * 0.05, 80)
    assert pace.of(NEW) == pytest.approx(0.16, rel=0.2)
    assert Pace({}).seconds() == {}


def test_step_too_short_for_the_clock_breaks_nothing() -> None:
    pace = Pace({A: 0.0})
    steps(pace, A, 0.0, 5)
    steps(pace, B, 0.0)
    assert 0 < pace.of(A) < 1e-3 and 0 < pace.of(B) < 1e-3


def renders(count: int) -> Iterator[tuple[Shape, list[float]]]:
    """Renders of 25 steps on a device that wanders by some 20 %, five shapes in turn, now and then with a hiccup."""
    rng, log_pace = random.Random(1), 0.0
    for i in range(count):
        rows, taken = 1 + i % 5, []
        for _ in range(25):
            log_pace = 0.999 * log_pace + rng.gauss(0, 0.008)
            hiccup = 3.0 if rng.random() < 0.02 else 1.0
            taken.append((0.03 + 0.02 * rows) * hiccup * math.exp(log_pace + rng.gauss(0, 0.05)))
        yield ("128x128", rows), taken


def test_wandering_device_is_foretold_better_than_by_what_each_shape_took_of_late() -> None:
    pace, seen = Pace({}), defaultdict(list)
    errors: dict[str, list[float]] = {"pace": [], "median": []}
    for i, (shape, taken) in enumerate(renders(200)):
        if i >= 20:
            actual = statistics.mean(taken)
            errors["pace"].append(abs(pace.of(shape) / actual - 1))
            errors["median"].append(abs(statistics.median(seen[shape][-60:]) / actual - 1))
        for seconds in taken:
            pace.observe(shape, seconds)
        seen[shape] += taken
    ours, beside = (statistics.median(errors[kind]) for kind in ("pace", "median"))
    assert ours < 0.06 and ours < 0.75 * beside
