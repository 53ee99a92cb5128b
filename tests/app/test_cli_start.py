"""What the command line starts: servers and workers that begin, refuse and end."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from app.address import announced_url
from app.cli import _prepare, app
from tests.asking import firstlight
from tests.conftest import ROOT

run = CliRunner().invoke


def test_serve_names_a_taken_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        done = firstlight("serve", FIRSTLIGHT_PORT=port, FIRSTLIGHT_DATA_DIR=str(tmp_path))
    assert done.returncode == 2
    assert port in done.stderr and "FIRSTLIGHT_PORT" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["serve", "worker"])
def test_missing_model_folder_is_named(tmp_path: Path, verb: str) -> None:
    done = firstlight(verb, FIRSTLIGHT_PORT="0", FIRSTLIGHT_DATA_DIR=str(tmp_path), FIRSTLIGHT_MODEL=str(tmp_path))
    assert done.returncode == 2
    assert str(tmp_path / "model_index.json") in done.stderr and "Traceback" not in done.stderr


def test_serve_refuses_a_model_that_does_not_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before anything is started: a worker that cannot load would be started again and again."""
    monkeypatch.setenv("FIRSTLIGHT_DATA_DIR", str(tmp_path))
    monkeypatch.setattr("sampling.memory.free_bytes", lambda: 1000)
    told = run(app, ["serve", "--port", "0", "--json"])
    assert told.exit_code == 2 and "are missing" in json.loads(told.stdout)["error"]["message"]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("ROLES", "preview,cook", "unknown role cook"),
        ("FUSE", "nope:0.8", "there is no style"),
        ("FUSE", "ink:x", "ink:x"),
    ],
)
def test_serve_refuses_what_its_worker_could_never_start_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv("FIRSTLIGHT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv(f"FIRSTLIGHT_{name}", value)
    ended = run(app, ["serve", "--port", "0", "--json"])
    assert ended.exit_code == 2 and told in json.loads(ended.stdout)["error"]["message"]


def test_serve_ends_when_its_worker_could_never_start(tmp_path: Path) -> None:
    done = firstlight("serve", "--port", "0", FIRSTLIGHT_DEVICE="cuda:9", FIRSTLIGHT_DATA_DIR=str(tmp_path))
    assert done.returncode == 2 and "FIRSTLIGHT_DEVICE is cuda:9" in done.stderr
    assert "the worker cannot start" in done.stderr and "starting it again" not in done.stderr


def test_data_folder_that_cannot_be_made_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = firstlight("serve", "--port", "0", FIRSTLIGHT_DATA_DIR=str(tmp_path / "file"))
    assert done.returncode == 2 and "FIRSTLIGHT_DATA_DIR" in done.stderr and "Traceback" not in done.stderr


def test_command_without_a_server_tells_why_none_starts(tmp_path: Path) -> None:
    done = firstlight("preview", "a cat", FIRSTLIGHT_DATA_DIR=str(tmp_path), FIRSTLIGHT_MODEL=str(tmp_path))
    assert done.returncode == 1
    assert str(tmp_path / "model_index.json") in done.stderr and "Traceback" not in done.stderr
    assert done.stderr.startswith("no server here; starting one for the moment\n") and done.stdout == ""


@pytest.mark.parametrize(("child", "level"), [(True, logging.WARNING), (False, logging.INFO)])
def test_child_leaves_the_news_to_its_parent(monkeypatch: pytest.MonkeyPatch, child: bool, level: int) -> None:
    asked: dict[str, Any] = {}
    monkeypatch.setattr(logging, "basicConfig", lambda **fields: asked.update(fields))
    monkeypatch.setattr("app.parents.exit_with_parent", lambda: None)
    _prepare(child)
    assert asked["level"] == level


def test_unknown_setting_and_role_are_told(tmp_path: Path) -> None:
    done = firstlight("serve", FIRSTLIGHT_COLOUR="blue")
    assert done.returncode == 2 and "FIRSTLIGHT_COLOUR" in done.stderr
    done = firstlight("worker", "--roles", "preview,cook", FIRSTLIGHT_DATA_DIR=str(tmp_path))
    assert done.returncode == 2 and "cook" in done.stderr


SERVE = """
import sys
from app.cli import _prepare, app
from app.client import Client
from app.fleet import row_of
app(["serve", "--port", "0", "--json", "--roles", ""], standalone_mode=False)
import app.client, app.temporary, app.verbs
print([name for name in ("torch", "diffusers", "transformers", "peft", "compel") if name in sys.modules])
"""


def test_serve_says_where_it_is_and_ends_with_everything_and_never_loads_torch(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTLIGHT_")}
    env = {**clean, "FIRSTLIGHT_DATA_DIR": str(tmp_path)}
    server = subprocess.Popen([sys.executable, "-c", SERVE], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    told = json.loads(server.stdout.readline())
    assert told["url"] == announced_url(tmp_path) and told["pid"] == server.pid
    queue = [child.pid for child in psutil.Process(server.pid).children(recursive=True)]
    assert queue
    server.send_signal(signal.SIGTERM)
    assert server.stdout.read() == "[]\n"
    assert server.wait(15) == 0
    assert announced_url(tmp_path) is None
    assert not any(psutil.pid_exists(pid) for pid in queue)
