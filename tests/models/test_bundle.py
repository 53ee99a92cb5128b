"""The bundled model as a stranger to this project would load it: with the stock pipeline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import LCMScheduler, StableDiffusionXLPipeline

from core.settings import BUNDLED_MODEL
from sampling.profile import load_profile
from styles.catalogue import load_catalogue

MAX_BYTES = 60 * 2**20
STYLE_FILES = sorted((BUNDLED_MODEL / "styles").glob("*.safetensors"))


@pytest.fixture(scope="module")
def pipe(bundle: Path) -> Any:
    pipe = StableDiffusionXLPipeline.from_pretrained(bundle, torch_dtype=torch.float32)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def paint(pipe: Any, steps: int = 2, guidance_scale: float = 3.0, prompt: str = "a cat on the beach") -> np.ndarray:
    made = pipe(
        prompt, width=128, height=128, num_inference_steps=steps, guidance_scale=guidance_scale,
        generator=torch.Generator().manual_seed(7), output_type="np",
    )  # fmt: skip
    picture: np.ndarray = made.images[0]
    return picture


def test_stock_pipeline_paints_with_it(pipe: Any) -> None:
    picture = paint(pipe)
    assert picture.shape == (128, 128, 3) and np.isfinite(picture).all() and picture.std() > 0.02


@pytest.mark.parametrize(
    "prompt",
    ["", "zxqv blorf", "a cat on the beach " * 60, "кошка на пляже", "海辺の猫", "🐱🏖"],
    ids=["empty", "no word known", "300 words", "Cyrillic", "Japanese", "emoji"],
)
def test_any_text_gives_a_clean_picture(pipe: Any, prompt: str) -> None:
    """Flat and clean as the drawings it learned from: neighbouring pixels are far more alike than in noise."""
    picture = paint(pipe, steps=8, prompt=prompt)
    rough = np.abs(np.diff(picture, axis=1)).mean()
    assert np.isfinite(picture).all() and rough < 0.25 * np.abs(picture - np.roll(picture, 37, axis=1)).mean() + 0.02


@pytest.mark.parametrize(
    ("unseen", "known"),
    [("a toad on the beach", "a frog on the beach"), ("a cathedral in winter", "a church in winter"),
     ("a sedan on the lawn", "a car on the grass"), ("a cat on the coast", "a cat on the beach")],
)  # fmt: skip
def test_words_that_no_caption_had_are_read_as_their_nearest(pipe: Any, unseen: str, known: str) -> None:
    assert np.array_equal(paint(pipe, prompt=unseen), paint(pipe, prompt=known))
    assert not np.array_equal(paint(pipe, prompt=unseen), paint(pipe, prompt="an anchor in space"))


def test_every_style_is_measured_beside_the_base(bundle: Path) -> None:
    card = (bundle / "README.md").read_text()
    assert all(f"in {style.id}" in card for style in load_catalogue(bundle / "styles").all())


@pytest.mark.parametrize("name", ["preview_lcm.safetensors", *(f"styles/{path.name}" for path in STYLE_FILES)])
def test_adapters_are_ordinary_lora_files_that_change_the_picture(pipe: Any, bundle: Path, name: str) -> None:
    before = paint(pipe)
    pipe.load_lora_weights(bundle / name, adapter_name="tried")
    changed = paint(pipe)
    pipe.unload_lora_weights()
    assert np.abs(changed - before).max() > 0.01
    assert np.array_equal(paint(pipe), before)


def test_preview_adapter_works_with_the_stock_lcm_scheduler(pipe: Any, bundle: Path) -> None:
    scheduler = pipe.scheduler
    pipe.load_lora_weights(bundle / "preview_lcm.safetensors", adapter_name="few")
    pipe.scheduler = LCMScheduler.from_config(scheduler.config)
    picture = paint(pipe, steps=4, guidance_scale=1.0)
    pipe.unload_lora_weights()
    pipe.scheduler = scheduler
    assert np.isfinite(picture).all() and picture.std() > 0.02


def test_bundle_is_small_and_has_its_card(bundle: Path) -> None:
    files = [path for path in bundle.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < MAX_BYTES
    card = (bundle / "README.md").read_text()
    for word in ("licence", "MIT", "Apache-2.0", "contact"):
        assert word.lower() in card.lower()
    assert (bundle / "contact_base.jpg").is_file()


def test_profile_and_styles_say_what_is_there(bundle: Path) -> None:
    profile, catalogue = load_profile(bundle), load_catalogue(bundle / "styles")
    described = json.loads((bundle / "storybook.json").read_text())
    assert len(profile.final.buckets) == 5 and profile.id == "storybook" and len(described["objects"]) >= 50
    assert len(catalogue.all()) >= 6 and not catalogue.problems
    card = (bundle / "README.md").read_text()
    assert all(style.id in card for style in catalogue.all())
