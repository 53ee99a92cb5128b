"""The main job from outside, on the running app: preview, accept, the same picture in full."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from PIL import Image
from prometheus_client.parser import text_string_to_metric_families
from websockets.sync.client import connect

from core.wire import unpack_frame
from tests.asking import TIMEOUT_S, a_preview, a_render, ended
from tests.conftest import ROOT

PUBLISHED_S = 4.0  # workers hang out their metrics every 3 s


@pytest.fixture
def http(app_url: str) -> httpx.Client:
    return httpx.Client(base_url=app_url, timeout=TIMEOUT_S)


def test_accepted_preview_is_rendered_in_full(http: httpx.Client) -> None:
    preview = a_preview(http, seed=70000)
    assert Image.open(io.BytesIO(base64.b64decode(preview["image_b64"]))).size == (128, 128)
    found = ended(http, a_render(http, preview_id=preview["preview_id"], steps=8))
    assert found["state"] == "done" and found["handoff"]["mode"] == "match"
    assert -1 <= found["handoff"]["similarity"] <= 1 and found["recipe"]["seed"] == 70000
    image = found["images"][0]
    picture = http.get(image["url"])
    assert hashlib.sha256(picture.content).hexdigest() == image["sha256"]
    carried = json.loads(Image.open(io.BytesIO(picture.content)).text["firstlight"])  # type: ignore[attr-defined]
    assert carried == found["recipe"]


def measured(http: httpx.Client) -> dict[str, float]:
    """Sums over processes of what shows that work was done."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]

    def total(name: str, **labels: str) -> float:
        return sum(s.value for s in samples if s.name == name and labels.items() <= s.labels.items())

    return {
        "previews": total("firstlight_previews_total", outcome="shown"),
        "renders": total("firstlight_renders_total", state="done"),
        "preview steps": total("firstlight_batch_rows_sum", pool="preview"),
        "finals decoded": total("firstlight_stage_seconds_count", pool="final", stage="decode"),
        "preview busy": total("firstlight_pool_busy_seconds_total", pool="preview"),
        "finish busy": total("firstlight_pool_busy_seconds_total", pool="finish"),
        "encoded": total("firstlight_embedding_cache_misses_total"),
    }


def test_metrics_tell_of_a_preview_and_its_render(http: httpx.Client) -> None:
    time.sleep(PUBLISHED_S)
    before = measured(http)
    preview = a_preview(http, prompt="a boat that is measured", seed=3)
    ended(http, a_render(http, preview_id=preview["preview_id"], steps=4))
    time.sleep(PUBLISHED_S)
    grown = {name: after - before[name] for name, after in measured(http).items()}
    assert all(amount > 0 for amount in grown.values()), grown
    assert grown["preview steps"] == 4 and grown["renders"] == 1


def test_preview_of_the_same_recipe_is_the_same_picture(http: httpx.Client) -> None:
    first, second = a_preview(http, seed=5), a_preview(http, seed=5)
    assert first["image_b64"] == second["image_b64"] and first["preview_id"] != second["preview_id"]


def test_a_random_seed_is_returned_and_used(http: httpx.Client) -> None:
    seen = a_preview(http)
    assert a_preview(http, seed=seen["seed"])["image_b64"] == seen["image_b64"]


def test_parallel_identical_posts_all_end(http: httpx.Client) -> None:
    with ThreadPoolExecutor(4) as pool:
        ids = list(pool.map(lambda _: a_render(http, prompt="a dog", steps=4, seed=1), range(4)))
    assert {ended(http, render_id)["state"] for render_id in ids} == {"done"} and len(set(ids)) == 4


def test_previews_come_first_while_a_render_runs(http: httpx.Client) -> None:
    render_id = a_render(http, prompt="a castle", steps=100)
    while http.get(f"/api/v1/renders/{render_id}").json()["state"] == "queued":
        time.sleep(0.05)
    a_preview(http)
    assert http.get(f"/api/v1/renders/{render_id}").json()["state"] == "running"
    assert http.delete(f"/api/v1/renders/{render_id}").json()["state"] == "cancelled"


def test_events_tell_the_whole_story_in_order(http: httpx.Client) -> None:
    render_id = a_render(http, prompt="a tree", steps=8)
    with http.stream("GET", f"/api/v1/renders/{render_id}/events") as stream:
        events = [json.loads(line[5:]) for line in stream.iter_lines() if line.startswith("data:")]
    states = [event["state"] for event in events if event["type"] == "state"]
    assert states == ["queued", "running", "decoding", "checking", "done"]
    steps = [event["step"] for event in events if event["type"] == "progress"]
    assert steps == list(range(1, 9))


def test_a_blocked_prompt_costs_nothing(http: httpx.Client) -> None:
    before = len(http.get("/api/v1/renders").json()["renders"])
    answer = http.post("/api/v1/renders", json={"prompt": "a nude"})
    assert answer.status_code == 422 and answer.json()["error"]["code"] == "blocked"
    assert len(http.get("/api/v1/renders").json()["renders"]) == before


def test_final_completes_after_its_page_is_closed(app_url: str, http: httpx.Client) -> None:
    with connect(app_url.replace("http", "ws") + "/api/v1/live") as socket:
        socket.send(json.dumps({"rev": 1, "prompt": "a boat on the sea", "seed": 3}))
        header, _ = unpack_frame(socket.recv(timeout=TIMEOUT_S))  # type: ignore[arg-type]
        render_id = a_render(http, preview_id=header["preview_id"], steps=6)
        socket.send(json.dumps({"rev": 2, "prompt": "a boat on the moon", "seed": 3}))
    assert ended(http, render_id)["state"] == "done"


def test_socket_answers_the_last_of_many_and_never_goes_back(app_url: str) -> None:
    text = "a small red fox in the snow"
    with connect(app_url.replace("http", "ws") + "/api/v1/live") as socket:
        for rev in range(1, len(text) + 1):
            socket.send(json.dumps({"rev": rev, "prompt": text[:rev], "seed": 7}))
            time.sleep(0.03)
        seen = [0]
        while seen[-1] < len(text):
            message = socket.recv(timeout=TIMEOUT_S)
            assert isinstance(message, bytes), message
            seen.append(unpack_frame(message)[0]["rev"])
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("verb", ["preview", "render"])
def test_command_line_writes_the_picture(app_url: str, tmp_path: Path, verb: str) -> None:
    output = tmp_path / "picture.png"
    command = [
        sys.executable,
        "-m",
        "app.cli",
        verb,
        "a house in the forest",
        "--seed",
        "7",
        "--json",
        "-o",
        str(output),
    ]
    command += ["--style", "ink:0.5", "--steps", "4"]
    environment = {**os.environ, "FIRSTLIGHT_URL": app_url}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "a house in the forest" in done.stdout or "seed" in json.loads(done.stdout)
    assert Image.open(output).size == (128, 128)


def test_gradio_client_gets_the_same(app_url: str) -> None:
    from gradio_client import Client

    client = Client(app_url, verbose=False)
    preview = client.predict("a cat on the beach", seed=7, api_name="/preview")
    assert preview["seed"] == 7
    record = client.predict(preview_id=preview["preview_id"], steps=4, api_name="/render")
    assert record["state"] == "done"
