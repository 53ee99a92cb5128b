"""What processes hang out, and what waits, as /metrics finds it."""

from __future__ import annotations

import time

import redis

from shared_cache import keys
from shared_cache.lanes import decode_stage, lane_name
from shared_cache.mailbox import Mailbox
from shared_cache.metrics import Board, Depth
from shared_cache.renders import Renders
from tests.shared_cache.makers import BUCKET, MODEL, a_record, a_request, running


def depths(client: redis.Redis) -> dict[str, Depth]:
    return {depth.lane: depth for depth in Board(client).look([BUCKET, "128x96"], MODEL).depths}


def test_texts_are_those_of_processes_that_publish(client: redis.Redis) -> None:
    board = Board(client)
    assert board.look([BUCKET], MODEL).texts == {}
    board.publish("one", "é 1\n")
    board.publish("two", "b 2\n")
    board.publish("one", "é 3\n")
    assert board.look([BUCKET], MODEL).texts == {"one": "é 3\n", "two": "b 2\n"}
    board.withdraw("two")
    assert board.look([BUCKET], MODEL).texts == {"one": "é 3\n"}


def test_text_of_a_process_that_fell_silent_is_gone(client: redis.Redis) -> None:
    board = Board(client)
    board.publish("one", "a 1\n", ttl_s=0.05)
    time.sleep(0.08)
    assert board.look([BUCKET], MODEL).texts == {}
    assert client.smembers(keys.METERED) == set()
    board.publish("one", "a 1\n")
    assert 5 < client.ttl(keys.METRICS_PREFIX + "one") <= 10


def test_nothing_waits_in_an_empty_queue(client: redis.Redis) -> None:
    look = Board(client).look([BUCKET, "128x96"], MODEL)
    assert [(depth.pool, depth.lane) for depth in look.depths] == [
        ("preview", "mailbox"),
        ("final", f"standard:{BUCKET}"),
        ("final", "standard:128x96"),
        ("decode", "decode"),
        ("finish", "finish"),
    ]
    assert {(depth.waiting, depth.held, depth.oldest_s) for depth in look.depths} == {(0, 0, 0.0)}
    assert look.open_renders == 0
    assert client.dbsize() == 0  # looking leaves nothing behind


def test_lane_tells_what_waits_what_is_held_and_since_when(client: redis.Redis) -> None:
    running(client, "r1")
    time.sleep(0.05)
    for name in ("r2", "r3"):
        Renders(client).create(a_record(name), lane_name("standard", BUCKET))
    time.sleep(0.02)
    lane = depths(client)[f"standard:{BUCKET}"]
    assert (lane.waiting, lane.held) == (2, 1)
    assert 0.02 <= lane.oldest_s < 0.05 + 5
    assert depths(client)["standard:128x96"].waiting == 0
    assert Board(client).look([BUCKET], MODEL).open_renders == 3


def test_oldest_is_the_first_that_nobody_holds_in_whatever_order_they_were_taken(client: redis.Redis) -> None:
    group = decode_stage(MODEL)
    stream = keys.stream(group)
    for _ in range(3):
        client.xadd(stream, {"id": "r", "attempt": "1"})
        time.sleep(0.03)
    client.xgroup_create(stream, group, "0")
    first, _, third = (entry_id for entry_id, _ in client.xrange(stream))
    client.xclaim(stream, group, "d1", 0, [third], force=True, justid=True)
    both = depths(client)["decode"]
    assert (both.waiting, both.held) == (2, 1) and both.oldest_s >= 0.09
    client.xclaim(stream, group, "d1", 0, [first], force=True, justid=True)
    one = depths(client)["decode"]
    assert (one.waiting, one.held) == (1, 2) and 0.06 <= one.oldest_s < both.oldest_s


def test_mailbox_tells_how_many_sessions_wait_and_how_long_the_first_does(client: redis.Redis) -> None:
    mailbox = Mailbox(client, MODEL)
    mailbox.post(a_request("s1"))
    time.sleep(0.05)
    mailbox.post(a_request("s2"))
    mailbox.post(a_request("s1", rev=2))
    waiting = depths(client)["mailbox"]
    assert waiting.waiting == 2 and 0.05 <= waiting.oldest_s < 5
    mailbox.take(2)
    assert depths(client)["mailbox"] == Depth("preview", "mailbox", 0, 0, 0.0)
