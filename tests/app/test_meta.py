"""Health, readiness, models and styles."""

from __future__ import annotations

from dataclasses import replace

import httpx

from app.meta import describe_models
from app.roles import ROLES
from core.recipe import Sampler
from core.settings import Settings
from tests.app.conftest import Web


def test_healthz_answers(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}


def test_keepers_that_ask_with_head_are_answered(client: httpx.Client) -> None:
    """As load balancers and monitors do."""
    for path in ("/healthz", "/readyz"):
        answer = client.head(path)
        assert (answer.status_code, answer.content) == (client.get(path).status_code, b"")


def test_readyz_waits_for_every_role(web: Web, client: httpx.Client) -> None:
    registry, model = web.context.registry, web.model
    answer = client.get("/readyz")
    nobody = {
        "ready": False,
        "state": "waiting",
        "reason": "waiting for a worker: there is none for preview, final, decode, finish",
        "roles": dict.fromkeys(ROLES, False),
        "workers": dict.fromkeys(ROLES, 0),
    }
    assert (answer.status_code, answer.json()) == (503, nobody)
    registry.announce("one", {**model, "roles": ROLES[:2], "ready": True})
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["workers"]["preview"]) == (503, 1)
    registry.announce("two", {**model, "roles": ROLES[2:], "ready": True})
    answer = client.get("/readyz")
    everybody = {"roles": dict.fromkeys(ROLES, True), "workers": dict.fromkeys(ROLES, 1)}
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "state": "ready", "reason": "", **everybody})
    for worker in ("one", "two"):
        registry.withdraw(worker)


def test_readyz_is_not_fooled_by_workers_of_another_version(web: Web, client: httpx.Client) -> None:
    other = {**web.model, "version": "another"}
    web.context.registry.announce("one", {**other, "roles": ROLES, "ready": True})
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["roles"]) == (503, {**dict.fromkeys(ROLES, False), "finish": True})
    assert answer.json()["reason"].startswith(f"waiting for a worker with {web.context.profile.model}: ")
    web.context.registry.withdraw("one")


def test_workers_are_listed_with_what_the_server_asks_for(web: Web, client: httpx.Client) -> None:
    web.context.registry.announce("one", {"roles": ["finish"], "ready": ["finish"], "host": "here"})
    found = client.get("/api/v1/workers").json()
    assert (found["model"], found["version"]) == (web.context.profile.id, web.context.profile.version)
    (worker,) = found["workers"]
    assert (worker["id"], worker["host"], worker["ready"]) == ("one", "here", ["finish"])
    assert abs(found["now_s"] - worker["seen_s"]) < 5
    web.context.registry.withdraw("one")


def test_default_roles_are_all_roles() -> None:
    assert Settings.model_fields["roles"].default == ",".join(ROLES)


def test_models_tell_sizes_limits_and_defaults(web: Web, client: httpx.Client) -> None:
    models = client.get("/api/v1/models").json()
    for pool in ("preview", "final"):
        facts = models[pool]
        assert (facts["id"], facts["version"]) == (web.context.profile.id, web.context.profile.version)
        assert facts["licence"] and len(facts["buckets"]) <= 5
        assert facts["limits"]["seed"] == [0, 2**53 - 1]
        assert facts["limits"]["prompt_characters"] == 2000
        assert facts["defaults"]["steps"] <= facts["limits"]["steps"][1]
    assert models["final"]["samplers"] == [sampler.value for sampler in Sampler]
    assert models["final"]["negative_prompts"] is True


def test_models_tell_what_a_network_of_another_family_takes(web: Web) -> None:
    final = replace(web.context.profile.final, samplers=(Sampler.EULER,), negatives=False)
    told = describe_models(replace(web.context.profile, final=final))["final"]
    assert (told["samplers"], told["negative_prompts"]) == (["euler"], False)


def test_styles_are_listed_and_single_without_their_paths(client: httpx.Client) -> None:
    styles = client.get("/api/v1/styles").json()["styles"]
    assert len(styles) >= 2
    for style in styles:
        assert "path" not in style and style["licence"]
        assert client.get(f"/api/v1/styles/{style['id']}").json() == style
    answer = client.get("/api/v1/styles/nothing")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
