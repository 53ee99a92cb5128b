"""Every role in a process of its own, as the Procfile starts them: the main job through all of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.conftest import ROOT, RunningApp

TIMEOUT_S = 120


def roles_of_the_procfile() -> list[str]:
    lines = [line.partition(":")[2].split() for line in (ROOT / "Procfile").read_text().splitlines() if line.strip()]
    return [words[-1] for words in lines if words[:2] == ["firstlight", "worker"]]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[RunningApp]:
    folder = tmp_path_factory.mktemp("processes")
    app = RunningApp(folder, FIRSTLIGHT_ROLES="", REDIS_URL=redis_url)
    environment = {**os.environ, "FIRSTLIGHT_DATA_DIR": str(folder), "REDIS_URL": redis_url}
    log = (folder / "workers.log").open("w")
    workers = [
        subprocess.Popen(
            [sys.executable, "-m", "app.cli", "worker", "--roles", role], cwd=ROOT, env=environment, stderr=log
        )
        for role in roles_of_the_procfile()
    ]
    try:
        app.start()
        yield app
    finally:
        app.stop()
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        codes = [worker.wait(30) for worker in workers]
        log.close()
    assert codes == [0] * len(workers), (folder / "workers.log").read_text()[-4000:]


def test_preview_and_render_go_through_all_processes(app: RunningApp, tmp_path: Path) -> None:
    asked = {"prompt": "a cat on the beach", "seed": 7}
    preview = httpx.post(f"{app.url}/api/v1/previews", json=asked, timeout=60)
    assert preview.status_code == 200, preview.text
    asked |= {"preview_id": preview.json()["preview_id"], "steps": 6}
    render_id = httpx.post(f"{app.url}/api/v1/renders", json=asked, timeout=60).json()["id"]
    deadline_s = time.monotonic() + TIMEOUT_S
    while (found := httpx.get(f"{app.url}/api/v1/renders/{render_id}", timeout=30).json())["state"] != "done":
        assert found["state"] in ("queued", "running", "decoding", "checking"), found
        assert time.monotonic() < deadline_s, found
        time.sleep(0.1)
    assert found["handoff"]["similarity"] > 0
    assert httpx.get(app.url + found["images"][0]["url"], timeout=30).headers["content-type"] == "image/png"
