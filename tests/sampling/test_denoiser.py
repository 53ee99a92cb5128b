"""Guidance, micro-conditioning and unequal prompts, on the bundled model where a picture's numbers count."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline
from torch import Tensor

from core.profile import Bucket
from core.recipe import Sampler
from core.settings import BUNDLED_MODEL
from sampling.denoiser import Denoiser
from sampling.embedding import CHUNK_TOKENS, Embedding
from sampling.encoder import Encoder
from sampling.model import Model
from sampling.rows import Row
from tests.sampling.conftest import SmallUNet, embedding_of, row_of
from tests.sampling.test_samplers import run

TALL = Bucket(56, 72)


@pytest.fixture(scope="module")
def bundled(model: Model) -> Denoiser:
    """Shared, so that the network is recorded once."""
    return Denoiser(model, "final")


@pytest.fixture
def small(small_model: Model) -> Denoiser:
    return Denoiser(small_model, "final")


def first_estimate(denoiser: Denoiser, row: Row) -> Tensor:
    denoiser.prepare(row)
    return denoiser([row])[0]


def test_picture_equals_the_stock_pipeline(model: Model, encoder: Encoder) -> None:
    """Text encoders, guidance, micro-conditioning, noise and sampler together, in a bucket that is not square."""
    pipeline = StableDiffusionXLPipeline(
        vae=model.vae,
        text_encoder=model.text().towers[0].encoder,
        text_encoder_2=model.text().towers[1].encoder,
        tokenizer=model.text().towers[0].tokenizer,
        tokenizer_2=model.text().towers[1].tokenizer,
        unet=model.network_final,
        scheduler=EulerDiscreteScheduler.from_pretrained(BUNDLED_MODEL, subfolder="scheduler"),
        force_zeros_for_empty_prompt=False,
        add_watermarker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    stock = pipeline(
        "a fox in the snow",
        negative_prompt="blurry",
        width=TALL.width,
        height=TALL.height,
        num_inference_steps=2,
        guidance_scale=3.0,
        generator=torch.Generator().manual_seed(5),
        output_type="latent",
    ).images[0]
    row = row_of(
        embedding=encoder.encode("a fox in the snow"),
        negative=encoder.encode("blurry"),
        bucket=TALL,
        steps=2,
        guidance_scale=3.0,
        seed=5,
    )
    torch.testing.assert_close(run(model, [row])[0], stock, atol=1e-4, rtol=0)


def test_micro_conditioning_gives_height_first(small: Denoiser, small_unet: SmallUNet) -> None:
    first_estimate(small, row_of(bucket=TALL, guidance_scale=2.0))
    time_ids = small_unet.calls[0]["added_cond_kwargs"]["time_ids"]
    assert time_ids.tolist() == [[72, 56, 0, 0, 72, 56]] * 2


@pytest.mark.parametrize("guidance_scale", [0.0, 0.5, 1.0])
def test_guidance_of_one_or_less_ignores_the_negative(
    small: Denoiser, small_unet: SmallUNet, guidance_scale: float
) -> None:
    estimates = [
        first_estimate(small, row_of(guidance_scale=guidance_scale, negative=negative))
        for negative in (None, embedding_of(0.9))
    ]
    assert torch.equal(*estimates)
    assert [len(call["sample"]) for call in small_unet.calls] == [1, 1]


def test_guidance_moves_away_from_the_negative(small: Denoiser) -> None:
    row = row_of(guidance_scale=3.0, negative=embedding_of(0.5))
    plain, negative = (first_estimate(small, row_of(embedding=embedding_of(value))) for value in (0.1, 0.5))
    guided = first_estimate(small, row)
    torch.testing.assert_close(guided, negative + 3.0 * (plain - negative), atol=1e-4, rtol=1e-4)


def test_guided_and_plain_rows_share_a_forward(small: Denoiser, small_unet: SmallUNet) -> None:
    def rows() -> list[Row]:
        return [row_of(str(i), embedding_of(0.1 * i), guidance_scale=g) for i, g in enumerate([1.0, 4.0, 1.0, 2.0])]

    together = rows()
    for row in together:
        small.prepare(row)
    estimates = small(together)
    assert len(small_unet.calls[0]["sample"]) == 6
    for estimate, row in zip(estimates, rows(), strict=True):
        torch.testing.assert_close(estimate, first_estimate(small, row), atol=1e-5, rtol=0)


def test_absent_negative_equals_an_empty_one(encoder: Encoder) -> None:
    assert encoder.encode("") is encoder.encode("")
    assert bool(torch.isfinite(encoder.encode(" ").prompt_embeds).all())


@pytest.mark.parametrize(("positive_words", "negative_words"), [(78, 0), (0, 78), (160, 78)])
def test_unequal_chunk_counts_run_and_equal_each_side_alone(
    bundled: Denoiser, encoder: Encoder, positive_words: int, negative_words: int
) -> None:
    """The padding of the shorter side is hidden: the guided estimate is made of what each side gives alone."""
    positive = encoder.encode(" ".join(["cat"] * positive_words) or "a fox")
    negative = encoder.encode(" ".join(["sea"] * negative_words))
    assert positive.chunks != negative.chunks
    alone = [first_estimate(bundled, row_of(embedding=side, bucket=TALL)) for side in (negative, positive)]
    guided = first_estimate(bundled, row_of(embedding=positive, negative=negative, guidance_scale=2.0, bucket=TALL))
    torch.testing.assert_close(guided, alone[0] + 2.0 * (alone[1] - alone[0]), atol=1e-3, rtol=1e-4)


def test_repeating_the_chunks_of_a_prompt_changes_nothing(bundled: Denoiser, encoder: Encoder) -> None:
    once = encoder.encode("a fox in the snow")
    twice = Embedding(once.prompt_embeds.repeat(1, 2, 1), once.pooled, once.token_count)
    assert twice.prompt_embeds.shape[1] == 2 * CHUNK_TOKENS
    torch.testing.assert_close(
        first_estimate(bundled, row_of(embedding=twice, bucket=TALL)),
        first_estimate(bundled, row_of(embedding=once, bucket=TALL)),
        atol=1e-4,
        rtol=0,
    )


def test_conditioning_is_gathered_once_while_the_rows_stay(small: Denoiser, small_unet: SmallUNet) -> None:
    row = row_of()
    small.prepare(row)
    small([row])
    small([row])
    first, second = (call["encoder_hidden_states"] for call in small_unet.calls)
    assert first is second


def test_network_sees_unit_variance_at_every_noise_level(small: Denoiser, small_unet: SmallUNet) -> None:
    for sampler in Sampler:
        first_estimate(small, row_of(sampler=sampler))
    for call in small_unet.calls:
        assert float(call["sample"].std()) == pytest.approx(1.0, abs=0.05)
        assert call["timestep"].tolist() == [999.0]


def test_lower_precision_network_gets_its_own_dtype(small_model: Model, small_unet: SmallUNet) -> None:
    halved = replace(small_model, network_final=small_unet.to(torch.bfloat16), dtype=torch.bfloat16)
    estimate = first_estimate(Denoiser(halved, "final"), row_of())
    assert small_unet.calls[0]["sample"].dtype is torch.bfloat16
    assert estimate.dtype is torch.float32
