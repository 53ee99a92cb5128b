"""Every role in a process of its own, as the Procfile starts them: the main job through all of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from importlib.metadata import version

import httpx
import pytest

from tests.asking import TIMEOUT_S, a_preview, a_render, ended
from tests.conftest import ROOT, RunningApp, worker_process


def roles_of_the_procfile() -> list[str]:
    lines = [line.partition(":")[2].split() for line in (ROOT / "Procfile").read_text().splitlines() if line.strip()]
    return [words[-1] for words in lines if words[:2] == ["firstlight", "worker"]]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory, redis_url: str) -> Iterator[RunningApp]:
    folder = tmp_path_factory.mktemp("processes")
    app = RunningApp(folder, FIRSTLIGHT_ROLES="", REDIS_URL=redis_url)
    log = folder / "workers.log"
    workers = [worker_process(role, folder, log, REDIS_URL=redis_url) for role in roles_of_the_procfile()]
    try:
        app.start()
        yield app
    finally:
        app.stop()
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        codes = [worker.wait(30) for worker in workers]
    assert codes == [0] * len(workers), log.read_text()[-4000:]


def test_preview_and_render_go_through_all_processes(app: RunningApp) -> None:
    with httpx.Client(base_url=app.url, timeout=TIMEOUT_S) as http:
        asked = {"prompt": "a cat on the beach", "seed": 7}
        preview = a_preview(http, **asked)
        found = ended(http, a_render(http, **asked, preview_id=preview["preview_id"], steps=6))
        assert found["state"] == "done", found
        assert found["handoff"]["similarity"] > 0
        assert http.get(found["images"][0]["url"]).headers["content-type"] == "image/png"


def test_every_process_says_what_it_is(app: RunningApp) -> None:
    with httpx.Client(base_url=app.url, timeout=TIMEOUT_S) as http:
        assert http.get("/readyz").json()["workers"] == dict.fromkeys(roles_of_the_procfile(), 1)
        found = http.get("/api/v1/workers").json()
    workers = {worker["roles"][0]: worker for worker in found["workers"]}
    assert sorted(workers) == sorted(roles_of_the_procfile())
    for role, worker in workers.items():
        assert worker["ready"] == worker["roles"] == [role]
        assert (worker["model"], worker["version"]) == (found["model"], found["version"])
        assert (worker["host"], worker["program"]) == (os.uname().nodename, version("firstlight"))
        assert found["now_s"] - 120 < worker["started_s"] < worker["seen_s"] <= found["now_s"]
        device = None if role == "finish" else "cpu"
        assert (worker["device"], worker["dtype"]) == (device, device and "float32")
        assert "128x128" in worker["buckets"]
    assert "ink" in workers["preview"]["styles"]  # warm-up ran it
