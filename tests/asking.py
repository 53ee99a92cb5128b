"""What tests ask of a running app over HTTP."""

from __future__ import annotations

import time
from typing import Any

import httpx

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
