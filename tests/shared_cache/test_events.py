"""Streams of events: one a change, resumable, with a tail for the whole process."""

from __future__ import annotations

import base64
import queue
from collections.abc import Iterator

import pytest
import redis

from core.errors import InvalidInput
from core.render import State
from shared_cache.events import Events, Tail
from shared_cache.lanes import Stream
from shared_cache.renders import Renders
from tests.shared_cache.makers import LANE, a_record, running

Heard = queue.Queue[tuple[str, str]]


@pytest.fixture
def events(client: redis.Redis) -> Events:
    return Events(client)


def a_whole_render(client: redis.Redis) -> None:
    renders = Renders(client)
    entry, record = running(client)
    renders.progress("r1", record.attempt, 1, 2)
    renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"x")
    (entry,) = Stream(client, "decode", "decode", "d1").pull(1)
    renders.hand_over(entry, record.attempt, "finish", State.CHECKING, "r1", b"x")
    renders.finish("r1", record.attempt, State.DONE)


def test_every_change_is_one_event(client: redis.Redis, events: Events) -> None:
    a_whole_render(client)
    told = [(event["type"], event["state"]) for _, event in events.read("r1")]
    assert told == [
        ("state", "queued"), ("state", "running"), ("progress", "running"), ("state", "decoding"),
        ("state", "checking"), ("state", "done"),
    ]  # fmt: skip
    assert all((event["id"], event["steps"]) == ("r1", 8) for _, event in events.read("r1"))
    assert [event for _, event in events.feed("ann")] == [event for _, event in events.read("r1")]


def test_reader_goes_on_where_it_left_off(client: redis.Redis, events: Events) -> None:
    a_whole_render(client)
    told = events.read("r1")
    for position, (event_id, _) in enumerate(told):
        assert events.read("r1", event_id) == told[position + 1 :]
    assert events.read("nothing") == []


@pytest.mark.parametrize("after", ["", "$", "-", "1-", "x", "1\n", "9" * 30, "1-1-1", "(1"])
def test_read_refuses_what_is_no_event_id(events: Events, after: str) -> None:
    with pytest.raises(InvalidInput, match="Last-Event-ID"):
        events.read("r1", after)


def test_feed_holds_all_renders_of_its_owner_alone(client: redis.Redis, events: Events) -> None:
    renders = Renders(client)
    for name, owner in (("r1", "ann"), ("r2", "ann"), ("r3", "bob")):
        renders.create(a_record(name, owner=owner), LANE)
    assert [event["id"] for _, event in events.feed("ann")] == ["r1", "r2"]
    assert [event["id"] for _, event in events.feed("bob")] == ["r3"]


def test_glimpse_brings_its_picture_and_replaces_the_one_before(client: redis.Redis, events: Events) -> None:
    _, record = running(client)
    for step, picture in ((2, b"\xff\xd8first"), (4, b"\xff\xd8second")):
        assert events.glimpse("r1", record.attempt, step, picture)
    for told in (events.read("r1"), events.feed("ann")):
        (glimpse,) = [event for _, event in told if event["type"] == "glimpse"]
        assert (glimpse["step"], glimpse["format"]) == (4, "jpeg")
        assert base64.b64decode(glimpse["image_b64"]) == b"\xff\xd8second"


def test_glimpses_are_gone_when_the_render_ends(client: redis.Redis, events: Events) -> None:
    _, record = running(client)
    events.glimpse("r1", record.attempt, 2, b"jpeg")
    Renders(client).finish("r1", record.attempt, State.REJECTED)
    assert "glimpse" not in {event["type"] for _, event in events.read("r1") + events.feed("ann")}
    assert not events.glimpse("r1", record.attempt, 3, b"jpeg")


def test_streams_stay_bounded_when_steps_are_many(client: redis.Redis, events: Events) -> None:
    _, record = running(client)
    Renders(client).progress_many([("r1", record.attempt, step, 1) for step in range(3000)])
    assert client.xlen("fl:events:r1") < 2200
    assert client.xlen("fl:feed:ann") < 2200
    assert client.xlen("fl:pulse") < 1200


@pytest.fixture
def heard(client: redis.Redis) -> Iterator[Heard]:
    told: Heard = queue.Queue()
    tail = Tail(client)

    def hear(render_id: str, owner: str) -> None:
        told.put((render_id, owner))
        if render_id == "bad":
            raise RuntimeError("a reader's own fault")

    tail.start(hear)
    yield told
    tail.stop()


def test_tail_hears_every_change_after_its_start(client: redis.Redis, heard: Heard) -> None:
    renders = Renders(client)
    renders.create(a_record("r1"), LANE)
    renders.cancel("r1")
    assert [heard.get(timeout=2), heard.get(timeout=2)] == [("r1", "ann")] * 2


def test_tail_hears_on_when_its_callback_fails(client: redis.Redis, heard: Heard) -> None:
    renders = Renders(client)
    for name in ("bad", "good"):
        renders.create(a_record(name), LANE)
    assert [heard.get(timeout=2)[0], heard.get(timeout=2)[0]] == ["bad", "good"]


def test_tail_hears_on_when_everything_was_flushed(client: redis.Redis, heard: Heard) -> None:
    renders = Renders(client)
    renders.create(a_record("r1"), LANE)
    assert heard.get(timeout=2)[0] == "r1"
    client.flushall()
    renders.create(a_record("r2"), LANE)
    assert heard.get(timeout=2)[0] == "r2"
