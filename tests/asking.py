"""What tests ask of a running app over HTTP, and of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import httpx

from tests.conftest import ROOT

ENDED = {"done", "rejected", "blocked", "cancelled", "failed"}
TIMEOUT_S = 120


def ended(http: httpx.Client, render_id: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        found: dict[str, Any] = http.get(f"/api/v1/renders/{render_id}").json()
        if found["state"] in ENDED:
            return found
        time.sleep(0.1)
    raise TimeoutError(render_id)


def a_preview(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = http.post("/api/v1/previews", json={"prompt": "a cat on the beach", **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def a_render(http: httpx.Client, **fields: Any) -> str:
    answer = http.post("/api/v1/renders", json=fields)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def firstlight(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own, with no setting of ours."""
    command = [sys.executable, "-m", "app.cli", *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("FIRSTLIGHT_")}
    return subprocess.run(command, cwd=ROOT, env={**clean, **env}, capture_output=True, text=True, timeout=120)
