"""Every role in a process of its own, as the Procfile starts them, with pictures in S3: the main job through all of
them, and an outage of S3 in the middle."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from importlib.metadata import version

import httpx
import pytest

from benchmarks.network import Link
from benchmarks.s3_server import BUCKET, S3Server
from tests.asking import TIMEOUT_S, a_preview, a_render, ended
from tests.conftest import ROOT, RunningApp, worker_process

OUTAGE_S = 6.0


def roles_of_the_procfile() -> list[str]:
    lines = [line.partition(":")[2].split() for line in (ROOT / "Procfile").read_text().splitlines() if line.strip()]
    return [words[-1] for words in lines if words[:2] == ["firstlight", "worker"]]


@pytest.fixture(scope="module")
def network(s3_server: S3Server) -> Iterator[Link]:
    """Between the processes and S3; browsers have a way of their own."""
    link = Link(s3_server.port)
    yield link
    link.close()


@pytest.fixture(scope="module")
def app(
    tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server, network: Link, redis_url: str
) -> Iterator[RunningApp]:
    folder = tmp_path_factory.mktemp("processes")
    settings = {
        "REDIS_URL": redis_url,
        "FIRSTLIGHT_S3_BUCKET": BUCKET,
        "FIRSTLIGHT_S3_ENDPOINT": network.endpoint,
        "FIRSTLIGHT_S3_PUBLIC_ENDPOINT": s3_server.public_endpoint,
        "FIRSTLIGHT_S3_PREFIX": "whole/",
        **s3_server.login(),
    }
    app = RunningApp(folder, FIRSTLIGHT_ROLES="", **settings)
    log = folder / "workers.log"
    workers = [worker_process(role, folder, log, **settings) for role in roles_of_the_procfile()]
    try:
        app.start()
        yield app
    finally:
        app.stop()
        for worker in workers:
            worker.send_signal(signal.SIGTERM)
        codes = [worker.wait(30) for worker in workers]
    assert codes == [0] * len(workers), log.read_text()[-4000:]


@pytest.fixture
def http(app: RunningApp) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=app.url, timeout=TIMEOUT_S) as http:
        yield http


def fetched(url: str) -> httpx.Response:
    return httpx.get(url, timeout=TIMEOUT_S, trust_env=False)


def test_preview_and_render_go_through_all_processes(http: httpx.Client, s3_server: S3Server) -> None:
    asked = {"prompt": "a cat on the beach", "seed": 7}
    preview = a_preview(http, **asked)
    found = ended(http, a_render(http, **asked, preview_id=preview["preview_id"], steps=6))
    assert found["state"] == "done", found
    assert found["handoff"]["similarity"] > 0
    (image,) = found["images"]
    assert image["url"].startswith(f"{s3_server.public_endpoint}/{BUCKET}/whole/renders/{found['id']}/0.png?")
    shown, saved, compared = (fetched(url) for url in (image["url"], image["download_url"], found["preview_url"]))
    assert hashlib.sha256(shown.content).hexdigest() == image["sha256"] and saved.content == shown.content
    assert shown.headers["content-disposition"].startswith("inline;")
    assert saved.headers["content-disposition"] == f'attachment; filename="firstlight-{found["id"]}-0.png"'
    assert compared.headers["content-type"] == "image/jpeg"
    assert http.get(f"/objects/renders/{found['id']}/0.png?expires=9&signature=00").status_code == 404
    assert http.get(f"/api/v1/renders/{found['id']}").json()["images"] == [image]


def test_every_process_says_what_it_is(http: httpx.Client) -> None:
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


def test_outage_while_a_render_finishes_is_waited_out(http: httpx.Client, network: Link) -> None:
    network.cut()
    render_id = a_render(http, prompt="a boat", seed=3, steps=4)
    while http.get(f"/api/v1/renders/{render_id}").json()["state"] != "checking":
        time.sleep(0.05)
    a_preview(http, prompt="a boat on the sea", seed=3)  # the rest goes on
    time.sleep(OUTAGE_S)
    assert http.get(f"/api/v1/renders/{render_id}").json()["state"] == "checking"
    network.mend()
    found = ended(http, render_id)
    assert found["state"] == "done", found
    assert hashlib.sha256(fetched(found["images"][0]["url"]).content).hexdigest() == found["images"][0]["sha256"]
