"""Renders over HTTP: asking, following a preview, looking, cancelling, history, owners."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest

from app.records import view
from core.recipe import StyleUse
from core.render import State
from tests.app.conftest import JPEG, Web

PATH = "/api/v1/renders"


def ask(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    answer = client.post(PATH, json={"prompt": "a cat", **fields})
    assert answer.status_code == 202, answer.text
    return dict(answer.json())


def test_ask_answers_with_place_and_prediction(client: httpx.Client) -> None:
    asked = ask(client, seed=7, steps=12, guidance_scale=3, sampler="dpmpp_2m", n=2, styles=[{"id": "ink"}])
    assert asked["state"] == "queued" and asked["position"] >= 1 and asked["predicted_s"] > 0
    record = client.get(f"{PATH}/{asked['id']}").json()
    recipe = record["recipe"]
    assert (recipe["seed"], recipe["steps"], recipe["guidance_scale"], recipe["sampler"]) == (7, 12, 3.0, "dpmpp_2m")
    assert recipe["styles"] == [{"id": "ink", "weight": 1.0}]
    assert recipe["handoff"] == "fresh" and record["handoff"]["mode"] == "fresh"
    assert record["progress"] == {"step": 0, "steps": 12}
    assert record["images"] == [] and record["error"] is None and record["n"] == 2


def test_random_seed_is_told(client: httpx.Client) -> None:
    asked = ask(client)
    assert client.get(f"{PATH}/{asked['id']}").json()["recipe"]["seed"] == asked["seed"]


def test_seeds_of_all_images_fit(client: httpx.Client) -> None:
    top = 2**53 - 1
    assert ask(client, seed=top)["seed"] == top
    assert client.post(PATH, json={"prompt": "a", "seed": top, "n": 2}).json()["error"]["field"] == "seed"


def test_following_a_preview_takes_its_recipe(web: Web, client: httpx.Client) -> None:
    preview_id = web.stored_preview("local", prompt="a blue boat", seed=41, width=152, height=104)
    answer = client.post(PATH, json={"preview_id": preview_id, "steps": 9, "negative_prompt": "text", "seed": 41})
    assert answer.status_code == 202, answer.text
    record = client.get(f"{PATH}/{answer.json()['id']}").json()
    recipe = record["recipe"]
    assert (recipe["prompt"], recipe["seed"], recipe["width"], recipe["height"]) == ("a blue boat", 41, 152, 104)
    assert (recipe["steps"], recipe["negative_prompt"], recipe["handoff"]) == (9, "text", "match")
    assert recipe["guidance_scale"] == web.context.profile.final.guidance_scale
    assert record["preview_id"] == preview_id
    assert client.get(record["preview_url"]).content == JPEG


@pytest.mark.parametrize(
    ("field", "value"),
    [("prompt", "a cat"), ("seed", 1), ("width", 64), ("height", 64), ("styles", [{"id": "ink"}])],
)
def test_following_a_preview_refuses_to_change_it(web: Web, client: httpx.Client, field: str, value: Any) -> None:
    preview_id = web.stored_preview("local")
    fields = {"preview_id": preview_id, field: "a dog" if field == "prompt" else value}
    answer = client.post(PATH, json=fields)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, field)


def test_following_a_preview_takes_its_styles_in_any_order(web: Web, client: httpx.Client) -> None:
    preview_id = web.stored_preview("local", styles=(StyleUse("noto", 0.5), StyleUse("ink", 1.0)))
    repeated = [{"id": "ink", "weight": 1.0}, {"id": "noto", "weight": 0.5}]
    assert client.post(PATH, json={"preview_id": preview_id, "styles": repeated}).status_code == 202
    twice = [*repeated, repeated[0]]
    assert client.post(PATH, json={"preview_id": preview_id, "styles": twice}).status_code == 422


def test_preview_of_another_version_is_not_followed(web: Web, client: httpx.Client) -> None:
    preview_id = web.stored_preview("local", model_version="another")
    answer = client.post("/api/v1/renders", json={"preview_id": preview_id})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "preview_id")
    assert "another version" in answer.json()["error"]["message"]


def test_full_queue_server_is_503_unavailable_and_the_log_says_why(
    web: Web, client: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    web.context.redis.config_set("maxmemory", 1)
    try:
        answer = client.post("/api/v1/renders", json={"prompt": "a cat"})
    finally:
        web.context.redis.config_set("maxmemory", 0)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")
    assert "takes nothing new" in answer.json()["error"]["message"] and answer.headers["Retry-After"]
    assert "raise its maxmemory" in caplog.text


def test_queued_render_says_which_model_no_worker_has(web: Web, client: httpx.Client) -> None:
    render_id = client.post("/api/v1/renders", json={"prompt": "a cat"}).json()["id"]
    record = web.context.renders.get(render_id)
    assert record is not None
    assert view(web.context, record, "")["waits_for"] == record.recipe.model
    old = replace(record, recipe=replace(record.recipe, model_version="old"))
    assert view(web.context, old, "")["waits_for"] == "storybook@old"
    web.context.registry.announce("one", {**web.model, "version": "old", "roles": ["final"], "ready": ["final"]})
    assert view(web.context, old, "")["waits_for"] is None
    web.context.registry.withdraw("one")
    web.context.renders.cancel(render_id)


def test_another_owners_preview_is_unknown(web: Web) -> None:
    preview_id = web.stored_preview("local")
    with web.client("other") as other:
        answer = other.post(PATH, json={"preview_id": preview_id})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "preview_id")


def test_idempotency_key_gives_the_same_render(client: httpx.Client) -> None:
    key = {"Idempotency-Key": "one"}
    first = client.post(PATH, json={"prompt": "a cat"}, headers=key)
    again = client.post(PATH, json={"prompt": "a cat"}, headers=key)
    assert first.json()["id"] == again.json()["id"] and again.status_code == 202
    other = client.post(PATH, json={"prompt": "a dog"}, headers=key)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")


def test_idempotency_outlives_the_preview(web: Web, client: httpx.Client) -> None:
    preview_id = web.stored_preview("local")
    asked: dict[str, Any] = {"json": {"preview_id": preview_id}, "headers": {"Idempotency-Key": "accepted"}}
    first = client.post(PATH, **asked).json()["id"]
    web.context.redis.delete(f"fl:preview:{preview_id}")
    assert client.post(PATH, **asked).json()["id"] == first


def test_idempotency_keys_belong_to_an_owner(web: Web, client: httpx.Client) -> None:
    asked: dict[str, Any] = {"json": {"prompt": "a cat"}, "headers": {"Idempotency-Key": "mine"}}
    with web.client("other") as other:
        assert client.post(PATH, **asked).json()["id"] != other.post(PATH, **asked).json()["id"]


def test_broken_idempotency_key_is_refused(client: httpx.Client) -> None:
    for key in ("", "a b", "x" * 201):
        answer = client.post(PATH, json={"prompt": "a cat"}, headers={"Idempotency-Key": key})
        assert (answer.status_code, answer.json()["error"]["field"]) == (422, "Idempotency-Key")


def test_one_owner_never_sees_or_cancels_anothers(web: Web, client: httpx.Client) -> None:
    mine = ask(client)["id"]
    with web.client("other") as other:
        assert other.get(f"{PATH}/{mine}").status_code == 404
        assert other.delete(f"{PATH}/{mine}").status_code == 404
        assert other.get(f"{PATH}/{mine}/events").status_code == 404
        assert other.get(f"{PATH}/{mine}/preview").status_code == 404
        assert mine not in other.get(PATH).text
    assert client.get(f"{PATH}/{mine}").json()["state"] == "queued"


def test_cancel_is_immediate_and_idempotent(web: Web, client: httpx.Client) -> None:
    mine, neighbour = ask(client)["id"], ask(client)["id"]
    for _ in range(2):
        answer = client.delete(f"{PATH}/{mine}")
        assert (answer.status_code, answer.json()["state"]) == (200, "cancelled")
    assert client.get(f"{PATH}/{neighbour}").json()["state"] == "queued"


def test_cancel_after_the_end_changes_nothing(web: Web, client: httpx.Client) -> None:
    mine = ask(client)["id"]
    record = web.context.renders.claim(mine, 3)
    assert record is not None
    web.context.renders.finish(mine, record.attempt, State.FAILED, error={"code": "x", "message": "y"})
    assert client.delete(f"{PATH}/{mine}").json()["state"] == "failed"


@pytest.mark.parametrize("name", ["nope", "%00", "..%5c..", "%2e%2e", "a" * 500, "x%0d%0ay", "%F0%9F%98%80"])
def test_no_such_render_is_404(client: httpx.Client, name: str) -> None:
    answer = client.get(f"{PATH}/{name}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_history_is_the_owners_newest_first_in_pages(web: Web) -> None:
    with web.client("historian") as client:
        ids = [ask(client, seed=seed)["id"] for seed in range(5)]
        page = client.get(PATH, params={"limit": 3}).json()
        assert [record["id"] for record in page["renders"]] == ids[:1:-1]
        rest = client.get(page["next"]).json()
        assert [record["id"] for record in rest["renders"]] == ids[1::-1]
        assert rest["next"] is None


@pytest.mark.parametrize("query", ["limit=0", "limit=-1", "limit=1000", "limit=x", "before_s=nan", "before_s=-1"])
def test_history_refuses_odd_pages(client: httpx.Client, query: str) -> None:
    answer = client.get(f"{PATH}?{query}")
    field = query.partition("=")[0]
    bound = {"limit": "a whole number in 1…100", "before_s": "a time in seconds above 0"}[field]
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["field"]) == (422, "invalid", field)
    assert error["message"].startswith(f"{field}: must be {bound}")


def test_deadline_that_cannot_be_met_is_503_with_what_would_fit(client: httpx.Client) -> None:
    answer = client.post(PATH, json={"prompt": "a cat", "steps": 100, "deadline_s": 0.01})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "overloaded")
    assert error["predicted_s"] > 0.01 and int(answer.headers["Retry-After"]) >= 1


def test_done_render_has_signed_pictures(web: Web, client: httpx.Client) -> None:
    mine = ask(client, seed=3)["id"]
    record = web.context.renders.claim(mine, 3)
    assert record is not None
    key = f"renders/{mine}/0.png"
    web.context.objects.put(key, b"png bytes", "image/png")
    image = {"key": key, "sha256": "0" * 64, "seed": 3, "width": 128, "height": 128}
    web.context.renders.finish(mine, record.attempt, State.DONE, images=[image], handoff={"similarity": 0.9})
    seen = client.get(f"{PATH}/{mine}").json()
    assert seen["images"][0]["seed"] == 3 and "key" not in seen["images"][0]
    assert client.get(seen["images"][0]["url"]).content == b"png bytes"
    assert seen["preview_url"] is None
    assert client.get(f"{PATH}/{mine}").json()["images"] == seen["images"]  # the same URL, so browsers cache it
