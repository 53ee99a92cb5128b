"""Newest request of each session, fair order, and frames back."""

from __future__ import annotations

import threading
import time

import pytest
import redis

from core.recipe import StyleUse
from shared_cache import keys
from shared_cache.mailbox import Mailbox, Replies
from shared_cache.registry import ReadyWorkers, Registry
from tests.shared_cache.makers import MODEL, a_request


@pytest.fixture
def mailbox(client: redis.Redis) -> Mailbox:
    return Mailbox(client, MODEL)


def test_take_gives_the_newest_once_when_two_were_posted(mailbox: Mailbox) -> None:
    mailbox.post(a_request(rev=1, prompt="a"))
    mailbox.post(a_request(rev=2, prompt="ab"))
    (request,) = mailbox.take(8)
    assert (request.rev, request.recipe.prompt) == (2, "ab")
    assert mailbox.take(8) == []


def test_take_keeps_the_later_rev_when_posts_cross(mailbox: Mailbox) -> None:
    mailbox.post(a_request(rev=6))
    mailbox.post(a_request(rev=5))
    assert [request.rev for request in mailbox.take(8)] == [6]
    mailbox.post(a_request(rev=5))  # also after the later one was taken
    assert mailbox.take(8) == []


def test_take_gives_the_longest_waiting_session_first(mailbox: Mailbox) -> None:
    for session in ("a", "b", "c"):
        mailbox.post(a_request(session))
        time.sleep(0.002)
    mailbox.post(a_request("a", rev=2))  # typing on does not cost the place
    assert [(r.session, r.rev) for r in mailbox.take(2)] == [("a", 2), ("b", 1)]
    assert [r.session for r in mailbox.take(2)] == ["c"]


def test_take_drops_what_cannot_be_read_and_gives_the_rest(mailbox: Mailbox, client: redis.Redis) -> None:
    client.hset(keys.mail("bad"), mapping={"rev": 1, "request": "{", "model": MODEL})
    client.zadd(keys.mail_ready(MODEL), {"bad": 0})
    mailbox.post(a_request("good"))
    assert [request.session for request in mailbox.take(8)] == ["good"]
    assert mailbox.take(8) == []


def test_request_comes_through_whole(mailbox: Mailbox) -> None:
    request = a_request(prompt="テスト 😀 \u200d (cat:1.2)")
    mailbox.post(request)
    assert mailbox.take(1) == [request]


def test_closed_session_has_no_mail(mailbox: Mailbox) -> None:
    mailbox.post(a_request("a"))
    mailbox.post(a_request("b"))
    mailbox.close("a")
    assert mailbox.closed(["a", "b"]) == {"a"}
    assert [request.session for request in mailbox.take(8)] == ["b"]
    mailbox.post(a_request("a"))  # the session came back
    assert mailbox.closed(["a"]) == set()


def mailbox_with(client: redis.Redis, name: str, *styles: str) -> Mailbox:
    """That of a ready preview worker which has these styles."""
    registry = Registry(client)
    id, _, version = MODEL.partition("@")
    info = {"roles": ["preview"], "ready": True, "model": id, "version": version, "installed": styles}
    registry.announce(name, info)
    return Mailbox(client, MODEL, styles, ReadyWorkers(registry, "preview", MODEL, refresh_s=0))


def test_request_of_a_style_is_left_to_who_has_it(client: redis.Redis) -> None:
    plain, inked = mailbox_with(client, "plain"), mailbox_with(client, "inked", "ink")
    plain.post(a_request("styled", styles=(StyleUse("ink", 1.0),)))
    plain.post(a_request("bare"))
    assert [request.session for request in plain.take(8)] == ["bare"]
    assert plain.take(8) == []
    assert [request.session for request in inked.take(8)] == ["styled"]


def test_request_that_was_left_keeps_its_place(client: redis.Redis) -> None:
    plain, inked = mailbox_with(client, "plain"), mailbox_with(client, "inked", "ink")
    plain.post(a_request("styled", styles=(StyleUse("ink", 1.0),)))
    assert plain.take(8) == []
    plain.post(a_request("bare"))
    assert [request.session for request in inked.take(1)] == ["styled"]


def test_request_of_styles_that_nobody_has_together_is_everybodys(client: redis.Redis) -> None:
    """Its taker says what it lacks."""
    boxes = [mailbox_with(client, "inked", "ink"), mailbox_with(client, "noted", "noto"), mailbox_with(client, "plain")]
    for box in boxes:
        box.post(a_request(rev=1 + boxes.index(box), styles=(StyleUse("ink", 0.5), StyleUse("noto", 0.5))))
        assert len(box.take(8)) == 1


def test_many_posters_and_takers_lose_no_last_request(client: redis.Redis) -> None:
    sessions, revs = [f"s{n}" for n in range(8)], 40
    newest: dict[str, int] = {}
    lock, posting = threading.Lock(), threading.Event()

    def post(session: str) -> None:
        box = Mailbox(client, MODEL)
        for rev in range(1, revs + 1):
            box.post(a_request(session, rev))

    def take() -> None:
        box = Mailbox(client, MODEL)
        while True:
            over = posting.is_set()
            found = box.take(3)
            with lock:
                for request in found:
                    assert request.rev > newest.get(request.session, 0)
                    newest[request.session] = request.rev
            if over and not found:
                return

    posters = [threading.Thread(target=post, args=(session,)) for session in sessions]
    taker = threading.Thread(target=take)
    for thread in (*posters, taker):
        thread.start()
    for thread in posters:
        thread.join()
    posting.set()
    taker.join()
    assert newest == dict.fromkeys(sessions, revs)


def test_replies_come_in_order_and_to_their_list_alone(client: redis.Redis) -> None:
    replies = Replies(client)
    replies.push("web-1", b"\x00a")
    replies.push("web-1", b"b")
    assert replies.pop("web-2", 0.05) is None
    assert [replies.pop("web-1", 1), replies.pop("web-1", 1)] == [b"\x00a", b"b"]


def test_unread_replies_are_forgotten(client: redis.Redis) -> None:
    Replies(client).push("web-1", b"a")
    assert 0 < client.ttl(keys.reply("web-1")) <= 60
