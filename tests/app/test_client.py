"""The command line's client where the connection is not to be trusted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from app import client as client_module
from app.client import Client, Refused
from core.errors import Unavailable

Answers = Callable[[httpx.Request], httpx.Response]


def client_of(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(client_module, "_AGAIN_S", 0.0)
    client = Client("http://localhost:1")
    client._http = httpx.Client(base_url=client.url, transport=httpx.MockTransport(answers))
    return client


def lost(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadError("connection reset", request=request)


@pytest.mark.parametrize("trouble", [lost, lambda _: httpx.Response(502, text="<html>"), lambda _: httpx.Response(504)])
def test_render_that_may_not_have_arrived_is_sent_again_under_its_key(
    trouble: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.headers["Idempotency-Key"], json.loads(request.content)))
        return trouble(request) if len(seen) == 1 else httpx.Response(202, json={"id": "r1"})

    assert client_of(answer, monkeypatch).render({"prompt": "a cat"}) == {"id": "r1"}
    assert len(seen) == 2 and seen[0] == seen[1]


def test_each_render_has_a_key_of_its_own_and_a_server_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["Idempotency-Key"])
        return httpx.Response(502)

    client = client_of(answer, monkeypatch)
    for _ in range(2):
        with pytest.raises(Unavailable, match="the proxy there says 502"):
            client.render({"prompt": "a cat"})
    assert len(keys) == 4 and len(set(keys)) == 2


AWAY = {"error": {"code": "unavailable", "message": "the queue cannot be reached; try again in a few seconds"}}


def test_queue_that_is_away_is_waited_for_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers["Idempotency-Key"])
        return httpx.Response(503, json=AWAY) if len(seen) < 4 else httpx.Response(202, json={"id": "r1"})

    client, told = client_of(answer, monkeypatch), []
    client._tell = told.append
    assert client.render({"prompt": "a cat"}) == {"id": "r1"}
    assert len(set(seen)) == 1 and told == ["the queue cannot be reached; trying again for 60 s"]


@pytest.mark.parametrize(
    ("ask", "body"),
    [(Client.styles, AWAY), (Client.awaited, {"state": "away", "reason": "the queue cannot be reached"})],
)
def test_wait_for_a_queue_ends_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Client], Any], body: dict[str, Any]
) -> None:
    monkeypatch.setattr(client_module, "AWAY_S", 0.05)
    client = client_of(lambda _: httpx.Response(503, json=body), monkeypatch)
    ends_s = time.monotonic() + 10
    with pytest.raises(Unavailable, match="the queue cannot be reached, for 0 s now; the server's log"):
        while time.monotonic() < ends_s:
            ask(client)


def test_what_another_request_would_not_mend_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(503, json={"error": {"code": "overloaded", "message": "no room"}})

    with pytest.raises(Refused, match="no room"):
        client_of(answer, monkeypatch).render({"prompt": "a cat"})
    assert len(asked) == 1
