from __future__ import annotations

import pytest

from core.cost import ANY, CostMeter, CostTable, Part

TABLE = CostTable(
    {
        Part.ENCODE: {ANY: {1: 0.01}},
        Part.STEP: {"128x128": {1: 0.04, 2: 0.05, 8: 0.11}, "144x112": {2: 0.06}},
        Part.DECODE: {"128x128": {1: 0.02, 4: 0.08}},
        Part.SAFETY: {ANY: {1: 0.05}},
        Part.PUBLISH: {ANY: {1: 0.03}},
    }
)


@pytest.mark.parametrize(
    ("rows", "seconds"), [(1, 0.04), (2, 0.05), (5, 0.08), (8, 0.11), (16, 0.22)], ids=lambda value: str(value)
)
def test_step_is_measured_interpolated_or_in_proportion(rows: int, seconds: float) -> None:
    assert TABLE.step_s("128x128", rows) == pytest.approx(seconds)


def test_unmeasured_bucket_takes_a_measured_ones_figures() -> None:
    assert TABLE.step_s("152x104", 2) == pytest.approx(0.05)


def test_request_is_the_sum_of_its_parts() -> None:
    assert TABLE.request_s("128x128", 10, 2, 2) == pytest.approx(0.01 + 10 * 0.05 + 0.04 + 2 * 0.08)


def test_empty_table_guesses() -> None:
    assert 0 < CostTable().request_s("128x128", 4, 1) < 5


def test_json_gives_the_same_table() -> None:
    assert CostTable.from_json(TABLE.to_json()) == TABLE
    with pytest.raises((ValueError, KeyError, TypeError)):
        CostTable.from_json('{"seconds": {"dance": {}}}')


def test_meter_follows_the_median_and_ignores_outliers() -> None:
    meter = CostMeter(TABLE)
    for seconds in (0.1, 0.1, 9.0, 0.1):
        meter.observe(Part.STEP, seconds, 2, "128x128")
    assert meter.table().step_s("128x128", 2) == pytest.approx(0.1)
    assert meter.table().step_s("128x128", 8) == pytest.approx(0.11)


def test_meter_takes_a_first_measurement_only_where_nothing_is_stored() -> None:
    meter = CostMeter(TABLE)
    meter.observe(Part.STEP, 0.5, 2, "128x128")
    meter.observe(Part.STEP, 0.5, 3, "128x128")
    assert meter.table().step_s("128x128", 2) == pytest.approx(0.05)
    assert meter.table().step_s("128x128", 3) == pytest.approx(0.5)


def test_drift_is_live_over_stored() -> None:
    meter = CostMeter(TABLE)
    for _ in range(3):
        meter.observe(Part.STEP, 0.075, 2, "128x128")
        meter.observe(Part.STEP, 0.075, 3, "128x128")  # nothing stored to drift from
    assert meter.drift(Part.STEP, 2, "128x128") == pytest.approx(1.5)
    assert meter.drift(Part.STEP, 3, "128x128") is None
    assert meter.drift(Part.STEP, 8, "128x128") is None


def test_stretch_is_never_below_one() -> None:
    meter = CostMeter(TABLE)
    for ratio in (0.5, 2.0, 3.0):
        meter.observe_stretch(ratio)
    assert meter.table().stretch == 2.0
