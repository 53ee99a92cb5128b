"""The gate stops a model that became worse; the bundle itself passes, see tests/app/test_evaluate.py."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.bundle import Parts
from core.errors import InvalidInput
from core.settings import Settings
from final_engine.gate.reference import Reference, read_reference
from final_engine.gate.report import Outcome, cases_of, chosen_options, evaluate, keep
from sampling.options import Option

PRICE, HOUR_S = 3.6, 3600.0


@pytest.fixture(scope="module")
def settings() -> Settings:
    return Settings()


@pytest.fixture(scope="module")
def reference(bundle: Path, parts: Parts) -> Reference:
    return read_reference(bundle / "gate", parts.model.profile.model)


@pytest.fixture(scope="module")
def worse(settings: Settings, parts: Parts, reference: Reference) -> Outcome:
    """One prompt in both pools by a network whose numbers are all off."""
    unet = copy.deepcopy(parts.model.network("final"))
    generator = torch.Generator().manual_seed(0)
    for weights in unet.parameters():
        weights.mul_(1 + torch.randn(weights.shape, generator=generator))
    model = replace(parts.model, network_preview=unet, network_final=unet)
    option = Option("off", lambda folder: model)
    return evaluate(settings, option, cases_of(settings, short=True)[:1], reference, lambda: None)


def test_a_network_whose_numbers_are_off_does_not_pass(worse: Outcome) -> None:
    found = {line.pool: {one.figure for one in line.regressions} for line in worse.lines}
    assert {"ssim", "psnr"} <= found["preview"] & found["final"]
    assert "object" in found["preview"] | found["final"]
    assert [line.least_alike for line in worse.lines] == [f"{pool}/1 a cat on the beach" for pool in found]


def test_a_line_tells_cost_by_the_price_and_nothing_of_money_without_one(worse: Outcome) -> None:
    line = replace(worse.lines[0], pace=replace(worse.lines[0].pace, device_s=0.5))
    assert line.as_dict(PRICE)["cost_per_picture"] == pytest.approx(PRICE * 0.5 / HOUR_S)
    assert "cost_per_picture" not in line.as_dict(None)


def test_a_picture_that_cannot_be_shown_becomes_no_reference(worse: Outcome, tmp_path: Path) -> None:
    first = worse.made[0]
    broken = replace(worse, made=(replace(first, scores=replace(first.scores, allowed=False)), *worse.made[1:]))
    with pytest.raises(InvalidInput, match="preview/1 could not be shown; nothing was written"):
        keep(broken, tmp_path / "new", "a test")
    assert not (tmp_path / "new").exists()


def test_times_of_another_machine_are_not_compared(settings: Settings, parts: Parts, reference: Reference) -> None:
    elsewhere = replace(reference, identity=replace(reference.identity, device="another machine"))
    with pytest.raises(InvalidInput, match=r"the reference was timed with .* on another machine"):
        evaluate(settings, Option("as it is", lambda folder: parts.model), (), elsewhere, lambda: None, 0.2)


def test_options_are_rows_by_name() -> None:
    assert [option.name for option in chosen_options([])] == ["cpu-float32"]
    assert [option.name for option in chosen_options(["cpu-bfloat16", "cpu-float32"])] == [
        "cpu-bfloat16",
        "cpu-float32",
    ]
    assert len(chosen_options(["all"])) >= 2
    with pytest.raises(InvalidInput, match="known are cpu-float32, cpu-bfloat16"):
        chosen_options(["int3"])
