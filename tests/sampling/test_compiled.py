"""A compiled network: after the warm-up nothing compiles, whoever is painted, and pictures stay what they were.

The compiler's front half alone runs here (backend "eager"): it decides what is compiled anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch

from core.profile import Pool
from core.recipe import StyleUse
from sampling.bank import Bank
from sampling.compiled import Shape, compilations, keep_compiled_in
from sampling.decode import Decoder
from sampling.denoiser import Denoiser
from sampling.encoder import Encoder
from sampling.loop import StepLoop
from sampling.model import Model, load_model
from sampling.rows import Row
from sampling.tuning import Compile, Tuning
from sampling.warmup import sizes_up_to, warm
from shared_cache.embeddings import ByteLRU
from styles.catalogue import load_catalogue
from tests.sampling.conftest import painted

ROWS = 4
TOLERANCE = 2e-4  # of latents after two steps, in another batch


def loop_of(model: Model) -> tuple[StepLoop, Bank]:
    bank = Bank(model, load_catalogue(model.profile.styles).paths(), 4, lambda: None, "final")
    return StepLoop(Denoiser(model, "final", backend="eager"), bank, ROWS, perf_counter), bank


@pytest.fixture(scope="module")
def pool(model: Model) -> Pool:
    final = model.profile.final
    return replace(final, buckets=(final.buckets[0], final.buckets[3]))


@pytest.fixture(scope="module")
def warmed(bundle: Path, encoder: Encoder, pool: Pool) -> Iterator[StepLoop]:
    compiled = load_model(bundle, roles=("final", "decode"), tuning=Tuning(compile=Compile.REGIONAL))
    loop, bank = loop_of(compiled)
    before = compilations()
    warm(loop, Encoder(compiled, ByteLRU(2**24)), Decoder(compiled), pool, ["ink", "noto"])
    assert compilations() > before  # so that one which compiled would be seen
    yield loop
    bank.close()


@pytest.fixture(scope="module")
def plain(model: Model) -> Iterator[StepLoop]:
    loop, bank = loop_of(model)
    yield loop
    bank.close()


def rows_of(encoder: Encoder, pool: Pool, kinds: str, bucket: int = 0, prompt: str = "a red kite") -> list[Row]:
    """One row a letter: p plain, g guided, i and n in a style, b in both."""
    uses = {"i": ("ink",), "n": ("noto",), "b": ("ink", "noto")}
    return [
        Row(
            id=f"{i}",
            bucket=pool.buckets[bucket],
            steps=2,
            guidance_scale=3.0 if kind == "g" else 1.0,
            sampler=pool.sampler,
            seed=i,
            styles=tuple(StyleUse(name, 0.7) for name in uses.get(kind, ())),
            embedding=encoder.encode(prompt),
            negative=encoder.encode(""),
        )
        for i, kind in enumerate(kinds)
    ]


@pytest.mark.parametrize("bucket", [0, 1])
@pytest.mark.parametrize("kinds", ["p", "i", "g", "pi", "gp", "gpi", "pib", "bnip", "gg", "ppp"])
def test_nothing_compiles_on_live_traffic(
    warmed: StepLoop, plain: StepLoop, encoder: Encoder, pool: Pool, kinds: str, bucket: int
) -> None:
    """Batches of every number of rows, with and without guidance, in every mixture of styles."""
    before, unserved = compilations(), warmed.denoiser.unserved
    found = painted(warmed, rows_of(encoder, pool, kinds, bucket))
    assert (compilations(), warmed.denoiser.unserved) == (before, unserved)
    expected = painted(plain, rows_of(encoder, pool, kinds, bucket))
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_what_no_shape_fits_runs_as_it_is(warmed: StepLoop, plain: StepLoop, encoder: Encoder, pool: Pool) -> None:
    """Text of two chunks: told, and nothing is compiled for it."""
    before, unserved = compilations(), warmed.denoiser.unserved
    long = "a red kite over the harbour " * 20
    found = painted(warmed, rows_of(encoder, pool, "pi", prompt=long))
    assert (compilations(), warmed.denoiser.unserved - unserved) == (before, 2)
    torch.testing.assert_close(found, painted(plain, rows_of(encoder, pool, "pi", prompt=long)), atol=TOLERANCE, rtol=0)


def test_a_second_try_in_float32_compiles_nothing(bundle: Path, encoder: Encoder, pool: Pool) -> None:
    model = load_model(bundle, dtype=torch.bfloat16, roles=("final",), tuning=Tuning(compile=Compile.REGIONAL))
    loop, bank = loop_of(model)
    before = compilations()
    row = rows_of(encoder, pool, "p")[0]
    loop.denoiser.prepare(row)
    assert loop.denoiser.in_float32(row).isfinite().all()
    assert compilations() == before
    bank.close()


def test_served_sizes_are_powers_of_two_and_the_most() -> None:
    assert [sizes_up_to(rows) for rows in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"rows": 2}, True),
        ({"rank": 8}, True),
        ({"rows": 5}, False),
        ({"rank": 0}, False),
        ({"rank": 32}, False),
        ({"sizes": ((4, 16, 16), (154, 64))}, False),
        ({"sizes": ((4, 16, 24), (77, 64))}, False),
    ],
)
def test_text_and_size_are_never_padded(change: dict[str, Any], fits: bool) -> None:
    shape = Shape(((4, 16, 16), (77, 64)), 4, 16)
    assert shape.fits(replace(shape, **change)) is fits


def test_compiled_code_is_kept_where_nobody_chose_a_place(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    keep_compiled_in(tmp_path, environment)
    assert environment == {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
    keep_compiled_in(tmp_path / "other", environment)
    assert environment == {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
