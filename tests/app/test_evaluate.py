"""The short form of the gate, as a person runs it: what has to pass before anything lands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from app.cli import app


@pytest.fixture(scope="module")
def reference(bundle: Path) -> Path:
    return bundle / "gate"


@pytest.fixture(scope="module")
def passed(reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Path]]:
    threads, out = torch.get_num_threads(), tmp_path_factory.mktemp("gate")
    command = ["eval", "--short", "--against", str(reference), "--out", str(out), "--price-per-hour", "2", "--json"]
    told = CliRunner().invoke(app, command)
    torch.set_num_threads(threads)
    assert told.exit_code == 0, told.output
    yield json.loads(told.stdout), out


def test_the_bundle_is_as_good_as_its_reference(passed: tuple[dict[str, Any], Path]) -> None:
    said, _ = passed
    assert said["passed"] and [(row["pool"], row["pictures"]) for row in said["rows"]] == [("preview", 4), ("final", 4)]
    for row in said["rows"]:
        assert row["finite"] == row["allowed"] == 1 and row["regressions"] == []
        assert row["ssim"] > 0.9 and row["object"] > 0.5 and row["style"] > 0.5
        assert 0 < row["p50_s"] <= row["p95_s"] and row["pictures_per_s"] > 0
        assert row["cost_per_picture"] == pytest.approx(2 * row["device_s"] / 3600)


def test_pictures_and_a_contact_sheet_are_written(passed: tuple[dict[str, Any], Path]) -> None:
    folder = passed[1] / "cpu-float32"
    assert len(list(folder.glob("*.png"))) == 9
    with Image.open(folder / "contact.png") as sheet, Image.open(folder / "final-1.png") as picture:
        assert sheet.width >= picture.width and picture.size == (128, 128)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["--write-reference", "x"], "wants a --reason"),
        (["--write-reference", "x", "--reason", "new weights", "--short"], "the whole set"),
        (["--time-tolerance", "0.2"], "wants the reference"),
        (["--against", "nowhere"], "cannot be read"),
        (["--option", "int3"], "is not known here"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_painted(command: list[str], said: str) -> None:
    told = CliRunner().invoke(app, ["eval", *command])
    assert told.exit_code in (1, 2) and said in told.stderr
