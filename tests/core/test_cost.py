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


def test_meter_follows_the_median_and_ignores_outliers() -> None:
    meter = CostMeter(TABLE)
    for seconds in (0.1, 0.1, 9.0, 0.1):
        meter.observe(Part.STEP, seconds, 2, "128x128")
    assert meter.table().step_s("128x128", 2) == pytest.approx(0.1)


def test_slower_device_shows_in_shapes_that_were_not_seen_since() -> None:
    meter = CostMeter(TABLE)
    before = meter.table()
    for _ in range(30):
        meter.observe(Part.STEP, 1.5 * before.step_s("128x128", 2), 2, "128x128")
    assert meter.table().step_s("128x128", 8) == pytest.approx(1.5 * before.step_s("128x128", 8))
    for _ in range(100):
        meter.observe(Part.STEP, before.step_s("128x128", 2), 2, "128x128")
    assert meter.table().step_s("128x128", 8) == pytest.approx(before.step_s("128x128", 8))


def test_shape_that_was_stored_wrong_is_mended_and_leaves_the_others_alone() -> None:
    meter = CostMeter(TABLE)
    right_s, wrong_s = TABLE.step_s("128x128", 2), TABLE.step_s("128x128", 8)
    for _ in range(40):
        meter.observe(Part.STEP, right_s, 2, "128x128")
        meter.observe(Part.STEP, right_s, 2, "128x128")
        meter.observe(Part.STEP, 3 * wrong_s, 8, "128x128")
    assert meter.table().step_s("128x128", 2) == pytest.approx(right_s)
    assert meter.table().step_s("128x128", 8) == pytest.approx(3 * wrong_s)


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
