"""A render that a leaving worker hands back waits as before, and nothing of its worker reaches it any more."""

from __future__ import annotations

import pytest
import redis

from core.render import State
from shared_cache.events import Events
from shared_cache.lanes import FINAL_GROUP, Signal
from shared_cache.renders import Renders
from tests.shared_cache.makers import LANE, a_record, lanes, take


@pytest.fixture
def renders(client: redis.Redis) -> Renders:
    return Renders(client)


def test_handed_back_render_is_queued_where_it_was(client: redis.Redis, renders: Renders) -> None:
    for name in ("first", "second", "third"):
        renders.create(a_record(name, owner=name, work_s=1.0), LANE)
    leaving = lanes(client, "leaving")
    taken = take(leaving, 2)
    attempts = {}
    for entry in taken:
        record = renders.claim(entry.render_id, 3)
        assert record is not None
        attempts[record.id] = record.attempt
        renders.progress(record.id, record.attempt, 4, 1)
    assert leaving.hand_back(attempts) == ["first", "second"]
    found = renders.get("second")
    assert found is not None and (found.state, found.step, found.batch_sizes) == (State.QUEUED, 0, [])
    assert [renders.position(name) for name in ("first", "second", "third")] == [0, 1, 2]
    assert lanes(client, "heir").take_over(0) == []  # nobody holds it
    assert renders.repair() == []  # and nothing is amiss
    assert [entry.render_id for entry in take(lanes(client, "heir"), 9)] == ["first", "second", "third"]


def test_handing_back_costs_no_attempt(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record(), LANE)
    for _ in range(5):
        mine = lanes(client)
        take(mine, 1)
        record = renders.claim("r1", 1)
        assert record is not None
        assert mine.hand_back({"r1": record.attempt}) == ["r1"]
    take(lanes(client), 1)
    assert renders.claim("r1", 1) is not None  # its one attempt
    assert renders.claim("r1", 1) is None
    failed = renders.get("r1")
    assert failed is not None and failed.error is not None
    assert failed.error["message"] == "gave up after 1 attempts"


def test_late_writes_of_who_handed_back_are_fenced(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record(), LANE)
    mine = lanes(client)
    (entry,) = take(mine, 1)
    record = renders.claim("r1", 3)
    assert record is not None
    mine.hand_back({"r1": record.attempt})
    assert not renders.progress("r1", record.attempt, 5, 1)
    assert not Events(client).glimpse("r1", record.attempt, 5, b"jpeg")
    assert not renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"latents")
    assert mine.hand_back({"r1": record.attempt}) == []
    mine.ack(entry)  # holds nothing
    assert [found.render_id for found in take(lanes(client, "heir"), 1)] == ["r1"]


def test_only_what_is_held_and_running_is_handed_back(client: redis.Redis, renders: Renders) -> None:
    mine, other = lanes(client), lanes(client, "other")
    for name in ("cancelled", "taken", "mine"):
        renders.create(a_record(name), LANE)
    take(mine, 3)
    attempts = {}
    for name in ("cancelled", "taken", "mine"):
        record = renders.claim(name, 3)
        assert record is not None
        attempts[name] = record.attempt
    renders.cancel("cancelled")
    assert len(other.take_over(0, count=1)) == 1
    assert mine.hand_back(attempts) == ["mine"]


def test_handing_back_wakes_another_worker(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record(), LANE)
    mine, signal = lanes(client), Signal(client, FINAL_GROUP)
    take(mine, 1)
    record = renders.claim("r1", 3)
    assert record is not None and signal.wait(0.1)
    mine.hand_back({"r1": record.attempt})
    assert signal.wait(0.1)
    assert mine.hand_back({}) == []
