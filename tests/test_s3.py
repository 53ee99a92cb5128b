"""The main job with pictures in S3, from outside: what the app publishes there, and an outage in the middle."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator

import httpx
import pytest

from benchmarks.network import Link
from benchmarks.s3_server import BUCKET, S3Server
from tests.asking import TIMEOUT_S, a_preview, a_render, ended
from tests.conftest import RunningApp

OUTAGE_S = 6.0


@pytest.fixture(scope="module")
def network(s3_server: S3Server) -> Iterator[Link]:
    """Between the app and S3; browsers have a way of their own."""
    link = Link(s3_server.port)
    yield link
    link.close()


@pytest.fixture(scope="module")
def app(
    tmp_path_factory: pytest.TempPathFactory, s3_server: S3Server, network: Link, redis_url: str
) -> Iterator[RunningApp]:
    settings = {
        "FIRSTLIGHT_S3_BUCKET": BUCKET,
        "FIRSTLIGHT_S3_ENDPOINT": network.endpoint,
        "FIRSTLIGHT_S3_PUBLIC_ENDPOINT": s3_server.public_endpoint,
        "FIRSTLIGHT_S3_PREFIX": "whole/",
        **s3_server.login(),
    }
    app = RunningApp(tmp_path_factory.mktemp("s3-app"), **settings)
    app.start()
    yield app
    app.stop()


@pytest.fixture
def http(app: RunningApp) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=app.url, timeout=TIMEOUT_S) as http:
        yield http


def fetched(url: str) -> httpx.Response:
    return httpx.get(url, timeout=TIMEOUT_S, trust_env=False)


def test_render_is_published_in_s3_and_read_there(http: httpx.Client, s3_server: S3Server) -> None:
    preview = a_preview(http, seed=7)
    found = ended(http, a_render(http, preview_id=preview["preview_id"], steps=4))
    assert found["state"] == "done", found
    (image,) = found["images"]
    assert image["url"].startswith(f"{s3_server.public_endpoint}/{BUCKET}/whole/renders/{found['id']}/0.png?")
    shown, saved, compared = (fetched(url) for url in (image["url"], image["download_url"], found["preview_url"]))
    assert hashlib.sha256(shown.content).hexdigest() == image["sha256"] and saved.content == shown.content
    assert shown.headers["content-disposition"].startswith("inline;")
    assert saved.headers["content-disposition"] == f'attachment; filename="firstlight-{found["id"]}-0.png"'
    assert compared.headers["content-type"] == "image/jpeg"
    assert http.get(f"/objects/renders/{found['id']}/0.png?expires=9&signature=00").status_code == 404
    assert http.get(f"/api/v1/renders/{found['id']}").json()["images"] == [image]


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
