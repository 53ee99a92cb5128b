from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from core.cost import Identity
from core.errors import InvalidInput, StartupError
from final_engine.gate.figures import Pace, Scores
from final_engine.gate.reference import SCORES, SHEET, read_reference, write_reference
from final_engine.similarity import MAX_PSNR_DB, psnr
from sampling.picture import Pixels

HERE = Identity("storybook", "0", "a processor", "float32", 1)
MODEL = "storybook@0"
PACE = Pace(1.0, 1.2, 2.0, 0.4)


def a_picture(height: int, width: int, seed: int) -> Pixels:
    """Soft colours with one hard edge."""
    ramp = np.linspace(0, 200, width)[None, :, None] + np.linspace(0, 50, height)[:, None, None]
    tint = np.random.default_rng(seed).integers(0, 5, (1, 1, 3))
    picture = np.broadcast_to(ramp, (height, width, 3)) + tint
    picture[height // 4 : height // 2, width // 4 : width // 2] = 30 * (seed % 8)
    return picture.clip(0, 255).astype(np.uint8)


PICTURES = {
    "preview/1": a_picture(128, 128, 1),
    "preview/2": a_picture(104, 152, 2),
    "final/1": a_picture(256, 256, 3),
    "final/2": a_picture(1024, 576, 4),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    scores = {name: Scores(True, True, object=0.5) for name in PICTURES}
    write_reference(tmp_path / "new", PICTURES, scores, {"preview": PACE}, HERE, "cpu-float32", "a test")
    return tmp_path / "new"


def test_a_reference_gives_back_its_scores_and_knows_its_pictures(folder: Path) -> None:
    reference = read_reference(folder, MODEL)
    assert reference.identity == HERE and reference.reason == "a test" and reference.paces == {"preview": PACE}
    for name, picture in PICTURES.items():
        again = reference.compared(name, picture, Scores(True, True, object=0.5))
        assert again == reference.scores[name]
        assert again.ssim is not None and again.ssim > 0.95 and again.psnr is not None and again.psnr > 30
    assert reference.tiles["preview/2"].shape == (88, 128, 3) and reference.tiles["final/2"].shape == (128, 72, 3)


def test_another_picture_is_far_from_the_reference(folder: Path) -> None:
    reference = read_reference(folder, MODEL)
    other = reference.compared("preview/1", PICTURES["preview/1"][::-1].copy(), Scores(True, True))
    assert other.ssim is not None and other.ssim < 0.8 and other.psnr is not None and other.psnr < 25
    assert reference.compared("preview/9", PICTURES["preview/1"], Scores(True, True)).ssim is None


def test_equal_pictures_have_the_largest_ratio() -> None:
    picture = PICTURES["preview/1"]
    assert psnr(picture, picture) == MAX_PSNR_DB
    assert 20 < psnr(picture, np.clip(picture.astype(int) + 9, 0, 255).astype(np.uint8)) < 35


def test_a_reference_of_another_model_or_set_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="is of storybook@0, this is storybook@1"):
        read_reference(folder, "storybook@1")
    body = json.loads((folder / SCORES).read_text())
    (folder / SCORES).write_text(json.dumps({**body, "set": "another"}))
    with pytest.raises(InvalidInput, match="another set of prompts"):
        read_reference(folder, MODEL)


@pytest.mark.parametrize("text", ["", "[]", "{}", "null"])
def test_a_broken_reference_says_how_to_make_it_anew(folder: Path, text: str) -> None:
    (folder / SCORES).write_text(text)
    with pytest.raises(StartupError, match="write it anew with: firstlight eval --write-reference"):
        read_reference(folder, MODEL)


def test_a_missing_or_cut_sheet_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / SHEET).write_bytes((folder / SHEET).read_bytes()[:100])
    with pytest.raises(StartupError):
        read_reference(folder, MODEL)
    (folder / SHEET).unlink()
    with pytest.raises(StartupError, match="cannot be read"):
        read_reference(folder, MODEL)
    with pytest.raises(StartupError, match="cannot be read"):
        read_reference(tmp_path / "nowhere", MODEL)
