from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app import torch_roles
from app.cli import app
from app.torch_roles import TorchRoles
from app.worker import Worker
from benchmarks.bundle import Parts
from core.cost import CostTable, Identity, Part
from core.memory import MemoryPlan
from core.settings import Settings
from final_engine.calibrate import identity_of
from final_engine.cost_file import read_costs
from final_engine.memory import allowed_rows, write_plan
from tests.conftest import ROOT

GIB = 2**30


def test_calibrate_writes_a_table_that_a_worker_of_this_machine_uses(
    tmp_path: Path, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("FIRSTLIGHT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("FIRSTLIGHT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("FIRSTLIGHT_MAX_FINAL_ROWS", "2")
    told = CliRunner().invoke(app, ["bench", "calibrate", "--rounds", "1", "--json"])
    assert told.exit_code == 0, told.stderr
    said = json.loads(told.stdout)
    assert "storybook" in said["identity"] and said["path"] == str(tmp_path / "costs.json")
    table = CostTable.from_json((tmp_path / "costs.json").read_text())
    assert set(table.seconds) == set(Part)
    assert all(set(counts) == {1, 2} for counts in table.seconds[Part.STEP].values())
    assert read_costs(tmp_path, identity_of(parts.model)) == table


def test_memory_writes_how_many_rows_fit_and_a_worker_reads_it(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTLIGHT_")}
    rows = {"FIRSTLIGHT_MAX_FINAL_ROWS": "4", "FIRSTLIGHT_MAX_PREVIEW_ROWS": "4"}
    command = [sys.executable, "-m", "app.cli", "bench", "memory", "--json"]
    env = {**clean, **rows, "FIRSTLIGHT_DATA_DIR": str(tmp_path)}
    told = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240)
    assert told.returncode == 0, told.stderr
    said = json.loads(told.stdout)
    assert said["path"] == str(tmp_path / "memory.json") and said["rows"] == 4
    assert 200 * 2**20 < said["base_bytes"] < said["budget_bytes"] and 2**20 < said["row_bytes"] < said["base_bytes"]
    identity = Identity(**json.loads((tmp_path / "memory.json").read_text())["identity"])
    assert allowed_rows(tmp_path, identity) == 4


def test_a_worker_takes_no_more_rows_than_fit(
    tmp_path: Path, redis_url: str, parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_roles, "load_model", lambda *_, **__: parts.model)
    write_plan(tmp_path, identity_of(parts.model), MemoryPlan(6 * GIB, GIB, 10 * GIB, rows=4))
    for folder, rows in ((tmp_path, 4), (tmp_path / "never measured", 8)):
        worker = Worker(["final"], Settings(data_dir=folder), redis_url)
        roles = TorchRoles((), worker.shared, worker._signal, redis_url)
        assert roles._rows(8) == rows and roles._rows(2) == 2
