from dataclasses import replace

import pytest

from core.errors import InvalidInput
from core.profile import Bucket, Limits, ModelProfile, Pool
from core.recipe import MAX_SEED, Recipe, Sampler, StyleUse
from core.validate import check_recipe

BUCKETS = (Bucket(128, 128), Bucket(152, 104), Bucket(104, 152))
PROFILE = ModelProfile(
    "storybook",
    "0",
    Pool(Sampler.LCM, 4, 1.0, BUCKETS),
    Pool(Sampler.EULER, 25, 4.0, BUCKETS),
    Limits(),
)
GOOD = Recipe("a cat", "", 7, 128, 128, 25, 4.0, Sampler.EULER, (), "storybook", "0")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", ""),
        ("prompt", " \n\t"),
        ("prompt", "\u200b\u200b"),
        ("prompt", "a" * 10000),
        ("prompt", "a\0b"),
        ("prompt", "\ud800"),
        ("prompt", "(a:nan)"),
        ("negative_prompt", "a\0"),
        ("negative_prompt", "x" * 10000),
        ("seed", -1),
        ("seed", MAX_SEED + 1),
        ("seed", 2**63),
        ("width", 0),
        ("width", -8),
        ("height", 60),
        ("height", 100000),
        ("steps", 0),
        ("steps", -1),
        ("steps", 1001),
        ("guidance_scale", -3.0),
        ("guidance_scale", float("nan")),
        ("guidance_scale", float("inf")),
        ("styles", (StyleUse("ink", 0.5), StyleUse("ink", 0.5))),
    ],
)
def test_check_recipe_names_the_field_when_out_of_bounds(field: str, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_recipe(replace(GOOD, **{field: value}), PROFILE, {"ink"}, "final")  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (StyleUse("nope", 1.0), 'styles.1.id: no style "nope"; known are ink, noto'),
        (StyleUse("n" * 41, 1.0), f'styles.1.id: no style "{"n" * 39}…"; known are ink, noto'),
        (StyleUse("ink", 99.0), "styles.1.weight: must be a number in 0…2"),
        (StyleUse("ink", float("nan")), "styles.1.weight: must be a number in 0…2"),
    ],
)
def test_check_recipe_names_the_style_and_its_place(use: StyleUse, message: str) -> None:
    styled = replace(GOOD, styles=(StyleUse("noto", 1.0), use))
    with pytest.raises(InvalidInput) as caught:
        check_recipe(styled, PROFILE, {"ink", "noto"}, "final")
    assert caught.value.message == message
    assert caught.value.field == message.partition(":")[0]


@pytest.mark.parametrize("prompt", ["テスト 😀", "قطة على الشاطئ", "((((", "text:1.4", "é" * 2000])
def test_check_recipe_passes_any_script(prompt: str) -> None:
    check_recipe(replace(GOOD, prompt=prompt, seed=MAX_SEED), PROFILE, {"ink"}, "final")


def test_check_recipe_bounds_steps_by_pool() -> None:
    with pytest.raises(InvalidInput, match="steps"):
        check_recipe(GOOD, PROFILE, (), "preview")


@pytest.mark.parametrize(
    ("asked", "bucket"),
    [((128, 128), "128x128"), ((64, 64), "128x128"), ((152, 100), "152x104"), ((64, 152), "104x152")],
)
def test_nearest_bucket_follows_the_aspect(asked: tuple[int, int], bucket: str) -> None:
    assert str(PROFILE.final.nearest_bucket(*asked)) == bucket


def test_recipe_round_trips_through_json() -> None:
    styled = replace(GOOD, styles=(StyleUse("ink", 0.8),), prompt="テスト 😀")
    assert Recipe.from_json(styled.to_json()) == styled
    assert styled.content_hash() != GOOD.content_hash()
