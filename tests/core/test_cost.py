from __future__ import annotations

import pytest

from core.cost import ANY, MOST_CAUTION, CostMeter, CostTable, Part

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


def test_meter_follows_the_median_of_what_is_no_step() -> None:
    meter = CostMeter(TABLE)
    meter.observe(Part.DECODE, 0.1, 1, "128x128")
    meter.observe(Part.DECODE, 0.5, 2, "128x128")
    assert meter.table().of(Part.DECODE, 1, "128x128") == 0.02  # stored, and seen only once
    assert meter.table().of(Part.DECODE, 2, "128x128") == 0.5
    for seconds in (9.0, 0.1):
        meter.observe(Part.DECODE, seconds, 1, "128x128")
    assert meter.table().of(Part.DECODE, 1, "128x128") == 0.1


def test_drift_is_live_over_stored() -> None:
    meter = CostMeter(TABLE)
    for _ in range(2):
        meter.observe(Part.STEP, 0.05, 2, "128x128")
    assert meter.step_drift("128x128", 2) is None
    for _ in range(30):
        meter.observe(Part.STEP, 0.075, 2, "128x128")
        meter.observe(Part.STEP, 0.075, 3, "128x128")  # nothing stored to drift from
    assert meter.step_drift("128x128", 2) == pytest.approx(1.5, rel=0.05)
    assert meter.step_drift("128x128", 3) is None
    assert meter.step_drift("128x128", 8) is None


def test_stretch_is_never_below_one() -> None:
    meter = CostMeter(TABLE)
    for ratio in (0.5, 2.0, 3.0):
        meter.observe_stretch(ratio)
    assert meter.table().stretch == 2.0


def test_caution_grows_with_broken_promises_and_goes_with_kept_ones() -> None:
    meter = CostMeter(TABLE)
    meter.observe_promise(kept=True)
    assert meter.table().caution == 1.0
    meter.observe_promise(kept=False)
    meter.observe_promise(kept=False)
    assert meter.table().caution == pytest.approx(1.69)
    for _ in range(30):
        meter.observe_promise(kept=True)
    assert 1.0 < meter.table().caution < 1.3
    for _ in range(100):
        meter.observe_promise(kept=False)
    assert meter.table().caution == MOST_CAUTION
    assert CostTable.from_json(meter.table().to_json()) == meter.table()
