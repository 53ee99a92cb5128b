from __future__ import annotations

import pytest

from core.memory import MemoryPlan, Peak, plan_rows

GIB = 2**30


def plan(memory_gib: float, headroom: float = 0.1) -> MemoryPlan:
    """6 GiB loaded, and one for each row."""
    return plan_rows(Peak(2, 8 * GIB), Peak(8, 14 * GIB), int(memory_gib * GIB), headroom)


def test_rows_are_those_that_fit_below_the_headroom() -> None:
    found = plan(12.0)
    assert (found.base_bytes, found.row_bytes) == (6 * GIB, GIB)
    assert found.rows == 4 and found.missing_bytes == 0
    assert plan(12.0, headroom=0.0).rows == 6


def test_no_more_rows_than_were_measured() -> None:
    assert plan(80.0).rows == 8


def test_memory_that_is_short_says_by_how_much() -> None:
    short = plan(8.0)
    assert short.rows == 1 and short.missing_bytes == pytest.approx(0.8 * GIB, abs=2)
    assert plan(5.0).rows == 0


def test_rows_that_cost_nothing_all_fit() -> None:
    assert plan_rows(Peak(2, GIB), Peak(8, GIB), 4 * GIB).rows == 8
    assert plan_rows(Peak(2, GIB), Peak(8, GIB // 2), 4 * GIB).rows == 8


def test_one_peak_is_not_enough() -> None:
    with pytest.raises(ValueError, match="two peaks"):
        plan_rows(Peak(2, GIB), Peak(2, GIB), GIB)


def test_a_plan_survives_its_file() -> None:
    assert MemoryPlan.from_dict(plan(12.0).as_dict()) == plan(12.0)
    with pytest.raises(KeyError):
        MemoryPlan.from_dict({})
