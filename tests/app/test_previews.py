"""One preview over HTTP."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from core.errors import NonFinite
from core.recipe import Recipe, StyleUse
from tests.app.conftest import ANSWER_TIMEOUT_S, JPEG, Web


def test_answer_holds_picture_and_facts(web: Web, client: httpx.Client, aside: ThreadPoolExecutor) -> None:
    asked = {"prompt": "a cat", "seed": 9, "width": 152, "height": 104, "steps": 2}
    waiting = aside.submit(client.post, "/api/v1/previews", json=asked)
    request = web.pool.take()
    assert request.recipe.steps == 2
    web.pool.answer(request)
    made = waiting.result(5).json()
    assert base64.b64decode(made.pop("image_b64")) == JPEG
    assert Recipe.from_dict(made.pop("recipe")) == request.recipe
    assert made == {
        "preview_id": request.preview_id,
        "seed": 9,
        "width": 152,
        "height": 104,
        "format": "jpeg",
        "steps": 2,
        "timings_ms": {"total": 1.0},
    }


def test_defaults_are_the_preview_pools_and_the_seed_is_random(
    web: Web, client: httpx.Client, aside: ThreadPoolExecutor
) -> None:
    seeds = set()
    for _ in range(2):
        waiting = aside.submit(client.post, "/api/v1/previews", json={"prompt": "a cat"})
        request = web.pool.take()
        web.pool.answer(request)
        assert waiting.result(5).json()["seed"] == request.recipe.seed
        seeds.add(request.recipe.seed)
        pool, bucket = web.context.profile.preview, web.context.profile.preview.buckets[0]
        recipe = request.recipe
        assert (recipe.steps, recipe.sampler, recipe.guidance_scale) == (pool.steps, pool.sampler, pool.guidance_scale)
        assert (recipe.width, recipe.height) == (bucket.width, bucket.height)
    assert len(seeds) == 2


@pytest.mark.parametrize(("word", "status", "code"), [("blocked", 422, "blocked"), ("error", 500, "error")])
def test_the_pools_refusal_becomes_a_status(
    web: Web, client: httpx.Client, aside: ThreadPoolExecutor, word: str, status: int, code: str
) -> None:
    waiting = aside.submit(client.post, "/api/v1/previews", json={"prompt": "a cat"})
    web.pool.refuse(web.pool.take(), **{word: {"code": "x", "message": "withheld"}})
    answer = waiting.result(5)
    assert (answer.status_code, answer.json()["error"]) == (status, {"code": code, "message": "withheld"})


def test_style_that_gives_what_is_not_finite_is_named(
    web: Web, client: httpx.Client, aside: ThreadPoolExecutor
) -> None:
    waiting = aside.submit(client.post, "/api/v1/previews", json={"prompt": "a cat"})
    told = NonFinite.of("step 1 of 4 gave values that are not finite", [StyleUse("huge", 2.0)]).as_dict()
    web.pool.refuse(web.pool.take(), error=told)
    answer = waiting.result(5)
    assert (answer.status_code, answer.json()["error"]) == (422, told)
    assert told["field"] == "styles" and "huge:2" in str(told["message"])


def test_no_worker_is_503_with_a_time_to_come_back(client: httpx.Client) -> None:
    answer = client.post("/api/v1/previews", json={"prompt": "a cat"}, timeout=8 * ANSWER_TIMEOUT_S)
    assert answer.status_code == 503
    assert int(answer.headers["Retry-After"]) > 0
    error = {"code": "unavailable", "message": "waiting for a worker: there is none for preview"}
    assert answer.json()["error"] == error
