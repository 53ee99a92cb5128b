"""The bank in a step loop on the bundled model: who waits, who is let in, what is kept and what is refused."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from core.errors import InvalidInput, NonFinite
from core.profile import Bucket
from core.recipe import Sampler, StyleUse
from sampling import lora
from sampling.bank import MAX_OVERTAKEN, Bank
from sampling.denoiser import Denoiser
from sampling.loop import StepLoop
from sampling.model import Model
from sampling.rows import Row
from tests.sampling.conftest import Clock, embedding_of, row_of
from tests.sampling.style_files import changed

SMALL = Bucket(56, 72)
INK, NOTO = StyleUse("ink", 1.0), StyleUse("noto", 0.5)
PATIENCE_S = 60.0


@pytest.fixture
def paths(bundle: Path, tmp_path: Path) -> dict[str, Path]:
    """Style files by id, copies that a test may change; tests add their own, as a catalogue does."""
    return {style: Path(shutil.copy(bundle / "styles" / f"{style}.safetensors", tmp_path)) for style in ("ink", "noto")}


class Harness:
    """A loop with a bank of its own on the bundled model's final UNet."""

    def __init__(self, model: Model, denoiser: Denoiser, paths: dict[str, Path], slots: int = 4) -> None:
        self.notified = threading.Event()
        self.bank = Bank(model, paths, slots, self.notified.set)
        self.loop = StepLoop(denoiser, self.bank, 16, Clock())
        self.failed: dict[str, Exception] = {}
        self.finished: dict[str, Tensor] = {}

    def join(self, row_id: str, *styles: StyleUse, **changes: Any) -> Row:
        row = row_of(row_id, styles=styles, bucket=SMALL, **changes)
        self.loop.join(row)
        return row

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline_s, "the condition did not come true"
            report = self.loop.step()
            self.failed |= {row.id: error for row, error in report.failed}
            self.finished |= {row.id: row.latents for row in report.finished}
            if report.batch_size == 0:
                time.sleep(0.001)

    def drain(self) -> None:
        self.until(lambda: not self.loop.rows)

    def picture(self, *styles: StyleUse, **changes: Any) -> Tensor:
        """One row run to its end."""
        self.join("picture", *styles, **{"steps": 1, **changes})
        self.drain()
        assert not self.failed
        return self.finished["picture"]

    def refusal(self, *styles: StyleUse) -> InvalidInput:
        self.join("bad", *styles)
        self.drain()
        error = self.failed.pop("bad")
        assert isinstance(error, InvalidInput)
        return error

    @property
    def sets_at_hand(self) -> list[set[str]]:
        """File names of each slot, least recently used first."""
        return [{source.path.stem for source in key} for key in self.bank._slots]


Make = Callable[..., Harness]


@pytest.fixture(scope="module")
def denoiser(model: Model) -> Denoiser:
    """One for all, so that the network is recorded once."""
    return Denoiser(model, "final")


@pytest.fixture
def make(model: Model, denoiser: Denoiser, paths: dict[str, Path]) -> Iterator[Make]:
    made: list[Harness] = []

    def harness(slots: int = 4) -> Harness:
        made.append(Harness(model, denoiser, paths, slots))
        return made[-1]

    yield harness
    for one in made:
        one.bank.close()


def a_mixed_set_of_rows() -> list[tuple[str, tuple[StyleUse, ...], dict[str, Any]]]:
    rng = torch.Generator().manual_seed(0)
    text = embedding_of(0.0)
    kinds: list[tuple[tuple[StyleUse, ...], Sampler, int, float]] = [
        ((INK,), Sampler.EULER_A, 4, 3.0),
        ((), Sampler.EULER, 3, 3.0),
        ((NOTO,), Sampler.LCM, 2, 1.0),
        ((INK, NOTO), Sampler.DPMPP_2M, 4, 2.0),
        ((StyleUse("ink", -0.4),), Sampler.DDIM, 3, 1.0),
    ]
    rows = []
    for i, (styles, sampler, steps, guidance) in enumerate(kinds):
        embedding = type(text)(torch.randn(1, 77, 256, generator=rng), text.pooled, 1)
        fields = {"sampler": sampler, "steps": steps, "guidance_scale": guidance, "seed": i, "embedding": embedding}
        rows.append((str(i), styles, fields))
    return rows


def test_mixed_rows_share_a_forward_and_equal_solo(make: Make) -> None:
    together = make()
    for row_id, styles, fields in a_mixed_set_of_rows():
        together.join(row_id, *styles, **fields)
    deadline_s = time.monotonic() + PATIENCE_S
    while not all(row.ready for row in together.loop.rows) and time.monotonic() < deadline_s:
        together.bank.settle()
        time.sleep(0.001)
    assert together.loop.step().batch_size == 5
    together.drain()
    alone = make()
    for row_id, styles, fields in a_mixed_set_of_rows():
        latents = alone.picture(*styles, **fields)
        assert float((latents - together.finished[row_id]).abs().max()) <= 1e-4


def test_base_is_bit_equal_after_styles(make: Make) -> None:
    harness = make(1)
    base = harness.picture()
    styled = harness.picture(INK)
    assert not torch.allclose(styled, base, atol=1e-3)
    assert torch.equal(harness.picture(), base)
    other = harness.picture(NOTO)
    assert not torch.allclose(other, styled, atol=1e-3)
    assert torch.equal(harness.picture(INK), styled)
    assert torch.equal(harness.picture(), base)


def test_order_of_styles_does_not_matter(make: Make) -> None:
    harness = make()
    both = harness.picture(INK, NOTO)
    assert torch.equal(harness.picture(NOTO, INK), both)
    assert harness.sets_at_hand == [{"ink", "noto"}]


def test_other_weights_need_no_other_slot(make: Make) -> None:
    harness = make()
    full = harness.picture(INK)
    assert not torch.allclose(harness.picture(StyleUse("ink", 0.2)), full, atol=1e-3)
    assert torch.equal(harness.picture(INK), full)
    assert torch.equal(harness.picture(StyleUse("ink", 0.5), StyleUse("ink", 0.5)), full)
    assert len(harness.sets_at_hand) == 1


def test_style_after_another_left_its_slot_equals_a_fresh_one(make: Make) -> None:
    harness = make(1)
    for styles in ((INK,), (NOTO,)):
        harness.picture(*styles)
    assert harness.sets_at_hand == [{"noto"}]
    assert torch.equal(harness.picture(NOTO, steps=3), make(1).picture(NOTO, steps=3))


def test_least_recently_used_set_leaves(make: Make, paths: dict[str, Path], tmp_path: Path) -> None:
    paths["third"] = changed(paths["ink"], tmp_path / "third.safetensors", 2.0)
    harness = make(2)
    for styles in ((INK,), (NOTO,), (INK,), (StyleUse("third", 1.0),)):
        harness.picture(*styles)
    assert harness.sets_at_hand == [{"ink"}, {"third"}]
    assert harness.bank.resident() == ("ink", "third")


def test_more_sets_than_slots_wait_in_order_and_hold_nobody_up(make: Make) -> None:
    harness = make(1)
    harness.picture(INK)
    harness.join("runs", INK, steps=3)
    waits = harness.join("waits", NOTO, steps=1)
    also = harness.join("waits too", INK, NOTO, steps=1)
    harness.join("plain", steps=2)
    harness.bank._loads[harness.bank._waiting["waits too"].key].result(PATIENCE_S)  # no step is made meanwhile
    assert not waits.ready and not also.ready
    joins_late = harness.join("same style", INK, steps=1)
    assert joins_late.ready
    order: list[str] = []
    harness.until(lambda: order.extend(r for r in harness.finished if r not in order) or not harness.loop.rows)
    assert not harness.failed
    assert order.index("waits") < order.index("waits too")
    assert order.index("runs") < order.index("waits")
    assert order.index("plain") < order.index("waits")


def test_row_that_waits_is_not_passed_for_ever(make: Make) -> None:
    harness = make(1)
    harness.picture(INK)
    harness.join("0", INK, steps=2)
    waits = harness.join("waits", NOTO, steps=1)
    harness.bank._loads[harness.bank._waiting["waits"].key].result(PATIENCE_S)
    for number in range(1, 4 * MAX_OVERTAKEN):
        harness.join(str(number), INK, steps=2)
        harness.loop.step()
        if waits.ready:
            break
    else:
        raise AssertionError("it never came to its turn")
    assert number <= MAX_OVERTAKEN + 4
    harness.drain()


def test_loading_wakes_a_loop_that_sleeps(make: Make) -> None:
    harness = make()
    harness.join("a", INK, steps=1)
    assert harness.notified.wait(PATIENCE_S)
    assert harness.loop.step().batch_size == 1


def test_steps_go_on_while_a_style_is_read(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    harness, go = make(), threading.Event()
    read = lora.read

    def slow(*given: Any) -> Any:
        go.wait(PATIENCE_S)
        return read(*given)

    monkeypatch.setattr(lora, "read", slow)
    harness.join("styled", INK, steps=1)
    harness.join("plain", steps=2)
    assert [[row.id for row in harness.loop.step().stepped] for _ in range(2)] == [["plain"], ["plain"]]
    report = harness.loop.step()
    assert (report.batch_size, report.bucket, report.failed) == (0, None, [])
    go.set()
    harness.drain()
    assert set(harness.finished) == {"styled"}


def test_row_that_leaves_while_it_waits_is_forgotten(make: Make) -> None:
    harness = make()
    harness.join("a", INK)
    assert harness.loop.leave("a")
    harness.join("b", steps=1)
    harness.drain()
    assert harness.bank._waiting == {} and harness.bank._pins == {}


def test_slots_are_let_go_of_by_rows_that_leave(make: Make) -> None:
    harness = make(1)
    row = harness.join("a", INK)
    harness.until(lambda: row.ready)
    harness.loop.leave("a")
    harness.picture(NOTO)
    assert harness.sets_at_hand == [{"noto"}]


def test_file_replaced_under_the_same_name_is_a_new_style(make: Make, paths: dict[str, Path], tmp_path: Path) -> None:
    """Of the same size and with the same time of change, as a copying tool may leave it."""
    path = paths["mine"] = Path(shutil.copy(paths["ink"], tmp_path / "mine.safetensors"))
    harness, mine = make(), StyleUse("mine", 1.0)
    first, stat = harness.picture(mine, steps=3), path.stat()
    running = harness.join("running", mine, steps=3)
    harness.until(lambda: running.step_index == 1)
    shutil.copy(paths["noto"], path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    new = harness.join("new", mine, steps=3)
    harness.drain()
    torch.testing.assert_close(harness.finished["running"], first, atol=1e-4, rtol=0)
    torch.testing.assert_close(harness.finished["new"], harness.picture(StyleUse("noto", 1.0), steps=3))
    assert new.placed is not running.placed


def test_row_runs_on_when_its_file_is_gone_and_new_ones_are_refused(make: Make, paths: dict[str, Path]) -> None:
    harness = make()
    row = harness.join("running", INK, steps=2)
    harness.until(lambda: row.step_index == 1)
    paths["ink"].unlink()
    assert "ink cannot be read" in harness.refusal(INK).message
    harness.drain()
    assert set(harness.finished) == {"running"}


def test_style_that_does_not_fit_is_refused_before_a_slot_is_touched(
    make: Make, paths: dict[str, Path], tmp_path: Path
) -> None:
    tensors = load_file(paths["ink"])
    name = next(key for key in tensors if "attn1.to_q.lora_A" in key)
    paths["bad"] = tmp_path / "bad.safetensors"
    save_file({**tensors, name: torch.zeros(tensors[name].shape[0], 99)}, paths["bad"])
    harness = make(1)
    base, styled = harness.picture(), harness.picture(INK)
    assert "bad.safetensors does not fit this model" in harness.refusal(INK, StyleUse("bad", 1.0)).message
    assert harness.sets_at_hand == [{"ink"}]
    assert torch.equal(harness.picture(INK), styled)
    assert torch.equal(harness.picture(), base)


def test_bad_style_fails_its_row_alone(make: Make, paths: dict[str, Path], tmp_path: Path) -> None:
    paths["cut"] = tmp_path / "cut.safetensors"
    paths["cut"].write_bytes(paths["ink"].read_bytes()[:1000])
    harness = make()
    harness.join("cut", StyleUse("cut", 1.0))
    harness.join("good", INK, steps=2)
    harness.join("unknown", StyleUse("unknown", 1.0))
    harness.drain()
    assert set(harness.failed) == {"cut", "unknown"} and set(harness.finished) == {"good"}
    assert all(isinstance(error, InvalidInput) for error in harness.failed.values())


def test_style_of_absurd_values_is_named_and_fails_its_row_alone(
    make: Make, paths: dict[str, Path], tmp_path: Path
) -> None:
    paths["huge"] = tmp_path / "huge.safetensors"
    save_file({key: tensor.float() * 1e20 for key, tensor in load_file(paths["ink"]).items()}, paths["huge"])
    harness = make()
    for row_id, style in (("huge", "huge"), ("good", "ink")):
        harness.join(row_id, StyleUse(style, 2.0), steps=2)
    harness.join("plain", steps=2)
    harness.drain()
    assert set(harness.failed) == {"huge"} and set(harness.finished) == {"good", "plain"}
    error = harness.failed["huge"]
    assert isinstance(error, NonFinite) and error.field == "styles" and "huge:2" in error.message


def test_style_may_be_mended_and_tried_again(make: Make, paths: dict[str, Path], tmp_path: Path) -> None:
    path = paths["mine"] = tmp_path / "mine.safetensors"
    path.write_bytes(paths["ink"].read_bytes()[:1000])
    harness, mine = make(), StyleUse("mine", 1.0)
    harness.refusal(mine)
    shutil.copy(paths["ink"], path)
    assert torch.equal(harness.picture(mine), harness.picture(INK))
