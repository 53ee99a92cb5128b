"""A render ends once, and only the attempt that the record names may write."""

from __future__ import annotations

import random
import threading

import pytest
import redis

from core.render import TERMINAL, State
from shared_cache import keys
from shared_cache.events import Events
from shared_cache.lanes import Stream
from shared_cache.latents import Latents
from shared_cache.renders import Renders
from tests.shared_cache.makers import LANE, a_record, ends, lanes, running, take


@pytest.fixture
def renders(client: redis.Redis) -> Renders:
    return Renders(client)


def test_late_twin_writes_nothing_when_its_entry_was_taken_over(client: redis.Redis, renders: Renders) -> None:
    entry, twin = running(client)
    (taken,) = lanes(client, "other").take_over(0)
    other = renders.claim("r1", 3)
    assert other is not None and (twin.attempt, other.attempt) == (1, 2)
    assert not renders.progress("r1", twin.attempt, 5, 1)
    assert not renders.advance("r1", twin.attempt, State.DECODING)
    assert not renders.hand_over(entry, twin.attempt, "decode", State.DECODING, "r1", b"twin")
    assert not renders.finish("r1", twin.attempt, State.FAILED)
    assert not Events(client).glimpse("r1", twin.attempt, 5, b"jpeg")
    assert renders.get("r1") == other
    assert renders.hand_over(taken, other.attempt, "decode", State.DECODING, "r1", b"other")
    assert Latents(client).get_bytes("r1") == b"other"


def test_late_twin_does_not_take_the_entry_away_from_its_new_holder(client: redis.Redis, renders: Renders) -> None:
    entry, _ = running(client)
    mine, other = lanes(client), lanes(client, "other")
    (taken,) = other.take_over(0)
    mine.ack(entry)
    assert client.xlen(LANE) == 1 and renders.repair() == []
    assert other.heartbeat([taken]) == []
    other.ack(taken)
    assert client.xlen(LANE) == 0


def test_claim_starts_the_steps_again(client: redis.Redis, renders: Renders) -> None:
    _, record = running(client)
    renders.progress("r1", record.attempt, 5, 2)
    again = renders.claim("r1", 3)
    assert again is not None and (again.step, again.batch_sizes, again.attempt) == (0, [], 2)


def test_claim_fails_the_render_with_its_last_error_when_the_attempts_are_used_up(
    client: redis.Redis, renders: Renders
) -> None:
    _, record = running(client)
    cause = {"code": "non-finite", "message": 'NaN in "latents"'}
    assert renders.advance("r1", record.attempt, State.RUNNING, error=cause)
    second = renders.claim("r1", 2)
    assert second is not None and second.error is None
    assert renders.claim("r1", 2) is None
    found = renders.get("r1")
    assert found is not None and found.error is not None and found.state is State.FAILED
    assert (found.error["code"], found.error["last"]) == ("attempts", cause)
    ((_, last),) = Events(client).read("r1")[-1:]
    assert last["error"] == found.error
    assert client.xlen(LANE) == 0
    assert renders.claim("r1", 9) is None


def test_worker_that_dies_every_time_ends_the_render_at_the_cap(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record(), LANE)
    take(lanes(client, "w0"), 1)
    claims = 0
    for number in range(1, 9):
        if renders.claim("r1", 3) is None:
            break
        claims += 1
        lanes(client, f"w{number}").take_over(0)
    assert claims == 3
    assert ends(Events(client).read("r1")) == ["failed"]


def test_cancel_is_immediate_and_stops_the_work(client: redis.Redis, renders: Renders) -> None:
    entry, record = running(client)
    Latents(client).put_bytes("r1", b"x")
    assert renders.cancel("r1")[0].state is State.CANCELLED
    assert renders.cancel("r1")[0].state is State.CANCELLED
    assert not renders.progress("r1", record.attempt, 1, 1)
    assert not renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"late")
    assert renders.claim("r1", 3) is None
    assert ends(Events(client).read("r1")) == ["cancelled"]
    assert client.xlen(LANE) == 0
    assert Latents(client).get_bytes("r1") is None


def test_cancelled_render_is_never_pulled(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record("r1"), LANE)
    renders.create(a_record("r2"), LANE)
    renders.cancel("r1")
    assert [entry.render_id for entry in take(lanes(client), 9)] == ["r2"]


def test_hand_over_moves_state_payload_and_entry_together(client: redis.Redis, renders: Renders) -> None:
    entry, record = running(client)
    fields = {"timings_ms": {"denoise_ms": 12.5}}
    assert renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"\x00\xff", fields)
    assert client.xlen(LANE) == 0
    (next_entry,) = Stream(client, "decode", "decode", "d1").pull(5)
    assert (next_entry.render_id, next_entry.attempt) == ("r1", record.attempt)
    assert Latents(client).get_bytes("r1") == b"\x00\xff"
    found = renders.get("r1")
    assert found is not None and (found.state, found.timings_ms) == (State.DECODING, {"denoise_ms": 12.5})


def test_hand_over_again_adds_nothing(client: redis.Redis, renders: Renders) -> None:
    entry, record = running(client)
    decode = Stream(client, "decode", "decode", "d1")
    for payload in (b"first", b"second"):
        assert renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", payload)
    (decoded,) = decode.pull(5)
    assert Latents(client).get_bytes("r1") == b"first"
    assert renders.hand_over(decoded, record.attempt, "finish", State.CHECKING, "r1", b"png")
    assert renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"late")  # never backwards
    found = renders.get("r1")
    assert found is not None and found.state is State.CHECKING
    assert decode.pull(5) == []
    assert client.xlen(keys.stream("finish")) == 1


def test_slow_stage_is_fenced_when_another_takes_its_entry_over(client: redis.Redis, renders: Renders) -> None:
    entry, record = running(client)
    renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"x")
    (slow,) = Stream(client, "decode", "decode", "slow").pull(1)
    (taken,) = Stream(client, "decode", "decode", "other").take_over(0)
    other = renders.claim("r1", 3, State.DECODING)
    assert other is not None and (other.state, other.attempt) == (State.DECODING, 2)
    assert not renders.hand_over(slow, slow.attempt, "finish", State.CHECKING, "r1", b"slow")
    assert renders.hand_over(taken, other.attempt, "finish", State.CHECKING, "r1", b"other")


def test_finish_takes_the_entry_away_and_tidies(client: redis.Redis, renders: Renders) -> None:
    _, record = running(client)
    assert renders.finish("r1", record.attempt, State.DONE)
    assert not renders.finish("r1", record.attempt, State.FAILED)
    assert client.xlen(LANE) == 0
    assert lanes(client).take_over(0) == []
    assert 6 * 86400 < client.ttl(keys.events("r1")) <= 7 * 86400
    assert client.ttl(keys.render("r1")) > 7 * 86400


@pytest.mark.parametrize("loss", ["stream", "ack"])
def test_repair_gives_a_lost_entry_back(client: redis.Redis, renders: Renders, loss: str) -> None:
    renders.create(a_record("r1"), LANE)
    entry, record = running(client, "r2") if loss == "stream" else (take(lanes(client), 1)[0], None)
    assert renders.repair() == []
    if loss == "stream":
        client.delete(LANE)
    else:
        lanes(client).ack(entry)
    mended = renders.repair()
    assert mended == (["r1", "r2"] if record else ["r1"])
    assert sorted(found.render_id for found in take(lanes(client), 9)) == mended
    assert renders.repair() == []


def test_repair_gives_a_lost_entry_back_to_its_stage(client: redis.Redis, renders: Renders) -> None:
    entry, record = running(client)
    renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"x")
    client.delete(keys.stream("decode"))
    assert renders.repair() == ["r1"]
    (found,) = Stream(client, "decode", "decode", "d1").pull(1)
    assert found.attempt == record.attempt


def test_repair_is_done_by_one_process_for_all(client: redis.Redis, renders: Renders) -> None:
    renders.create(a_record("r1"), LANE)
    assert renders.repair(every_s=30.0) == []
    client.delete(LANE)
    assert Renders(client).repair(every_s=30.0) == []
    client.delete("fl:repairing")  # as when that time is over
    assert Renders(client).repair(every_s=30.0) == ["r1"]


def one_worker(client: redis.Redis, name: str, seed: int, over: threading.Event) -> None:
    """A worker that may stall, vanish, fail or finish at any point."""
    chance, renders, mine = random.Random(seed), Renders(client), lanes(client, name)
    while not over.is_set():
        for entry in take(mine, 2) + mine.take_over(0.005):
            record = renders.claim(entry.render_id, 4)
            if record is None or chance.random() < 0.3:
                continue
            renders.progress(record.id, record.attempt, 1, 2)
            renders.finish(record.id, record.attempt, chance.choice(sorted(TERMINAL)))


def test_every_render_ends_exactly_once_when_workers_fail_and_owners_cancel(
    client: redis.Redis, renders: Renders
) -> None:
    over, names = threading.Event(), [f"r{number}" for number in range(40)]
    threads = [threading.Thread(target=one_worker, args=(client, f"w{n}", n, over)) for n in range(4)]
    for thread in threads:
        thread.start()
    for number, name in enumerate(names):
        renders.create(a_record(name), LANE)
        if number % 5 == 0:
            renders.cancel(name)
    left = threading.Event()
    for _ in range(400):
        if not renders.unfinished():
            break
        left.wait(0.02)
    over.set()
    for thread in threads:
        thread.join()
    events = Events(client)
    assert [len(ends(events.read(name))) for name in names] == [1] * len(names)
    assert client.xlen(LANE) == 0
