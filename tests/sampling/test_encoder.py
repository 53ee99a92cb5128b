"""Embeddings against the stock pipeline and against compel, long texts, odd texts and many threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import redis
import torch
from compel import Compel, SplitLongTextMode
from compel.embeddings_provider import ReturnedEmbeddingsType
from compel.prompt_parser import Conjunction, FlattenedPrompt
from diffusers import StableDiffusionXLPipeline
from torch import Tensor

from core.errors import InvalidInput
from core.prompt import parse_weights
from core.recipe import StyleUse
from core.settings import BUNDLED_MODEL
from sampling.clip_reader import MAX_LOWERED_WEIGHTS
from sampling.embedding import Embedding
from sampling.encoder import Encoder
from sampling.model import Model
from shared_cache.embeddings import ByteLRU
from shared_cache.latents import pack
from shared_cache.shared_embeddings import SharedEmbeddings
from styles.catalogue import load_catalogue
from tests.sampling.conftest import embedding_of

TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def stock(model: Model) -> StableDiffusionXLPipeline:
    first, second = model.text().towers
    parts = StableDiffusionXLPipeline.from_pretrained
    return parts(
        BUNDLED_MODEL,
        text_encoder=first.encoder,
        text_encoder_2=second.encoder,
        tokenizer=first.tokenizer,
        tokenizer_2=second.tokenizer,
        unet=model.network_final,
        vae=model.vae,
    )


def by_compel(model: Model, prompt: str) -> Tensor:
    """The same prompt through compel's own conjunctions. Shapes: [1, 77 * k, D]."""
    fragments = [(segment.text, segment.weight) for segment in parse_weights(prompt)]
    sides = []
    for tower in model.text().towers:
        compel = Compel(
            tower.tokenizer,
            tower.encoder,
            truncate_long_prompts=False,
            returned_embeddings_type=ReturnedEmbeddingsType.PENULTIMATE_HIDDEN_STATES_NON_NORMALIZED,
            split_long_text_mode=SplitLongTextMode.WORDS,
        )
        conjunction = Conjunction([FlattenedPrompt(fragments)])
        sides.append(compel.build_conditioning_tensor_for_conjunction(conjunction)[0])
    return torch.cat(sides, dim=-1)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "prompt", ["a cat on the beach", "", " ", 'A+B - c.and\\(d\\) -- "f".swap, g:1.4', "テスト 😀 שלום"]
)
def test_encode_equals_the_stock_pipeline_when_unweighted(
    encoder: Encoder, stock: StableDiffusionXLPipeline, prompt: str
) -> None:
    literal = prompt.replace("\\", "")
    embeds, _, pooled, _ = stock.encode_prompt(literal, do_classifier_free_guidance=False)
    ours = encoder.encode(prompt)
    assert_close(ours.prompt_embeds, embeds)
    assert_close(ours.pooled, pooled)


@pytest.mark.parametrize(
    "prompt",
    [
        "a (cat:1.5) on the beach",
        "a (cat:0.4) on the beach",
        "a [cat] on a (((red))) beach, (sun:0)",
        "a (hedgehog:0.5) and a (pear:1.2) " + "on the grass under a tree " * 20,
    ],
)
def test_encode_equals_compel_when_weighted(model: Model, encoder: Encoder, prompt: str) -> None:
    assert_close(encoder.encode(prompt).prompt_embeds, by_compel(model, prompt))


def test_encode_repels_more_when_a_segment_weighs_less(encoder: Encoder) -> None:
    plain = encoder.encode("a cat on the beach").prompt_embeds
    distances = [
        float((encoder.encode(f"a (cat:{weight}) on the beach").prompt_embeds - plain).norm())
        for weight in (1.0, 0.9, 0.5, 0.1)
    ]
    assert distances[0] <= TOLERANCE
    assert distances == sorted(distances)


@pytest.mark.parametrize("words", [75, 76, 150, 151, 400])
def test_encode_chunks_long_prompts_and_pools_once(encoder: Encoder, words: int) -> None:
    made = encoder.encode(" ".join(["cat"] * words))
    assert made.token_count == words
    assert made.chunks == -(-words // 75)
    assert made.pooled.shape == (1, 128)


def test_encode_lets_the_last_word_of_a_long_prompt_act(encoder: Encoder) -> None:
    start = "a cat on the grass " * 25
    ours = [encoder.encode(start + last).prompt_embeds for last in ("sunset", "desert")]
    assert not torch.allclose(ours[0], ours[1], atol=1e-3)


def test_encode_bounds_its_work_when_every_word_has_its_own_weight(encoder: Encoder) -> None:
    prompt = " ".join(f"(cat:{weight / 200})" for weight in range(1, 180))[:2000]
    made = encoder.encode(prompt)
    assert bool(torch.isfinite(made.prompt_embeds).all())
    assert MAX_LOWERED_WEIGHTS == 8


@pytest.mark.parametrize(
    "prompt", ["((((", "(a:", "pokemon_(creature)", "(a:1e9)", "( :0.5)", "()", "<|endoftext|> a cat"]
)
def test_encode_gives_finite_numbers_for_odd_brackets(encoder: Encoder, prompt: str) -> None:
    made = encoder.encode(prompt)
    assert bool(torch.isfinite(made.prompt_embeds).all())
    assert made.chunks == 1


def test_encode_refuses_a_weight_that_is_not_finite(encoder: Encoder) -> None:
    with pytest.raises(InvalidInput):
        encoder.encode("(a:nan)")


def test_encode_gives_zeros_for_nothing_only_when_the_pipeline_says_so(model: Model, encoder: Encoder) -> None:
    zeroing = Encoder(replace(model, texts={"final": replace(model.text(), zero_empty=True)}), ByteLRU(1 << 20))
    assert float(zeroing.encode("").prompt_embeds.abs().max()) == 0.0
    assert float(zeroing.encode("a").prompt_embeds.abs().max()) > 0.0
    assert float(encoder.encode("").prompt_embeds.abs().max()) > 0.0


def test_encode_answers_from_the_cache_when_asked_again(model: Model) -> None:
    cache: ByteLRU[Embedding] = ByteLRU(64 << 20)
    encoder = Encoder(model, cache, load_catalogue(model.profile.styles).paths())
    first = encoder.encode("a cat")
    assert encoder.encode("a cat", (StyleUse("ink", 1.0),)) is first, "ink acts on the UNet alone"
    assert (cache.stats().hits, cache.stats().misses, cache.stats().bytes) == (1, 1, first.nbytes)


def test_encode_survives_16_threads_of_250_encodes(model: Model) -> None:
    """Nothing is cached, so every call tokenises; the text encoders are stubbed to keep the test short."""

    class StubEncoder(torch.nn.Module):
        device = torch.device("cpu")

        def forward(self, ids: Tensor, **_: object) -> object:
            states = ids[..., None].float()
            return _Output(states[:, 0], (states, states))

    first, second = (replace(tower, encoder=StubEncoder()) for tower in model.text().towers)
    encoder = Encoder(replace(model, texts={"final": replace(model.text(), towers=(first, second))}), ByteLRU(0))
    prompts = [f"a cat {i} " * (i % 40 + 1) for i in range(250)]
    wanted = [encoder.encode(prompt).prompt_embeds for prompt in prompts]

    def work(_: int) -> int:
        return sum(torch.equal(encoder.encode(p).prompt_embeds, w) for p, w in zip(prompts, wanted, strict=True))

    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(work, range(16))) == [250] * 16


class _Output(tuple[object, ...]):
    """What a text encoder returns: pooled first, hidden states by name."""

    def __new__(cls, pooled: Tensor, hidden_states: tuple[Tensor, ...]) -> _Output:
        return super().__new__(cls, (pooled,))

    def __init__(self, pooled: Tensor, hidden_states: tuple[Tensor, ...]) -> None:
        self.hidden_states = hidden_states


def test_embedding_counts_its_chunks_and_bytes() -> None:
    made = embedding_of(0.5, chunks=3)
    assert made.chunks == 3
    assert made.nbytes == 4 * (3 * 77 * 256 + 128)


def test_shared_embedding_is_bit_equal_and_not_computed_again(
    model: Model, client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = ["", "a (cat:1.3) on the [beach]", "a cat " * 60]
    one, other = (Encoder(model, ByteLRU(1 << 26), shared=SharedEmbeddings(client, 60, 1 << 26)) for _ in range(2))
    made = [one.encode(prompt) for prompt in prompts]
    monkeypatch.setattr(other, "_encode", None)
    for prompt, mine in zip(prompts, made, strict=True):
        found = other.encode(prompt)
        assert torch.equal(found.prompt_embeds, mine.prompt_embeds) and torch.equal(found.pooled, mine.pooled)
        assert (found.token_count, found.prompt_embeds.dtype) == (mine.token_count, model.dtype)


@pytest.mark.parametrize("spoil", [lambda data: b"", lambda data: data[:100], lambda data: pack({"a": np.ones(2)})])
def test_spoiled_shared_embedding_is_made_anew(
    model: Model, client: redis.Redis, spoil: Callable[[bytes], bytes]
) -> None:
    one, other = (Encoder(model, ByteLRU(1 << 26), shared=SharedEmbeddings(client, 60, 1 << 26)) for _ in range(2))
    made = one.encode("a cat")
    (name,) = client.keys("fl:embedding:*")
    client.set(name, spoil(client.get(name) or b""))
    assert torch.equal(other.encode("a cat").prompt_embeds, made.prompt_embeds)
