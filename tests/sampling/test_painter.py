from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from core.errors import InvalidInput, NonFinite
from core.recipe import Recipe, Sampler, StyleUse
from sampling.encoder import Encoder
from sampling.model import Model
from sampling.painter import Painter, Wish
from shared_cache.embeddings import ByteLRU
from styles.catalogue import load_catalogue
from tests.makers import a_final_recipe, a_preview_recipe


@pytest.fixture(scope="module")
def painter(model: Model, bundle: Path) -> Iterator[Painter]:
    paths = load_catalogue(bundle / "styles").paths()
    with Painter(model, "preview", Encoder(model, ByteLRU(2**24), paths), paths, max_rows=4) as painter:
        yield painter


def recipe(**changes: Any) -> Recipe:
    return a_preview_recipe(**{"steps": 1, **changes})


def test_each_wish_ends_with_the_picture_of_its_own_recipe(painter: Painter) -> None:
    asked = [recipe(seed=seed, prompt=prompt) for seed in (1, 2, 3) for prompt in ("a cat", "a red car", "a tree")]
    together = {made.id: made for made in painter.paint([Wish(str(i), one) for i, one in enumerate(asked)])}
    assert len(together) == len(asked) and painter.busy_s > 0
    for i in (0, 4, 8):
        (alone,) = painter.paint([Wish("alone", asked[i])])
        assert alone.picture is not None and together[str(i)].picture is not None
        assert np.abs(alone.picture.astype(int) - together[str(i)].picture).max() <= 1


def test_sizes_styles_and_guidance_share_a_round(painter: Painter) -> None:
    wide = recipe(width=152, height=104)
    guided = a_final_recipe(steps=2, guidance_scale=3.0, styles=(StyleUse("ink", 1.0),), sampler=Sampler.EULER)
    made = {one.id: one for one in painter.paint([Wish("wide", wide), Wish("guided", guided), Wish("plain", recipe())])}
    shapes = {name: one.picture.shape for name, one in made.items() if one.picture is not None}
    assert shapes == {"wide": (104, 152, 3), "guided": (128, 128, 3), "plain": (128, 128, 3)}


def test_what_cannot_be_painted_ends_with_its_reason_and_takes_down_no_other(painter: Painter) -> None:
    broken = torch.full((8, 16, 16), torch.nan)
    wishes = [
        Wish("unknown", recipe(styles=(StyleUse("none", 1.0),))),
        Wish("broken", recipe(), 0.5, broken),
        Wish("whole", recipe()),
    ]
    made = {one.id: one for one in painter.paint(wishes)}
    assert isinstance(made["unknown"].error, InvalidInput)
    assert isinstance(made["broken"].error, NonFinite) and made["broken"].picture is None
    assert made["whole"].error is None and made["whole"].picture is not None
