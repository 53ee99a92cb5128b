from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import save_file

from core.errors import InvalidInput, StartupError
from sampling.judge import FILE, Judge, load_judge
from sampling.picture import Pixels

SHOWN = ("cat beach", "dog meadow", "car desert", "castle sunset", "boat sea", "tree snow")  # of the first row


@pytest.fixture(scope="module")
def judge(bundle: Path) -> Judge:
    found = load_judge(bundle)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def shown(bundle: Path) -> list[Pixels]:
    """The first row of the model card's pictures."""
    sheet = np.asarray(Image.open(bundle / "contact_base.jpg").convert("RGB"))
    side = sheet.shape[1] // len(SHOWN)
    return [sheet[:side, i * side : (i + 1) * side] for i in range(len(SHOWN))]


def test_judge_knows_what_the_model_painted(judge: Judge, shown: list[Pixels]) -> None:
    asked = [dict(zip(("object", "background"), names.split(), strict=True)) for names in SHOWN]
    marks = [judge.mark(picture, {**names, "style": "flat"}) for picture, names in zip(shown, asked, strict=True)]
    assert sum(mark["object"].right for mark in marks) >= 4
    assert all(mark["background"].right for mark in marks)
    assert np.mean([mark["style"].score for mark in marks]) > 0.5


def test_judge_tells_a_wrong_object(judge: Judge, shown: list[Pixels]) -> None:
    wrong = judge.mark(shown[0], {"object": "bicycle"})["object"]
    assert wrong.score < 0.1 and not wrong.right


def test_a_name_it_was_not_taught_is_refused(judge: Judge, shown: list[Pixels]) -> None:
    with pytest.raises(InvalidInput, match='object: the judge does not know "submarine sandwich"'):
        judge.mark(shown[0], {"object": "submarine sandwich"})


def test_a_model_without_a_judge_has_none(tmp_path: Path) -> None:
    assert load_judge(tmp_path) is None


def test_a_file_that_is_no_judge_is_refused(tmp_path: Path, bundle: Path) -> None:
    path = tmp_path / FILE
    path.parent.mkdir()
    save_file({}, path, {"object": "[]"})
    with pytest.raises(StartupError, match="holds no tensors"):
        load_judge(tmp_path)
    path.write_bytes((bundle / FILE).read_bytes()[:1000])
    with pytest.raises(StartupError, match="cut off"):
        load_judge(tmp_path)
