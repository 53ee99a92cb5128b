from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from core.cost import CostTable, Part
from tests.conftest import ROOT


def test_calibrate_writes_a_table_that_a_worker_of_this_machine_uses(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTLIGHT_")}
    env = {**clean, "FIRSTLIGHT_DATA_DIR": str(tmp_path), "FIRSTLIGHT_MAX_FINAL_ROWS": "2"}
    command = [sys.executable, "-m", "app.cli", "bench", "calibrate", "--rounds", "1", "--json"]
    told = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)
    assert told.returncode == 0, told.stderr
    said = json.loads(told.stdout)
    assert "storybook" in said["identity"] and said["path"] == str(tmp_path / "costs.json")
    table = CostTable.from_json((tmp_path / "costs.json").read_text())
    assert set(table.seconds) == set(Part)
    assert all(set(counts) == {1, 2} for counts in table.seconds[Part.STEP].values())
