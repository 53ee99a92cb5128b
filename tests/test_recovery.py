"""The whole app as a person runs it, while its processes die and come back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from app.parents import GRACE_S
from tests.conftest import RunningApp

LONG_STEPS = 30
TIMEOUT_S = 180


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    app = RunningApp(tmp_path_factory.mktemp("recovery"), FIRSTLIGHT_LEASE_S="1.5")
    app.start()
    yield app
    if app.runs:
        app.stop()


def render(app: RunningApp, **fields: Any) -> str:
    answer = httpx.post(f"{app.url}/api/v1/renders", json={"prompt": "a cat on the beach", **fields}, timeout=30)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["id"])


def look(app: RunningApp, render_id: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{app.url}/api/v1/renders/{render_id}", timeout=30).json()
    return found


def wait_until(app: RunningApp, render_id: str, state: str) -> dict[str, Any]:
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        found = look(app, render_id)
        if found["state"] == state:
            return found
        assert found["state"] in ("queued", "running", "decoding", "checking"), found
        time.sleep(0.1)
    raise TimeoutError(f"{render_id} never became {state}\n{app.log()}")


def worker_of(app: RunningApp) -> psutil.Process:
    children = psutil.Process(app.pid).children(recursive=True)
    return next(child for child in children if "worker" in child.cmdline())


def test_render_goes_on_when_its_worker_is_killed(app: RunningApp) -> None:
    render_id = render(app, steps=LONG_STEPS)
    wait_until(app, render_id, "running")
    os.kill(worker_of(app).pid, signal.SIGKILL)
    time.sleep(1.0)  # far less than a worker needs to start, or than a silent one stays in the registry
    assert httpx.get(f"{app.url}/readyz", timeout=30).status_code == 503
    found = wait_until(app, render_id, "done")
    assert len(found["images"]) == 1
    picture = httpx.get(app.url + found["images"][0]["url"], timeout=30)
    assert picture.status_code == 200 and picture.headers["content-type"] == "image/png"


def test_history_and_unfinished_renders_outlive_a_restart(app: RunningApp) -> None:
    done = render(app, steps=4)
    wait_until(app, done, "done")
    waiting = [render(app, steps=LONG_STEPS) for _ in range(2)]
    wait_until(app, waiting[0], "running")
    assert app.stop() == 0
    app.start()
    listed = [item["id"] for item in httpx.get(f"{app.url}/api/v1/renders", timeout=30).json()["renders"]]
    assert {done, *waiting} <= set(listed)
    for render_id in waiting:
        wait_until(app, render_id, "done")


def test_nothing_is_left_behind_after_stopping(tmp_path: Path) -> None:
    app = RunningApp(tmp_path)
    app.start(ready=False)
    family = psutil.Process(app.pid).children(recursive=True)
    assert app.stop(signal.SIGINT) == 0
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def test_nothing_is_left_behind_after_a_kill(app: RunningApp) -> None:
    """The last one: the app is gone then. The queue goes at once, and a worker waits for it a few seconds."""
    family = psutil.Process(app.pid).children(recursive=True)
    app.stop(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=GRACE_S + 10)
    assert alive == []
