"""Pictures as files: what a PNG carries is read back as it was typed."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

from core.recipe import Recipe
from sampling.picture import to_png
from tests.makers import a_final_recipe


@pytest.mark.parametrize(
    "text",
    [
        "テスト 😀",
        "שלום עולם \u202eabc\u202c",
        "a\u200bcat\ufeff\u2060",
        "e\u0301" * 500,
        "👩\u200d👩\u200d👧" * 200,
        "a\r\nNegative prompt: b\nSteps: 1, Seed: 2",
        "\x01\x1b[31m\x7f\ufffe\U0010ffff",
        'a/b .. "\\" {"prompt": 1} </script>',
    ],
    ids=ascii,
)
def test_any_text_comes_back_from_a_png(text: str) -> None:
    recipe = a_final_recipe(prompt=text, negative_prompt=text, seed=2**53 - 1)
    image = Image.open(io.BytesIO(to_png(np.zeros((64, 64, 3), np.uint8), recipe)))
    carried: dict[str, str] = image.text  # type: ignore[attr-defined]
    assert Recipe.from_dict(json.loads(carried["firstlight"])) == recipe
    assert carried["parameters"].startswith(f"{text}\nNegative prompt: {text}\n")
