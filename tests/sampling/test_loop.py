"""Joining, leaving, sharing a forward, and what one bad row does to the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from core.errors import InvalidInput, NonFinite
from core.profile import Bucket
from core.recipe import Sampler, StyleUse
from sampling.bank import Bank
from sampling.denoiser import Denoiser
from sampling.loop import BATCH_TOLERANCE, StepLoop
from sampling.model import Model
from sampling.rows import Row
from tests.sampling.conftest import Clock, NoStyles, SmallUNet, embedding_of, row_of

WIDE, SMALL = Bucket(144, 112), Bucket(56, 72)
POISON = 9.0  # a text mean that the poisoned network answers badly


class PoisonedUNet(SmallUNet):
    """Gives NaN, or raises, for rows of the poisoned text; in fp32 it may recover."""

    def __init__(self, raises: bool = False, recovers: bool = False) -> None:
        super().__init__()
        self.raises, self.recovers = raises, recovers

    def forward(self, sample: Tensor, timestep: Tensor, **given: Any) -> tuple[Tensor]:
        text = given["encoder_hidden_states"].float().mean(dim=(1, 2))
        bad = text > POISON - 1
        if bad.any() and self.raises:
            raise RuntimeError("out of memory")
        output = super().forward(sample, timestep, **given)[0]
        if not (self.recovers and sample.dtype is torch.float32):
            output[bad] = torch.nan
        return (output,)


def loop_of(model: Model, max_network_rows: int = 16, bank: Any = None, clock: Clock | None = None) -> StepLoop:
    return StepLoop(Denoiser(model, "final"), bank or NoStyles(), max_network_rows, clock or Clock())


def drain(loop: StepLoop) -> dict[str, Row]:
    done: dict[str, Row] = {}
    while loop.rows:
        report = loop.step()
        assert not report.failed
        done |= {row.id: row for row in report.finished}
    return done


def test_step_reports_nothing_when_no_row_is_there(small_model: Model) -> None:
    report = loop_of(small_model).step()
    assert (report.batch_size, report.bucket, report.finished) == (0, None, [])


def test_step_counts_rows_and_network_rows(small_model: Model) -> None:
    loop = loop_of(small_model)
    for row_id, guidance in (("a", 1.0), ("b", 4.0), ("c", 0.0)):
        loop.join(row_of(row_id, guidance_scale=guidance))
    report = loop.step()
    assert (report.batch_size, report.network_rows, report.bucket) == (3, 4, Bucket(128, 128))
    assert [row.id for row in report.stepped] == ["a", "b", "c"]


def test_step_measures_with_the_clock_it_was_given(small_model: Model) -> None:
    clock = Clock()

    class SlowBank(NoStyles):
        def settle(self) -> list[tuple[Row, Exception]]:
            clock.now_s += 2.5
            return []

    loop = loop_of(small_model, bank=SlowBank(), clock=clock)
    loop.join(row_of())
    assert loop.step().seconds == 2.5


def test_rows_equal_solo_when_they_join_and_leave_at_any_step(small_model: Model) -> None:
    """Two ten-step jobs interleaved, a third that joins late and a fourth that is dropped."""
    loop = loop_of(small_model)
    rows = [row_of(str(i), steps=10, sampler=sampler, seed=i) for i, sampler in enumerate(Sampler)]
    loop.join(rows[0])
    loop.step()
    loop.join(rows[1])
    loop.join(rows[4])
    loop.step()
    loop.join(rows[2])
    loop.step()
    assert loop.leave("4")
    assert not loop.leave("4")
    loop.join(rows[3])
    done = drain(loop)
    for i, sampler in list(enumerate(Sampler))[:4]:
        solo = loop_of(small_model)
        solo.join(row_of(str(i), steps=10, sampler=sampler, seed=i))
        torch.testing.assert_close(done[str(i)].latents, drain(solo)[str(i)].latents, atol=1e-5, rtol=0)


def test_batch_equals_solo_on_the_bundled_model(model: Model) -> None:
    """Different samplers, steps, guidance and texts in one batch, within the published tolerance."""

    def rows() -> list[Row]:
        torch.manual_seed(0)
        texts = [replace(embedding_of(0.0), prompt_embeds=torch.randn(1, 77, 256)) for _ in range(3)]
        kinds = [(Sampler.EULER_A, 3, 4.0), (Sampler.LCM, 2, 1.0), (Sampler.DPMPP_2M, 3, 2.0)]
        return [
            row_of(str(i), texts[i], sampler=sampler, steps=steps, guidance_scale=guidance, seed=i, bucket=SMALL)
            for i, (sampler, steps, guidance) in enumerate(kinds)
        ]

    loop = loop_of(model)  # one for all: its network is recorded once
    for row in rows():
        loop.join(row)
    done = drain(loop)
    for row in rows():
        loop.join(row)
        drain(loop)
        assert float((row.latents - done[row.id].latents).abs().max()) <= BATCH_TOLERANCE


def test_step_takes_the_group_that_waited_longest(small_model: Model) -> None:
    loop = loop_of(small_model)
    loop.join(row_of("square"))
    loop.join(row_of("wide", bucket=WIDE))
    loop.join(row_of("square2"))
    loop.join(row_of("small", bucket=SMALL))
    taken = [[row.id for row in loop.step().stepped] for _ in range(6)]
    assert taken[:3] == [["square", "square2"], ["wide"], ["small"]]
    assert taken[3:] == taken[:3]


def test_step_leaves_rows_for_the_next_when_the_network_is_full(small_model: Model) -> None:
    loop = loop_of(small_model, max_network_rows=3)
    for row_id, guidance in (("a", 4.0), ("b", 4.0), ("c", 1.0)):
        loop.join(row_of(row_id, guidance_scale=guidance))
    assert [row.id for row in loop.step().stepped] == ["a", "c"]
    assert [row.id for row in loop.step().stepped] == ["b", "c"]


def test_step_runs_a_guided_row_even_when_one_network_row_is_allowed(small_model: Model) -> None:
    loop = loop_of(small_model, max_network_rows=1)
    loop.join(row_of(guidance_scale=4.0))
    assert loop.step().network_rows == 2


def test_rows_of_other_chunk_counts_take_turns(small_model: Model) -> None:
    loop = loop_of(small_model)
    loop.join(row_of("short"))
    loop.join(row_of("long", embedding_of(0.1, chunks=2)))
    assert loop.step().batch_size == 1


def test_join_refuses_a_second_row_of_one_id(small_model: Model) -> None:
    loop = loop_of(small_model)
    loop.join(row_of())
    with pytest.raises(ValueError, match="already"):
        loop.join(row_of())


@pytest.mark.parametrize(
    "changes",
    [{"init_latents": torch.zeros(8, 4, 4), "strength": 0.5}, {"guidance_scale": 3.0, "negative": None}, {"steps": 0}],
)
def test_join_refuses_what_does_not_fit(small_model: Model, changes: dict[str, Any]) -> None:
    loop = loop_of(small_model)
    with pytest.raises(InvalidInput):
        loop.join(row_of(**changes))
    assert loop.rows == []


@pytest.mark.parametrize("raises", [False, True])
def test_bad_row_fails_alone_when_the_network_fails_on_it(small_model: Model, raises: bool) -> None:
    loop = loop_of(replace(small_model, network_final=PoisonedUNet(raises)))
    loop.join(row_of("good"))
    loop.join(row_of("bad", embedding_of(POISON)))
    report = loop.step()
    assert [row.id for row, _ in report.failed] == ["bad"]
    assert isinstance(report.failed[0][1], RuntimeError if raises else NonFinite)
    assert [row.id for row in loop.rows] == ["good"]
    assert bool(torch.isfinite(drain(loop)["good"].latents).all())


@pytest.mark.parametrize("recovers", [True, False])
def test_non_finite_row_gets_one_try_in_fp32(small_model: Model, recovers: bool) -> None:
    unet = PoisonedUNet(recovers=recovers).to(torch.bfloat16)
    loop = loop_of(replace(small_model, network_final=unet, dtype=torch.bfloat16))
    loop.join(row_of("bad", embedding_of(POISON), steps=1))
    report = loop.step()
    assert [row.id for row in report.finished] == (["bad"] if recovers else [])
    assert [type(error) for _, error in report.failed] == ([] if recovers else [NonFinite])
    assert unet.dtype is torch.bfloat16


def test_row_fails_when_nan_is_put_into_its_latents(small_model: Model) -> None:
    loop = loop_of(small_model)
    row = row_of()
    loop.join(row)
    row.latents[0, 0, 0] = torch.nan
    assert isinstance(loop.step().failed[0][1], NonFinite)


def test_rows_of_a_missing_style_fail_and_others_go_on(model: Model, small_model: Model) -> None:
    loop = loop_of(small_model, bank=Bank(model, {}, 1, lambda: None))
    loop.join(row_of("styled", styles=(StyleUse("gone", 1.0),)))
    loop.join(row_of("plain"))
    report = loop.step()
    assert [row.id for row, _ in report.failed] == ["styled"]
    assert isinstance(report.failed[0][1], InvalidInput)
    assert [row.id for row in report.stepped] == ["plain"]
    assert set(drain(loop)) == {"plain"}


def test_row_that_fails_alone_is_reported(model: Model, small_model: Model) -> None:
    loop = loop_of(small_model, bank=Bank(model, {}, 1, lambda: None))
    loop.join(row_of("styled", styles=(StyleUse("gone", 1.0),)))
    report = loop.step()
    assert ([row.id for row, _ in report.failed], report.batch_size, loop.rows) == (["styled"], 0, [])


def test_rows_that_wait_for_their_styles_are_passed_over(small_model: Model) -> None:
    """The bank here gives nothing to anybody."""
    loop = loop_of(small_model)
    loop.join(row_of("styled", styles=(StyleUse("ink", 1.0),)))
    assert loop.step().batch_size == 0
    loop.join(row_of("plain", steps=1))
    assert [row.id for row in loop.step().stepped] == ["plain"]
    assert [row.id for row in loop.rows] == ["styled"]
    assert loop.step().batch_size == 0


def test_loop_tells_the_bank_who_comes_and_goes(small_model: Model) -> None:
    bank = NoStyles()
    loop = loop_of(small_model, bank=bank)
    loop.join(row_of("a", steps=1))
    loop.join(row_of("b", steps=2))
    loop.step()
    assert (bank.entered, bank.left) == (["a", "b"], ["a"])
    loop.leave("b")
    assert bank.left == ["a", "b"]
