"""Bad input is a 4xx that names the field, over HTTP and over the socket, and queues nothing."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from tests.app.conftest import Web

JSON = {"Content-Type": "application/json"}
GOOD = {"prompt": "a cat"}
LIMIT = 2000
RECIPES: list[tuple[str, Any, str]] = [
    ("prompt", "", "empty"),
    ("prompt", "  \t\n\u200b ", "empty"),
    ("prompt", "a" * 10_000, str(LIMIT)),
    ("prompt", "a\0cat", "NUL"),
    ("prompt", "a \ud800 cat", "surrogate"),
    ("prompt", 7, "text"),
    ("prompt", "a (cat:nan)", ""),
    ("negative_prompt", "\udfff", "surrogate"),
    ("width", 0, "64"),
    ("width", -8, "64"),
    ("width", 60, "64"),
    ("height", 100_000, "64"),
    ("height", 96.0, "whole"),
    ("steps", 0, "1"),
    ("steps", -1, "1"),
    ("steps", 1001, "1"),
    ("seed", -1, "9007199254740991"),
    ("seed", 1.5, "whole"),
    ("seed", 2**63, "9007199254740991"),
    ("seed", 10**400, ""),
    ("seed", "7", "whole"),
    ("seed", True, "whole"),
    ("styles", [{"id": "no such style"}], 'styles.0.id: no style "no such style"; known are chalk, ink'),
    ("styles", [{"id": "../../etc/passwd"}], "known are"),
    ("styles", [{"id": "ink", "weight": float("nan")}], "number"),
    ("styles", [{"id": "ink", "weight": 99}], "styles.0.weight: must be a number in 0…2"),
    ("styles", [{"id": "ink"}, {"id": "ink"}], "twice"),
    ("colour", "blue", "not a field"),
]
RENDERS: list[tuple[str, Any, str]] = [
    ("guidance_scale", -3, "0"),
    ("guidance_scale", float("nan"), "number"),
    ("guidance_scale", float("inf"), "number"),
    ("guidance_scale", 10**400, ""),
    ("sampler", "dpm++ 9000", "euler"),
    ("handoff", "loose", "match"),
    ("handoff", "", "match"),
    ("handoff", "match", "preview"),
    ("deadline_s", -1, "0"),
    ("deadline_s", float("nan"), "number"),
    ("n", 0, "1"),
    ("n", 5, "4"),
    ("preview_id", "never-was", "no such preview"),
    ("preview_id", "../../x", "not the id"),
]


def name_of(case: tuple[str, Any, str]) -> str:
    return f"{case[0]}-{ascii(case[1])[:24]}"


def assert_refused(answer: httpx.Response, field: str, bound: str) -> None:
    assert answer.status_code == 422, answer.text
    error = answer.json()["error"]
    assert error["field"].startswith(field), error
    assert bound in error["message"], error


@pytest.mark.parametrize("case", RECIPES, ids=name_of)
@pytest.mark.parametrize("path", ["/api/v1/previews", "/api/v1/renders"])
def test_http_refuses_a_recipe(web: Web, client: httpx.Client, path: str, case: tuple[str, Any, str]) -> None:
    field, value, bound = case
    waiting = len(web.context.renders.unfinished())
    answer = client.post(path, content=json.dumps({**GOOD, field: value}), headers=JSON)
    assert_refused(answer, field, bound)
    assert len(web.context.renders.unfinished()) == waiting
    assert web.context.mailbox.take(1) == []


@pytest.mark.parametrize("case", RENDERS, ids=name_of)
def test_renders_refuses_what_only_renders_have(client: httpx.Client, case: tuple[str, Any, str]) -> None:
    field, value, bound = case
    answer = client.post("/api/v1/renders", content=json.dumps({**GOOD, field: value}), headers=JSON)
    assert_refused(answer, field, bound)


def test_socket_refuses_all_of_them_and_lives_on(web: Web) -> None:
    with connect(web.socket_url) as live:
        for rev, (field, value, bound) in enumerate(RECIPES):
            live.send(json.dumps({**GOOD, "rev": rev, field: value}))
            answer = json.loads(live.recv(5))
            assert answer["rev"] == rev, answer
            assert answer["error"]["field"].startswith(field), answer
            assert bound in answer["error"]["message"], answer
        assert web.context.mailbox.take(1) == []
        live.send(json.dumps({**GOOD, "rev": len(RECIPES)}))
        assert web.pool.take().rev == len(RECIPES)


@pytest.mark.parametrize(
    ("text", "rev"),
    [
        ("{", None),
        ("[]", None),
        ("7", None),
        ('{"prompt": "a cat"}', None),
        ('{"rev": "7", "prompt": "a"}', None),
        ('{"rev": -1, "prompt": "a"}', None),
        ('{"rev": 3}', 3),
        ("[" * 50_000, None),
        (b"\x00\x01", None),
        ('{"rev": 1, "seed": ' + "9" * 5000 + "}", None),
        ('{"rev": 16, "prompt": "' + "a" * 100_000 + '"}', 16),
        ('{"prompt": "' + "a" * 70_000 + '"}', None),
    ],
    ids=lambda case: ascii(case)[:30],
)
def test_socket_refuses_what_is_no_request(web: Web, text: str | bytes, rev: int | None) -> None:
    with connect(web.socket_url) as live:
        live.send(text)
        answer = json.loads(live.recv(5))
        assert answer["rev"] == rev
        assert answer["error"]["code"] == "invalid"
        assert answer["error"]["field"]


@pytest.mark.parametrize("path", ["/api/v1/previews", "/api/v1/renders"])
@pytest.mark.parametrize(
    "content",
    [b"{", b"", b"[]", b"null", b'"a cat"', b"[" * 50_000, b"\xff\xfe{}", b'{"seed": ' + b"9" * 5000 + b"}"],
    ids=lambda content: ascii(content)[:20],
)
def test_broken_json_is_told_in_our_shape(client: httpx.Client, path: str, content: bytes) -> None:
    answer = client.post(path, content=content, headers=JSON)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]["code"] == "invalid"


@pytest.mark.parametrize("content", [b"[" * 60_000, b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}"], ids=len)
def test_json_beyond_reason_is_invalid_like_any_other_input(client: httpx.Client, content: bytes) -> None:
    assert_refused(client.post("/api/v1/renders", content=content, headers=JSON), "body", "digits")


def test_surrogate_in_a_name_is_no_field(client: httpx.Client) -> None:
    answer = client.post("/api/v1/renders", content=b'{"prompt": "a", "co\\ud800lour": 1}', headers=JSON)
    assert_refused(answer, "body", "Unicode")


def test_a_form_is_not_taken_for_json(client: httpx.Client) -> None:
    answer = client.post("/api/v1/renders", data={"prompt": "a cat"})
    assert answer.status_code == 422
    assert "application/json" in answer.json()["error"]["message"]


def test_body_beyond_the_limit_is_413(client: httpx.Client) -> None:
    for content in (b"x" * 70_000, iter([b"x" * 40_000] * 3)):
        answer = client.post("/api/v1/renders", content=content, headers=JSON)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "too_large"


def test_blocked_prompt_is_refused_before_any_compute(web: Web, client: httpx.Client) -> None:
    blocked = {"prompt": "explicit hentai porn"}
    for path in ("/api/v1/previews", "/api/v1/renders"):
        answer = client.post(path, json=blocked)
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "blocked")
    with connect(web.socket_url) as live:
        live.send(json.dumps({**blocked, "rev": 4}))
        answer = json.loads(live.recv(5))
        assert answer["rev"] == 4 and answer["blocked"]["code"] == "blocked"
    assert web.context.mailbox.take(1) == []


def test_null_is_as_if_left_out(web: Web, client: httpx.Client) -> None:
    fields = ("negative_prompt", "seed", "width", "height", "styles", "steps")
    nothing = dict.fromkeys(fields)
    with connect(web.socket_url) as live:
        live.send(json.dumps({**GOOD, **nothing, "rev": 1}))
        asked = web.pool.take().recipe
    assert (asked.negative_prompt, asked.styles, asked.width) == ("", (), 128)
    more = dict.fromkeys(("preview_id", "guidance_scale", "sampler", "handoff", "deadline_s", "n"))
    answer = client.post("/api/v1/renders", json={**GOOD, **nothing, **more})
    assert answer.status_code == 202, answer.text


@pytest.mark.parametrize(
    "prompt", ["テスト 😀", "שלום עולם", "a\u200bcat", "text:1.4", "((((", "(a:", r"\(fate\)", "../../etc/passwd"]
)
def test_unusual_text_is_welcome(web: Web, client: httpx.Client, prompt: str) -> None:
    answer = client.post("/api/v1/renders", json={"prompt": prompt, "negative_prompt": "text:1.4"})
    assert answer.status_code == 202, answer.text
    record = client.get(f"/api/v1/renders/{answer.json()['id']}").json()
    assert record["recipe"]["prompt"] == prompt
