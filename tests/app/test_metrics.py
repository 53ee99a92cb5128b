"""GET /metrics through the real web process and a real Valkey."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from app import metrics as route
from core.metrics import Metrics
from shared_cache import keys
from shared_cache.queue import Room
from tests.app.conftest import Web

DOCS = Path(__file__).resolve().parent.parent.parent / "docs" / "metrics.md"


@pytest.fixture(autouse=True)
def no_renders_left(web: Web) -> Iterator[None]:
    yield
    for record in web.context.renders.unfinished():
        web.context.renders.cancel(record.id)


def scraped(client: httpx.Client) -> dict[str, Metric]:
    answer = client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=")
    families = list(text_string_to_metric_families(answer.text))
    found = {family.name: family for family in families}
    assert len(found) == len(families) and all(family.type != "unknown" for family in families)
    return found


def value(client: httpx.Client, family: str, **labels: str) -> float:
    """Sum of the family's samples with these labels."""
    return sum(s.value for s in scraped(client)[family].samples if labels.items() <= s.labels.items())


def a_worker() -> Metrics:
    metrics = Metrics()
    metrics.stepped("final", "128x128", 4, 2, 0.1)
    metrics.cache(hits=5, misses=2, size_bytes=100)
    return metrics


def test_answer_holds_this_process_and_every_other(web: Web, client: httpx.Client) -> None:
    board = web.context.board
    for name in ("w1", "w2"):
        board.publish(name, a_worker().text())
    found = scraped(client)
    samples = found["firstlight_embedding_cache_hits"].samples
    hits = {s.labels["worker"]: s.value for s in samples if s.labels["tier"] == "process"}
    assert hits == {"w1": 5, "w2": 5, web.context.process_id: 0}
    board.withdraw("w1")
    board.withdraw("w2")
    assert value(client, "firstlight_embedding_cache_hits") == 0


def test_this_process_is_there_once_though_it_publishes_too(web: Web, client: httpx.Client) -> None:
    web.context.board.publish(web.context.process_id, a_worker().text())
    assert value(client, "firstlight_embedding_cache_hits") == 0


def test_web_process_publishes_for_the_others(web: Web) -> None:
    key, deadline_s = keys.METRICS_PREFIX + web.context.process_id, time.monotonic() + 10
    while not web.context.redis.exists(key):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def test_queue_is_told_by_lane(web: Web, client: httpx.Client) -> None:
    lane = {"pool": "final", "lane": "standard:128x128"}
    before = value(client, "firstlight_lane_depth", state="waiting", **lane)
    client.post("/api/v1/renders", json={"prompt": "a cat", "steps": 4})
    time.sleep(0.02)
    assert value(client, "firstlight_lane_depth", state="waiting", **lane) == before + 1
    assert value(client, "firstlight_lane_age_seconds", **lane) >= 0.02
    assert value(client, "firstlight_renders_open") >= 1


def test_ready_workers_are_counted_by_role(web: Web, client: httpx.Client) -> None:
    assert value(client, "firstlight_workers_ready") == 0
    web.context.registry.announce("one", {"roles": ["preview", "final"], "ready": True})
    web.context.registry.announce("two", {"roles": ["final"], "ready": True})
    web.context.registry.announce("three", {"roles": ["final"], "ready": False})
    ready = {s.labels["role"]: s.value for s in scraped(client)["firstlight_workers_ready"].samples}
    assert ready == {"preview": 1, "final": 2, "decode": 0, "finish": 0}
    for name in ("one", "two", "three"):
        web.context.registry.withdraw(name)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"prompt": "a cat", "steps": 100000}, "invalid"),
        ({"prompt": "a nude"}, "blocked"),
        ({"prompt": "a cat", "deadline_s": 0.001}, "deadline"),
    ],
)
def test_refused_render_is_counted_by_its_reason(client: httpx.Client, body: dict[str, object], reason: str) -> None:
    before = value(client, "firstlight_renders_rejected", reason=reason)
    assert client.post("/api/v1/renders", json=body).status_code in (422, 503)
    assert value(client, "firstlight_renders_rejected", reason=reason) == before + 1


def test_full_queue_is_counted_as_overloaded(web: Web, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.post("/api/v1/renders", json={"prompt": "a cat"})
    monkeypatch.setattr(web.context.admission, "_room", Room(1, 2))
    before = value(client, "firstlight_renders_rejected", reason="overloaded")
    assert client.post("/api/v1/renders", json={"prompt": "a cat"}).status_code == 503
    assert value(client, "firstlight_renders_rejected", reason="overloaded") == before + 1


def test_one_owner_cannot_fill_the_queue(web: Web, client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    client.post("/api/v1/renders", json={"prompt": "a cat"})
    monkeypatch.setattr(web.context.admission, "_room", Room(1000, 1))
    before = value(client, "firstlight_renders_rejected", reason="quota")
    refused = client.post("/api/v1/renders", json={"prompt": "a cat", "deadline_s": 1000})
    assert refused.status_code == 429 and int(refused.headers["Retry-After"]) >= 1
    assert refused.json()["error"]["code"] == "quota" and "cancel some" in refused.json()["error"]["message"]
    assert value(client, "firstlight_renders_rejected", reason="quota") == before + 1


def test_key_used_for_another_body_is_counted_as_conflict(client: httpx.Client) -> None:
    before = value(client, "firstlight_renders_rejected", reason="conflict")
    for steps in (4, 5):
        client.post("/api/v1/renders", json={"prompt": "a cat", "steps": steps}, headers={"Idempotency-Key": "metrics"})
    assert value(client, "firstlight_renders_rejected", reason="conflict") == before + 1


def test_cancel_is_counted_once(client: httpx.Client) -> None:
    before = value(client, "firstlight_renders", state="cancelled")
    render_id = client.post("/api/v1/renders", json={"prompt": "a cat"}).json()["id"]
    for _ in range(2):
        client.delete(f"/api/v1/renders/{render_id}")
    assert value(client, "firstlight_renders", state="cancelled") == before + 1


def test_nothing_that_a_person_types_is_in_the_answer(web: Web, client: httpx.Client) -> None:
    with web.client("a-secret-token") as somebody:
        somebody.post("/api/v1/renders", json={"prompt": "zebracorn"})
        somebody.post("/api/v1/renders", json={"prompt": "zebracorn", "styles": [{"id": "quagga", "weight": 1}]})
    text = client.get("/metrics").text
    assert not any(word in text for word in ("zebracorn", "quagga", "token-", "a-secret-token"))


def test_every_metric_is_documented_and_no_other(web: Web, client: httpx.Client) -> None:
    exported = {f.name + ("_total" if f.type == "counter" else "") for f in scraped(client).values()}
    rows = [line.split("`")[1] for line in DOCS.read_text().splitlines() if line.startswith("| `firstlight_")]
    assert len(rows) == len(set(rows)) and set(rows) == exported


def test_answer_without_the_queue_is_its_own_and_says_so(
    web: Web, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise redis.ConnectionError("away")

    monkeypatch.setattr(web.context.board, "look", away)
    found = scraped(client)
    assert [s.value for s in found["firstlight_redis_up"].samples] == [0]
    assert "firstlight_renders" in found and "firstlight_lane_depth" not in found


def test_answer_does_not_wait_long_for_a_queue_that_hangs(
    web: Web, client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route, "LOOK_S", 0.1)
    released = threading.Event()
    monkeypatch.setattr(web.context.board, "look", lambda *_: released.wait(10))
    started_s = time.monotonic()
    assert value(client, "firstlight_redis_up") == 0
    assert time.monotonic() - started_s < 5
    released.set()
    monkeypatch.undo()
    assert value(client, "firstlight_redis_up") == 1
