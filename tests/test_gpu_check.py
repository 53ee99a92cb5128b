"""The script for a GPU, rehearsed: what fails is named with its error, and the rest is told all the same."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_check, gpu_sections
from benchmarks.gpu_check import main, parse
from benchmarks.gpu_model import REHEARSAL, random_model
from benchmarks.gpu_run import Check, Figures


def test_refuses_a_section_that_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--rehearse", "machine", "sleep"])
    assert "unknown section sleep; known are machine, step, final" in capsys.readouterr().err
    assert parse([]).sections == [name for name, _, _ in gpu_check.SECTIONS]


def test_goes_on_past_what_fails_and_what_takes_too_long(tmp_path: Path) -> None:
    def breaks(_: Check) -> Figures:
        yield "before", 1.23456, "ms"
        raise RuntimeError("no kernel\nfor this")

    def dawdles(_: Check) -> Figures:
        time.sleep(5)
        yield "never", 1.0, "ms"

    check = Check(random_model(torch.device("cpu"), torch.float32, REHEARSAL), REHEARSAL, "eager", tmp_path)
    check.run("breaks", breaks, 5)
    check.run("dawdles", dawdles, 0.05)
    check.run("machine", gpu_sections.machine, 5)
    assert check.errors == {"breaks": "RuntimeError: no kernel", "dawdles": "OutOfTime: 0 s are over"}
    assert check.figures["breaks"] == {"before": 1.235}
    assert set(check.figures["machine"]) == {"matrix product", "copy"}


def test_rehearses_and_tells_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--rehearse", "step", "decode"]) == 0
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["benchmark"] == "gpu_check" and line["config"]["rehearsal"]
    assert set(line["figures"]["step"]) == {f"{side}² {rows} rows" for side in (64, 128) for rows in (1, 2)}
    assert line["figures"]["errors"] == {}
