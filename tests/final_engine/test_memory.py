from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from core.cost import Identity
from core.errors import StartupError
from core.memory import MemoryPlan
from final_engine.memory import allowed_rows, write_plan

HERE = Identity("storybook", "0", "a processor", "float32", 1)
GIB = 2**30
PLAN = MemoryPlan(base_bytes=6 * GIB, row_bytes=GIB, budget_bytes=10 * GIB, rows=4)


def test_a_worker_finds_what_was_measured(tmp_path: Path) -> None:
    assert allowed_rows(tmp_path, HERE) is None
    write_plan(tmp_path, HERE, PLAN)
    assert allowed_rows(tmp_path, HERE) == 4


def test_too_little_memory_ends_the_start_with_what_is_missing(tmp_path: Path) -> None:
    write_plan(tmp_path, HERE, replace(PLAN, budget_bytes=7 * GIB, rows=1))
    with pytest.raises(StartupError, match=r"(?s)lacks 1\.0 GiB .*smaller model"):
        allowed_rows(tmp_path, HERE)


def test_what_was_measured_elsewhere_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_plan(tmp_path, replace(HERE, dtype="float16"), PLAN)
    assert allowed_rows(tmp_path, HERE) is None
    assert "firstlight bench memory" in caplog.text
