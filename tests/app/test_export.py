from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from app.cli import app


def test_triton_repository_is_written_once(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    command = ["export", "triton", str(folder), "--cpu", "--served-dir", "/models/storybook"]
    told = CliRunner().invoke(app, [*command, "--json"])
    assert told.exit_code == 0, told.output
    said = json.loads(told.stdout)
    assert len(said["files"]) == 8 and all(Path(name).is_file() for name in said["files"])
    config = (folder / "firstlight_denoise" / "config.pbtxt").read_text()
    assert "KIND_CPU" in config and 'string_value: "float32"' in config
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 1 and "has firstlight_encode" in again.stderr
