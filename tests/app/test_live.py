"""The socket: the last text is always answered, and nothing older follows something newer."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.sync.client import ClientConnection, connect

from core.wire import unpack_frame
from tests.app.conftest import ANSWER_TIMEOUT_S, JPEG, Web


def say(live: ClientConnection, rev: int, prompt: str = "a cat", **fields: Any) -> None:
    live.send(json.dumps({"rev": rev, "prompt": prompt, **fields}))


def hear(live: ClientConnection, timeout_s: float = 5.0) -> tuple[dict[str, Any], bytes]:
    message = live.recv(timeout_s)
    return (json.loads(message), b"") if isinstance(message, str) else unpack_frame(message)


def assert_silent(live: ClientConnection, seconds: float = 0.2) -> None:
    with pytest.raises(TimeoutError):
        live.recv(seconds)


def test_frame_goes_to_the_session_that_asked(web: Web) -> None:
    with connect(web.socket_url) as one, connect(web.socket_url) as other:
        say(one, 3, "a red fox", seed=7, width=104, height=152, styles=[{"id": "ink", "weight": 0.8}])
        request = web.pool.take()
        assert (request.rev, request.owner, request.recipe.prompt) == (3, "local", "a red fox")
        assert request.recipe.styles[0].weight == 0.8
        web.pool.answer(request)
        header, picture = hear(one)
        assert picture == JPEG
        assert header["rev"] == 3 and header["seed"] == 7 and header["preview_id"] == request.preview_id
        assert (header["width"], header["height"], header["format"]) == (104, 152, "jpeg")
        assert "session" not in header
        assert_silent(other)


def test_only_the_newest_text_waits(web: Web) -> None:
    with connect(web.socket_url) as live:
        for rev in range(20):
            say(live, rev, f"a cat {rev}")
        say(live, 20, "")
        say(live, 21, "a dog")
        assert hear(live)[0]["rev"] == 20  # everything before is posted by now
        time.sleep(0.05)
        assert web.pool.take().recipe.prompt == "a dog"
        assert web.context.mailbox.take(1) == []


def test_an_older_frame_never_follows_a_newer_one(web: Web) -> None:
    with connect(web.socket_url) as live:
        say(live, 1)
        first = web.pool.take()
        say(live, 2)
        second = web.pool.take()
        web.pool.answer(second)
        web.pool.answer(first)
        assert hear(live)[0]["rev"] == 2
        assert_silent(live)


def test_an_older_frame_is_shown_while_the_newer_one_is_made(web: Web) -> None:
    with connect(web.socket_url) as live:
        say(live, 1)
        first = web.pool.take()
        say(live, 2)
        second = web.pool.take()
        web.pool.answer(first)
        assert hear(live)[0]["rev"] == 1
        web.pool.answer(second)
        assert hear(live)[0]["rev"] == 2


def test_no_frame_of_an_older_text_follows_a_refusal(web: Web) -> None:
    with connect(web.socket_url) as live:
        say(live, 1)
        first = web.pool.take()
        say(live, 2, "explicit hentai porn")
        assert "blocked" in hear(live)[0]
        web.pool.answer(first)
        assert_silent(live)
        say(live, 3)
        web.pool.answer(web.pool.take())
        assert hear(live)[0]["rev"] == 3


@pytest.mark.parametrize("word", ["error", "blocked"])
def test_the_pools_refusal_comes_as_text(web: Web, word: str) -> None:
    with connect(web.socket_url) as live:
        say(live, 1)
        web.pool.refuse(web.pool.take(), **{word: {"code": "withheld", "message": "not shown"}})
        message = live.recv(5)
        assert isinstance(message, str)
        assert json.loads(message) == {"rev": 1, word: {"code": "withheld", "message": "not shown"}}


def test_rev_must_grow(web: Web) -> None:
    with connect(web.socket_url) as live:
        say(live, 5)
        request = web.pool.take()
        for rev in (5, 4):
            say(live, rev)
            assert hear(live)[0]["error"]["field"] == "rev"
        web.pool.answer(request)
        assert hear(live)[0]["rev"] == 5


def test_a_request_nobody_answers_is_posted_again(web: Web) -> None:
    with announced(web, ready=True), connect(web.socket_url) as live:
        say(live, 1)
        lost = web.pool.take()
        again = web.pool.take(ANSWER_TIMEOUT_S + 2)
        assert (again.rev, again.preview_id) == (lost.rev, lost.preview_id)
        web.pool.answer(again)
        assert hear(live)[0]["rev"] == 1


@contextmanager
def announced(web: Web, ready: bool) -> Iterator[None]:
    """A worker that says it paints previews, and whether it is warm."""
    web.context.registry.announce("one", {**web.model, "roles": ["preview"], "ready": ready}, 60)
    yield
    web.context.registry.withdraw("one")


def test_the_last_text_is_answered_even_without_a_worker(web: Web) -> None:
    with connect(web.socket_url) as live:
        say(live, 1)
        say(live, 2)
        header, _ = hear(live, 2 * ANSWER_TIMEOUT_S)  # nobody is there to ask a second time
        assert header["rev"] == 2
        error = {"code": "unavailable", "message": "waiting for a worker: there is none for preview"}
        assert header["error"] == error


@pytest.mark.parametrize(("ready", "reason"), [(False, "the model is loading"), (True, "no preview worker answered")])
def test_the_last_text_is_answered_when_a_worker_is_there_and_silent(web: Web, ready: bool, reason: str) -> None:
    with announced(web, ready), connect(web.socket_url) as live:
        say(live, 1)
        assert reason in hear(live, 6 * ANSWER_TIMEOUT_S)[0]["error"]["message"]


def test_an_unseeded_session_keeps_its_seed(web: Web) -> None:
    with connect(web.socket_url) as live:
        say(live, 1)
        first = web.pool.take().recipe.seed
        say(live, 2, "a cat on")
        assert web.pool.take().recipe.seed == first


def test_leaving_drops_what_waits(web: Web) -> None:
    with connect(web.socket_url) as live:
        say(live, 1)
        request = web.pool.take()
        say(live, 2)
        time.sleep(0.1)
    ends_s = time.monotonic() + 5
    while not web.context.redis.exists(f"fl:closed:{request.session}") and time.monotonic() < ends_s:
        time.sleep(0.02)
    assert web.context.mailbox.closed([request.session]) == {request.session}
    assert web.context.mailbox.take(1) == []


def test_bearer_decides_the_owner(web: Web) -> None:
    with connect(web.socket_url, additional_headers={"Authorization": "Bearer secret"}) as live:
        say(live, 1)
        owner = web.pool.take().owner
    assert owner.startswith("token-") and "secret" not in owner
