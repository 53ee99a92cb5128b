"""Waiting work: order, holding, taking over, and what is dropped."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import pytest
import redis

from core.render import State
from shared_cache.lanes import Entry, Signal, Stream, lane_name
from shared_cache.renders import Renders
from tests.shared_cache.makers import LANE, a_record, lanes, take


@pytest.fixture
def renders(client: redis.Redis) -> Renders:
    return Renders(client)


def ids(entries: Sequence[Entry]) -> list[str]:
    return [entry.render_id for entry in entries]


def test_take_gives_the_oldest_of_all_lanes_first(client: redis.Redis, renders: Renders) -> None:
    for number in range(6):
        lane = LANE if number % 2 else lane_name("standard", "128x96")
        renders.create(a_record(f"r{number}"), lane)
        time.sleep(0.002)  # entries of one millisecond have no order across lanes
    both = lanes(client)
    assert ids(take(both, 3)) == ["r0", "r1", "r2"]
    assert ids(take(both, 2)) == ["r3", "r4"]
    assert ids(take(lanes(client, "worker-2"), 9)) == ["r5"]
    assert take(both, 9) == []


def test_each_entry_goes_to_one_of_several_that_take_at_once(client: redis.Redis, renders: Renders) -> None:
    for number in range(10):
        renders.create(a_record(f"r{number}"), LANE)
    got: list[str] = []
    lock = threading.Lock()

    def work(name: str) -> None:
        mine = lanes(client, name)
        while entries := take(mine, 2):
            with lock:
                got.extend(ids(list(entries)))

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [f"r{n}" for n in range(10)]


def test_depth_counts_what_no_worker_has_yet(client: redis.Redis, renders: Renders) -> None:
    mine = lanes(client)
    assert set(mine.depth().values()) == {0}
    for number in range(3):
        renders.create(a_record(f"r{number}"), LANE)
    assert mine.depth()[LANE] == 3
    (entry,) = take(mine, 1)
    assert mine.depth()[LANE] == 2
    mine.ack(entry)
    mine.ack(entry)
    assert mine.depth()[LANE] == 2


def test_entry_of_a_dead_worker_is_taken_over_when_its_lease_is_over(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record(), LANE)
    (entry,) = take(lanes(client, "dead"), 1)  # killed between take and claim
    other = lanes(client, "alive")
    assert take(other, 1) == []
    assert other.take_over(60) == []
    time.sleep(0.06)
    assert other.take_over(0.05) == [entry]
    record = renders.claim(entry.render_id, 3)
    assert record is not None and record.attempt == 1


def test_heartbeat_keeps_an_entry_past_its_lease(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record(), LANE)
    mine, other = lanes(client, "mine"), lanes(client, "other")
    entries = take(mine, 1)
    for _ in range(4):  # 1.2 s of work under a lease of 1 s
        time.sleep(0.3)
        assert mine.heartbeat(entries) == []
        assert other.take_over(1.0) == []


def test_heartbeat_tells_of_a_lost_entry_and_does_not_take_it_back(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record(), LANE)
    late, other = lanes(client, "late"), lanes(client, "other")
    entries = take(late, 1)
    assert other.take_over(0) == entries
    assert late.heartbeat(entries) == entries
    assert other.heartbeat(entries) == []
    renders.cancel("r1")
    assert other.heartbeat(entries) == entries


def test_take_over_claims_no_more_than_asked(client: redis.Redis, renders: Renders) -> None:
    for number in range(5):
        renders.create(a_record(f"r{number}"), LANE)
    take(lanes(client, "dead"), 5)
    other = lanes(client, "other")
    assert ids(other.take_over(0, count=2)) == ["r0", "r1"]
    assert sorted(ids(lanes(client, "third").take_over(0))) == [f"r{n}" for n in range(5)]


def test_released_entry_is_taken_over_at_once(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record(), LANE)
    leaving, other = lanes(client, "leaving"), lanes(client, "other")
    entries = take(leaving, 1)
    leaving.release(entries)
    assert other.wait(1)
    assert other.take_over(60) == entries


@pytest.mark.parametrize("loss", ["flushall", "delete", "group"])
def test_take_makes_the_group_again_when_it_is_lost(client: redis.Redis, renders: Renders, loss: str) -> None:
    mine = lanes(client)
    renders.create(a_record("before"), LANE)
    take(mine, 1)
    if loss == "flushall":
        client.flushall()
    elif loss == "delete":
        client.delete(LANE)
    else:
        renders.cancel("before")
        client.xgroup_destroy(LANE, "final")
    assert mine.heartbeat(mine.take_over(0)) == []
    renders.create(a_record("after"), LANE)
    assert ids(take(mine, 5)) == ["after"]


POISON: list[dict[str, str]] = [
    {"nothing": "here"}, {"id": "r9"}, {"id": "good", "attempt": "one"}, {"id": "gone", "attempt": "0"}, {"id": "\xff"}
]  # fmt: skip


@pytest.mark.parametrize("fields", POISON)
def test_poisoned_entry_of_a_lane_is_dropped_and_the_lane_goes_on(
    client: redis.Redis, renders: Renders, fields: dict[str, str]
) -> None:
    client.xadd(LANE, fields)  # type: ignore[arg-type]
    renders.create(a_record("good"), LANE)
    mine = lanes(client)
    assert mine.tidy() == 1
    assert ids(take(mine, 1)) == ["good"]
    assert client.xlen(LANE) == 1
    assert mine.take_over(0)[0].render_id == "good"


def test_lanes_are_tidied_by_one_worker_for_all(client: redis.Redis, renders: Renders) -> None:
    assert lanes(client).tidy(every_s=30.0) == 0
    client.xadd(LANE, {"nothing": "here"})
    assert lanes(client, "w2").tidy(every_s=30.0) == 0
    client.delete(f"fl:tidying:{LANE}")  # as when that time is over
    assert lanes(client, "w2").tidy(every_s=30.0) == 1


@pytest.mark.parametrize("fields", POISON)
def test_poisoned_entry_of_a_stage_is_dropped_and_the_stage_goes_on(
    client: redis.Redis, renders: Renders, fields: dict[str, str]
) -> None:
    client.xadd("fl:stage:decode", fields)  # type: ignore[arg-type]
    renders.create(a_record("good"), "decode")
    stage = Stream(client, "decode", "decode", "d1")
    assert ids(stage.pull(1)) == ["good"]
    assert client.xlen("fl:stage:decode") == 1


def test_poisoned_entry_is_dropped_when_its_holder_died(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record(), LANE)
    take(lanes(client, "dead"), 1)
    client.delete("fl:render:r1")
    assert lanes(client).take_over(0) == []
    assert client.xlen(LANE) == 0


def test_stage_is_known_by_its_bare_name_and_by_its_key(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record(state=State.QUEUED), "decode")
    assert ids(Stream(client, "fl:stage:decode", "decode", "d1").pull(1)) == ["r1"]
    assert Stream(client, "decode", "decode", "d2").take_over(0)[0].attempt == 0


def test_wait_wakes_within_milliseconds_when_work_is_added(client: redis.Redis, renders: Renders) -> None:
    mine = lanes(client)
    latencies_ms = []
    for number in range(10):
        sent_s: list[float] = []

        def add(name: str = f"r{number}", sent_s: list[float] = sent_s) -> None:
            sent_s.append(time.monotonic())
            renders.create(a_record(name), LANE)

        threading.Timer(0.02, add).start()
        assert mine.wait(5)
        latencies_ms.append((time.monotonic() - sent_s[0]) * 1000)
        take(mine, 1)
    assert min(latencies_ms) < 5
    assert mine.wait(0.05) is False


def test_burst_wakes_more_than_one_idle_worker(client: redis.Redis, renders: Renders) -> None:
    woken = []
    threads = [threading.Thread(target=lambda: woken.append(lanes(client).wait(5))) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    for number in range(3):
        renders.create(a_record(f"r{number}"), LANE)
    for thread in threads:
        thread.join()
    assert woken == [True] * 3


def test_one_signal_waits_for_several_roles(client: redis.Redis, renders: Renders) -> None:
    both = Signal(client, "preview", "final")
    assert both.wait(0.02) is False
    renders.create(a_record(), LANE)
    assert both.wait(1)
    Signal(client, "preview").notify()
    assert both.wait(1)
