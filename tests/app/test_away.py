"""What people and those who run the app are told while the queue hangs, through the real web process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from websockets.sync.client import connect

from tests.app.conftest import Web
from tests.telling import lines

SOON_S = 6.0


@pytest.fixture
def hung(web: Web) -> Iterator[None]:
    pid = web.context.redis.info("server")["process_id"]
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)
    with web.client() as client:
        ends_s = time.monotonic() + 10
        while client.get("/api/v1/renders").status_code != 200:
            assert time.monotonic() < ends_s
            time.sleep(0.1)


def asked(web: Web, method: str, path: str) -> tuple[float, httpx.Response]:
    with web.client() as client:
        began_s = time.monotonic()
        body = {"prompt": "a cat on the beach"} if method == "POST" else None
        answer = client.request(method, path, json=body)
        return time.monotonic() - began_s, answer


def test_queue_that_hangs_is_told_soon_to_everybody_and_once_in_the_log(
    web: Web, hung: None, caplog: pytest.LogCaptureFixture
) -> None:
    asks = [("GET", "/readyz"), *[("POST", "/api/v1/renders"), ("POST", "/api/v1/previews")] * 12]
    with connect(web.socket_url) as live, ThreadPoolExecutor(len(asks)) as people:
        live.send(json.dumps({"rev": 1, "prompt": "a cat"}))
        (took_s, readyz), *others = people.map(lambda ask: asked(web, *ask), asks)
        assert json.loads(live.recv(timeout=SOON_S))["error"]["code"] == "unavailable"
    assert max([took_s, *(took_s for took_s, _ in others)]) < SOON_S
    assert readyz.status_code == 503 and (readyz.json()["ready"], readyz.json()["state"]) == (False, "away")
    for _, answer in others:
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
        assert "cannot be reached" in answer.json()["error"]["message"] and answer.headers["Retry-After"]
    (line,) = lines(caplog, "shared_cache.outage")
    assert "does not answer" in line and "what to do" in line
