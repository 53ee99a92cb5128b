from __future__ import annotations

from dataclasses import replace

import pytest

from final_engine.gate.figures import TOLERANCES, Pace, Scores, figures_of, regressions, slowdowns

GOOD = Scores(True, True, object=0.9, right=1.0, background=0.99, style=0.8, follows=0.7, ssim=0.98, psnr=34.0)
PACE = Pace(p50_s=1.0, p95_s=1.2, pictures_per_s=2.0, device_s=0.4)


def test_figures_are_means_over_those_that_have_a_score_and_the_worst_likeness() -> None:
    figures = figures_of([GOOD, replace(GOOD, object=0.5, ssim=0.88, follows=None), Scores(False, False)])
    assert figures["object"] == pytest.approx(0.7) and figures["follows"] == 0.7
    assert figures["ssim"] == pytest.approx(0.93) and figures["ssim_worst"] == 0.88
    assert figures["finite"] == pytest.approx(2 / 3)


def test_a_model_without_a_judge_has_no_such_figures() -> None:
    assert set(figures_of([Scores(True, True)])) == {"finite", "allowed"}


@pytest.mark.parametrize("name", TOLERANCES)
def test_a_fall_beyond_the_tolerance_is_named_with_its_size_and_one_within_is_not(name: str) -> None:
    before = figures_of([GOOD])
    tolerance = TOLERANCES[name]
    assert regressions("final", {**before, name: before[name] - tolerance}, before) == []
    (worse,) = regressions("final", {**before, name: before[name] - tolerance - 0.01}, before)
    assert (worse.pool, worse.figure) == ("final", name)
    assert f"{tolerance + 0.01:.3g} worse" in str(worse) and f"{tolerance:g} is allowed" in str(worse)


def test_what_is_better_or_cannot_be_compared_is_no_regression() -> None:
    before = figures_of([GOOD])
    assert regressions("final", {**before, "object": 1.0}, before) == []
    assert regressions("final", figures_of([Scores(True, True)]), before) == []


def test_times_are_compared_by_share() -> None:
    assert slowdowns("preview", replace(PACE, p50_s=1.15, device_s=0.3), PACE, 0.2) == []
    worse = slowdowns("preview", replace(PACE, p50_s=1.3, device_s=0.9), PACE, 0.2)
    assert [one.figure for one in worse] == ["p50_s", "device_s"] and "20% is allowed" in str(worse[0])
    assert slowdowns("preview", replace(PACE, p50_s=None, device_s=None), PACE, 0.2) == []
