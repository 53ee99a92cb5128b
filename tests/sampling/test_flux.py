"""FLUX: both kinds in one profile, the stock pipeline's latents and pictures, and what this family refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline
from torch import Tensor

from core.errors import InvalidInput, StartupError
from core.recipe import Recipe, Sampler
from core.validate import check_recipe
from sampling import embedding
from sampling.denoiser import Denoiser
from sampling.encoder import Encoder
from sampling.flux_forward import packed, unpacked
from sampling.loop import BATCH_TOLERANCE, StepLoop
from sampling.model import Model, PoolName, load_model
from sampling.painter import Painter, Wish
from sampling.plan import plan_of
from sampling.profile import load_profile
from sampling.rows import Row
from shared_cache.embeddings import ByteLRU
from tests.flux import flux_profile
from tests.makers import a_preview_recipe
from tests.sampling.conftest import NoStyles

STOCK_TOLERANCE = 1e-4
KINDS: list[tuple[PoolName, str, int]] = [("preview", "schnell", 256), ("final", "dev", 512)]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return flux_profile(tmp_path_factory.mktemp("flux"))


@pytest.fixture(scope="module")
def flux(profile: Path) -> Model:
    return load_model(profile)


@pytest.fixture(scope="module")
def painters(flux: Model) -> Iterator[dict[str, Painter]]:
    made = {pool: Painter(flux, pool, Encoder(flux, ByteLRU(2**24), pool=pool), {}, 4) for pool, _, _ in KINDS}
    yield made
    for painter in made.values():
        painter.__exit__()


def recipe(**changes: Any) -> Recipe:
    fields = {"width": 64, "height": 64, "guidance_scale": 3.5, "sampler": Sampler.EULER}
    return a_preview_recipe(**{**fields, **changes})


def stock(profile: Path, kind: str, length: int, wanted: Recipe, output: str) -> Any:
    pipeline = FluxPipeline.from_pretrained(profile.parent / kind)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline(
        wanted.prompt,
        height=wanted.height,
        width=wanted.width,
        num_inference_steps=wanted.steps,
        guidance_scale=wanted.guidance_scale,
        generator=torch.Generator().manual_seed(wanted.seed),
        max_sequence_length=length,
        output_type=output,
    ).images[0]


@pytest.mark.parametrize(("pool", "kind", "length"), KINDS)
def test_latents_and_picture_are_those_of_the_stock_pipeline(
    painters: dict[str, Painter], profile: Path, pool: PoolName, kind: str, length: int
) -> None:
    wanted = recipe(prompt="a fox, in the snow.", steps=4, width=64 if pool == "preview" else 96)
    (ours,) = painters[pool].paint([Wish("one", wanted)])
    assert ours.error is None and ours.latents is not None and ours.picture is not None
    theirs = stock(profile, kind, length, wanted, "latent")
    assert float(theirs.std()) > 0.1
    assert float((packed(ours.latents[None], 2)[0] - theirs).abs().max()) <= STOCK_TOLERANCE
    picture = (stock(profile, kind, length, wanted, "np") * 255).round()
    assert np.abs(picture - ours.picture.astype(float)).max() <= 1


def test_rows_of_any_step_and_guidance_share_a_forward(flux: Model) -> None:
    forwards: list[int] = []
    hook = flux.network("final").register_forward_hook(
        lambda _, __, given, ___: forwards.append(len(given["hidden_states"])), with_kwargs=True
    )
    encoder = Encoder(flux, ByteLRU(0), pool="final")
    texts = [encoder.encode("a cat, " * (i + 1)) for i in range(4)]
    wanted = [{"id": str(i), "seed": i, "steps": 2 + i, "guidance_scale": 1.0 + 2 * i} for i in range(4)]
    rows = [a_row(flux, embedding=text, **fields) for text, fields in zip(texts, wanted, strict=True)]
    run(flux, rows[:2], rows[2:])
    hook.remove()
    assert forwards == [2, 4, 3, 2, 2, 1]  # one pass a row, whatever its guidance; two join after the first step
    for row, text, fields in zip(rows, texts, wanted, strict=True):
        alone = a_row(flux, embedding=text, **fields)
        run(flux, [alone], [])
        assert largest(alone.latents, row.latents) <= BATCH_TOLERANCE


def run(flux: Model, rows: list[Row], later: list[Row]) -> None:
    """To their ends, in one loop; later ones join after the first step."""
    loop = StepLoop(Denoiser(flux, "final"), NoStyles(), 4, perf_counter)
    for row in rows:
        loop.join(row)
    assert not loop.step().failed
    for row in later:
        loop.join(row)
    while loop.rows:
        assert not loop.step().failed


def largest(one: Tensor | None, other: Tensor | None) -> float:
    assert one is not None and other is not None
    return float((one - other).abs().max())


def test_guidance_acts_where_the_network_reads_it(painters: dict[str, Painter]) -> None:
    for pool, acts in (("final", True), ("preview", False)):
        low, high = (
            next(iter(painters[pool].paint([Wish("one", recipe(steps=2, guidance_scale=scale))]))).latents
            for scale in (1.0, 9.0)
        )
        assert (largest(low, high) > 1e-3) == acts, pool


def test_pools_share_what_is_equal_and_read_texts_of_their_own_length(flux: Model) -> None:
    preview, final = flux.text("preview"), flux.text("final")
    assert (preview.length, final.length) == (256, 512) and preview.version != final.version
    assert preview.towers[1].encoder is final.towers[1].encoder and flux.vae is flux.vae_preview
    table = final.towers[1].encoder
    assert table.shared.weight is table.encoder.embed_tokens.weight
    lengths = [Encoder(flux, ByteLRU(0), pool=pool).encode("a cat").prompt_embeds.shape[1] for pool, _, _ in KINDS]
    assert lengths == [256, 512]


def test_pools_encode_at_once_with_the_tokenizers_that_they_share(flux: Model) -> None:
    encoders = [Encoder(flux, ByteLRU(0), pool=pool) for pool, _, _ in KINDS]
    wanted = [encoder.encode("a cat").prompt_embeds for encoder in encoders]
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda i: encoders[i % 2].encode("a cat").prompt_embeds, range(80)))
    assert all(torch.equal(found, wanted[i % 2]) for i, found in enumerate(made))


def test_weights_in_a_prompt_are_words_alone(flux: Model) -> None:
    encoder = Encoder(flux, ByteLRU(0), pool="final")
    plain, weighted = encoder.encode("a cat on ice"), encoder.encode("a (cat:1.4) on ice")
    assert torch.equal(plain.prompt_embeds, weighted.prompt_embeds) and torch.equal(plain.pooled, weighted.pooled)
    assert plain.token_count == len("acatonice") + 1


@pytest.mark.parametrize(("pool", "kind", "most"), KINDS)
def test_what_is_too_long_to_be_read_is_counted(flux: Model, pool: PoolName, kind: str, most: int) -> None:
    encoder = Encoder(flux, ByteLRU(0), pool=pool)
    made = encoder.encode("a" * most)  # and the end mark
    assert (made.token_count, made.tokens_unread) == (most, 1)
    assert encoder.encode("a" * (most - 1)).tokens_unread == 0
    assert embedding.unpacked(embedding.packed(made), flux.device).tokens_unread == 1


def test_render_follows_the_picture_that_it_was_given(flux: Model) -> None:
    start = torch.randn(4, 8, 8)
    row = a_row(flux, strength=0.5, init_latents=start)
    Denoiser(flux, "final").prepare(row)
    noise = torch.randn(4, 8, 8, generator=torch.Generator().manual_seed(row.seed))
    sigma = row.sigmas[0]
    assert 0.5 < sigma < 1.0 and len(row.timesteps) == row.steps and row.sigmas[-1] == 0.0
    assert torch.allclose(row.latents, (1 - sigma) * start + sigma * noise)


def a_row(flux: Model, **changes: Any) -> Row:
    embedding = Encoder(flux, ByteLRU(0), pool="final").encode("a cat")
    fields: dict[str, Any] = {
        "id": "a", "bucket": flux.profile.final.buckets[0], "steps": 4, "guidance_scale": 3.5, "seed": 7,
        "sampler": Sampler.EULER, "styles": (), "embedding": embedding,
    }  # fmt: skip
    return Row(**{**fields, **changes})


def test_tokens_unpack_to_the_latents_that_they_were_packed_from() -> None:
    latents = torch.randn(2, 4, 6, 10)
    tokens = packed(latents, 2)
    assert tokens.shape == (2, 15, 16)
    assert torch.equal(FluxPipeline._pack_latents(latents, 2, 4, 6, 10), tokens)
    assert torch.equal(unpacked(tokens, 2, 6, 10), latents)


def test_weights_held_in_half_paint_nearly_the_same(profile: Path, painters: dict[str, Painter]) -> None:
    light = profile.parent / "light.json"
    light.write_text(json.dumps({**json.loads(profile.read_text()), "options": {"weights": "bfloat16"}}))
    model = load_model(light)
    assert model.network("final").x_embedder.weight.dtype is torch.bfloat16
    with Painter(model, "final", Encoder(model, ByteLRU(0), pool="final"), {}, 1) as painter:
        (halved,) = painter.paint([Wish("one", recipe(steps=2))])
    (full,) = painters["final"].paint([Wish("one", recipe(steps=2))])
    assert 0 < largest(halved.latents, full.latents) < 0.1


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a sampler of diffusion": ({"sampler": Sampler.DPMPP_2M}, "euler"),
    "a negative prompt": ({"negative_prompt": "blurred"}, "empty"),
}


@pytest.mark.parametrize("what", REFUSED)
@pytest.mark.parametrize("pool", ["preview", "final"])
def test_request_that_this_family_cannot_fulfil_is_refused(flux: Model, what: str, pool: PoolName) -> None:
    changes, said = REFUSED[what]
    with pytest.raises(InvalidInput, match=said) as refused:
        check_recipe(recipe(**changes), flux.profile, ("ink",), pool)
    assert str(refused.value.field) == next(iter(changes))
    check_recipe(recipe(negative_prompt=" "), flux.profile, (), pool)


@pytest.mark.parametrize("changes", [{"sampler": Sampler.LCM}, {"strength": 0.0}, {"steps": 0}])
def test_row_that_this_family_cannot_run_is_refused(flux: Model, changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Denoiser(flux, "final").prepare(a_row(flux, **changes))


def test_folder_of_ones_own_is_painted_as_its_configs_say(profile: Path) -> None:
    dev, schnell = (load_profile(profile.parent / kind) for kind in ("dev", "schnell"))
    assert (dev.final.steps, dev.final.guidance_scale, schnell.final.steps) == (28, 3.5, 4)
    assert dev.final.samplers == (Sampler.EULER,) and not dev.final.negatives


MISFITS: dict[str, tuple[str, dict[str, Any], str]] = {
    "an editing network": ("transformer", {"in_channels": 96}, "96 numbers a token"),
    "another T5": ("text_encoder_2", {"d_model": 64}, "64 of text_encoder_2"),
    "another CLIP": ("text_encoder", {"hidden_size": 48}, "48 of text_encoder"),
    "no T5": ("text_encoder_2", {"model_type": "clip_text_model"}, "expected is T5"),
    "a schedule of betas": ("scheduler", {"_class_name": "EulerDiscreteScheduler"}, "FlowMatchEuler"),
    "noise at every step": ("scheduler", {"stochastic_sampling": True}, "stochastic_sampling"),
}


@pytest.mark.parametrize("what", MISFITS)
def test_folder_whose_parts_do_not_fit_is_refused(profile: Path, tmp_path: Path, what: str) -> None:
    part, changes, said = MISFITS[what]
    for source in (profile.parent / "dev").rglob("*"):
        target = tmp_path / source.relative_to(profile.parent / "dev")
        target.mkdir(parents=True) if source.is_dir() else target.symlink_to(source)
    config = tmp_path / part / ("scheduler_config.json" if part == "scheduler" else "config.json")
    fields = {**json.loads(config.read_text()), **changes}
    config.unlink()
    config.write_text(json.dumps(fields))
    with pytest.raises(StartupError) as refused:
        plan_of(tmp_path)
    assert said in refused.value.cause and refused.value.remedy


PROFILES: dict[str, tuple[dict[str, Any], str]] = {
    "the wrong family": ({"family": "sdxl"}, "the files are of flux"),
    "an unknown family": ({"family": "other"}, "sdxl, flux"),
}


@pytest.mark.parametrize("what", PROFILES)
def test_profile_that_does_not_fit_the_family_is_refused(profile: Path, what: str) -> None:
    changes, said = PROFILES[what]
    assert said in refusal(profile, changes)


@pytest.mark.parametrize(
    ("changes", "said"), [({"buckets": [[72, 64]]}, "multiples of 16"), ({"sampler": "ddim"}, "possible: euler")]
)
def test_pool_that_does_not_fit_the_family_is_refused(profile: Path, changes: dict[str, Any], said: str) -> None:
    final = {**json.loads(profile.read_text())["final"], **changes}
    assert said in refusal(profile, {"final": final})


def refusal(profile: Path, changes: dict[str, Any]) -> str:
    path = profile.parent / "other.json"
    path.write_text(json.dumps({**json.loads(profile.read_text()), **changes}))
    with pytest.raises(StartupError) as refused:
        plan_of(path)
    return refused.value.cause
