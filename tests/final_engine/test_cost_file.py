from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from core.cost import ANY, CostTable, Identity, Part
from final_engine.cost_file import read_costs, write_costs

HERE = Identity("storybook", "0", "a processor", "float32", 1)
TABLE = CostTable({Part.STEP: {ANY: {1: 0.1}}})


def test_file_gives_the_table_back(tmp_path: Path) -> None:
    write_costs(tmp_path / "new", HERE, TABLE)
    assert read_costs(tmp_path / "new", HERE) == TABLE


def test_no_file_is_no_table(tmp_path: Path) -> None:
    assert read_costs(tmp_path, HERE) is None


@pytest.mark.parametrize("change", [{"device": "another"}, {"version": "1"}, {"threads": 4}, {"dtype": "float16"}])
def test_table_from_elsewhere_is_refused_with_the_command_that_rebuilds_it(
    tmp_path: Path, change: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    write_costs(tmp_path, replace(HERE, **change), TABLE)  # type: ignore[arg-type]
    assert read_costs(tmp_path, HERE) is None
    assert "firstlight bench calibrate" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"identity": {}}', "\x00"])
def test_broken_file_is_refused(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "costs.json").write_text(text)
    assert read_costs(tmp_path, HERE) is None
    assert "firstlight bench calibrate" in caplog.text
