"""Text-encoder parts of styles: they act on the prompts of their own request alone and are part of the key."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from core.errors import InvalidInput, NonFinite
from core.recipe import StyleUse
from sampling import lora
from sampling.encode_stage import EncodeStage
from sampling.encoder import Encoder
from sampling.lora_names import TEXT, TEXT_2
from sampling.model import Model
from sampling.text import TextTower
from shared_cache.embeddings import ByteLRU
from tests.makers import a_final_recipe
from tests.sampling.style_files import text_style

PROMPT = "a (fox:1.2) in the snow"
FIRST, SECOND, PLAIN = StyleUse("first", 1.0), StyleUse("second", 0.5), StyleUse("ink", 1.0)


@pytest.fixture
def paths(model: Model, bundle: Path, tmp_path: Path) -> dict[str, Path]:
    return {
        "first": text_style(model, tmp_path / "first.safetensors", seed=1),
        "second": text_style(model, tmp_path / "second.safetensors", seed=2, rank=8),
        "ink": bundle / "styles" / "ink.safetensors",
    }


@pytest.fixture
def encoder(model: Model, paths: dict[str, Path]) -> Encoder:
    return Encoder(model, ByteLRU(64 << 20), paths)


def fused(model: Model, styles: Sequence[tuple[Path, float]]) -> Encoder:
    """An encoder whose weights hold the styles for good."""
    towers = []
    for component, tower in zip((TEXT, TEXT_2), model.text().towers, strict=True):
        network = copy.deepcopy(tower.encoder)
        for path, weight in styles:
            for name, layer in lora.read(path, model.networks())[component].items():
                network.get_submodule(name).weight.data += weight * (layer.up @ layer.down)
        towers.append(TextTower(tower.tokenizer, network))
    text = replace(model.text(), towers=(towers[0], towers[1]))
    return Encoder(replace(model, texts={"final": text}), ByteLRU(0))


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().max())


@pytest.mark.parametrize("weight", [1.0, -0.3])
def test_style_equals_weights_that_hold_it(
    model: Model, encoder: Encoder, paths: dict[str, Path], weight: float
) -> None:
    ours, theirs = (
        encoder.encode(PROMPT, (StyleUse("first", weight),)),
        fused(model, [(paths["first"], weight)]).encode(PROMPT),
    )
    assert distance(ours.prompt_embeds, theirs.prompt_embeds) <= 1e-4
    assert distance(ours.pooled, theirs.pooled) <= 1e-4
    assert distance(ours.prompt_embeds, encoder.encode(PROMPT).prompt_embeds) > 0.1
    assert distance(ours.pooled, encoder.encode(PROMPT).pooled) > 0.1


def test_two_styles_act_together_in_either_order(model: Model, encoder: Encoder, paths: dict[str, Path]) -> None:
    ours = encoder.encode(PROMPT, (FIRST, SECOND))
    assert encoder.encode(PROMPT, (SECOND, FIRST)) is ours
    theirs = fused(model, [(paths["first"], 1.0), (paths["second"], 0.5)]).encode(PROMPT)
    assert distance(ours.prompt_embeds, theirs.prompt_embeds) <= 1e-4


def test_plain_prompts_are_bit_equal_after_styles(model: Model, encoder: Encoder) -> None:
    before = encoder.encode(PROMPT)
    encoder.encode(PROMPT, (FIRST,))
    after = Encoder(model, ByteLRU(0)).encode(PROMPT)
    assert torch.equal(after.prompt_embeds, before.prompt_embeds) and torch.equal(after.pooled, before.pooled)


def test_key_holds_those_styles_alone_that_act_on_the_text(encoder: Encoder) -> None:
    assert encoder.encode(PROMPT, (PLAIN,)) is encoder.encode(PROMPT)
    assert encoder.encode(PROMPT, (PLAIN, FIRST)) is encoder.encode(PROMPT, (FIRST,))
    assert encoder.encode(PROMPT, (FIRST,)) is not encoder.encode(PROMPT, (StyleUse("first", 0.9),))


def test_same_content_under_another_name_shares_the_embedding(
    encoder: Encoder, paths: dict[str, Path], tmp_path: Path
) -> None:
    paths["twin"] = Path(shutil.copy(paths["first"], tmp_path / "twin.safetensors"))
    assert encoder.encode(PROMPT, (StyleUse("twin", 1.0),)) is encoder.encode(PROMPT, (FIRST,))


def test_file_replaced_under_the_same_name_serves_no_old_embedding(encoder: Encoder, paths: dict[str, Path]) -> None:
    old = encoder.encode(PROMPT, (FIRST,))
    shutil.copy(paths["second"], paths["first"])
    new = encoder.encode(PROMPT, (FIRST,))
    assert distance(old.prompt_embeds, new.prompt_embeds) > 0.1
    assert new is encoder.encode(PROMPT, (StyleUse("second", 1.0),))


def test_style_in_several_threads_stays_with_its_own_prompts(model: Model, paths: dict[str, Path]) -> None:
    kinds: list[tuple[StyleUse, ...]] = [(), (FIRST,), (SECOND,), (FIRST, SECOND)]
    encoder = Encoder(model, ByteLRU(0), paths)
    wanted = [encoder.encode(PROMPT, styles).prompt_embeds for styles in kinds]

    def work(i: int) -> bool:
        return torch.equal(encoder.encode(PROMPT, kinds[i % 4]).prompt_embeds, wanted[i % 4])

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(64)))


def test_unknown_and_broken_styles_fail_their_request_alone(
    encoder: Encoder, paths: dict[str, Path], tmp_path: Path
) -> None:
    paths["cut"], paths["nan"] = tmp_path / "cut.safetensors", tmp_path / "nan.safetensors"
    paths["cut"].write_bytes(paths["first"].read_bytes()[:200])
    save_file({key: tensor * torch.nan for key, tensor in load_file(paths["first"]).items()}, paths["nan"])
    stage = EncodeStage(encoder, lambda: None)
    for tag in ("unknown", "cut", "nan", "first"):
        stage.submit(tag, a_final_recipe(styles=(StyleUse(tag, 1.0),)))
    stage._pool.shutdown(wait=True)
    ready = {encoded.tag: encoded for encoded in stage.ready()}
    assert all(isinstance(ready[tag].error, InvalidInput) for tag in ("unknown", "cut", "nan"))
    assert ready["first"].error is None and ready["first"].positive is not None


def test_style_that_makes_an_embedding_of_nan_is_named_alone_and_nothing_is_kept(
    model: Model, encoder: Encoder, paths: dict[str, Path], tmp_path: Path
) -> None:
    paths["huge"] = text_style(model, tmp_path / "huge.safetensors", strength=1e38)
    for _ in range(2):  # the second is not served from the cache
        with pytest.raises(NonFinite, match="styles: huge:2: "):  # not of the other, which acts on the UNet alone
            encoder.encode(PROMPT, (PLAIN, StyleUse("huge", 2.0)))
    assert encoder.encode(PROMPT).finite


def test_stage_gives_positive_and_negative_the_styles_of_the_recipe(encoder: Encoder) -> None:
    stage = EncodeStage(encoder, lambda: None)
    recipe = a_final_recipe(negative_prompt="grey", styles=(FIRST,))
    stage.submit("one", recipe)
    stage.close()
    (encoded,) = stage.ready()
    assert encoded.positive is encoder.encode(recipe.prompt, (FIRST,))
    assert encoded.negative is encoder.encode("grey", (FIRST,))


def test_text_style_is_no_burden_to_the_unet(model: Model, paths: dict[str, Path]) -> None:
    parts = lora.read(paths["first"], model.networks())
    assert set(parts) == {TEXT, TEXT_2}
