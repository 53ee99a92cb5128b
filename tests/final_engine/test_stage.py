"""A stage keeps its hold on what it works on, however long that takes."""

from __future__ import annotations

import threading
import time
from typing import cast

import numpy as np
import pytest
import redis

from core.errors import NonFinite, Unavailable
from core.metrics import Metrics
from core.render import State
from final_engine.decode_stage import DecodeWork
from final_engine.ends import claim
from final_engine.stage import Stage, Work
from sampling.decode import Decoder
from shared_cache.costs import LiveCosts
from shared_cache.lanes import Entry, Stream
from shared_cache.latents import Latents
from shared_cache.renders import Record, Renders
from tests.shared_cache.makers import running

LEASE_S = 0.2


class OneOutage(Stream):
    """A stream whose server is away for one call."""

    failed = False

    def pull(self, count: int) -> list[Entry]:
        if not self.failed:
            self.failed = True
            raise redis.ConnectionError("away")
        return super().pull(count)


def a_stage(
    stream: Stream,
    renders: Renders,
    work: Work,
    lease_s: float = 5.0,
    metrics: Metrics | None = None,
    patience_s: float = 0.0,
) -> Stage:
    return Stage(
        name="decode",
        stream=stream,
        renders=renders,
        expects=State.DECODING,
        work=work,
        lease_s=lease_s,
        max_attempts=3,
        metrics=metrics or Metrics(),
        patience_s=patience_s,
    )


def test_stage_outlives_an_outage_of_the_queue(client: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("final_engine.stage.OUTAGE_WAIT_S", 0.05)
    renders, worked = Renders(client), threading.Event()
    entry, record = running(client)
    assert renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"x")
    stream = OneOutage(client, "decode", "decode", "d1")
    stage = a_stage(stream, renders, lambda entry, record: worked.set(), lease_s=5.0)
    stage.start()
    assert worked.wait(10) and stream.failed
    stage.close()


def test_long_work_is_not_taken_over(client: redis.Redis) -> None:
    renders, begun, end = Renders(client), threading.Event(), threading.Event()
    entry, record = running(client)
    assert renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"x")

    def work(entry: Entry, record: Record) -> None:
        begun.set()
        assert end.wait(10)
        renders.hand_over(entry, record.attempt, "finish", State.CHECKING, "r1", b"y")

    stage = a_stage(Stream(client, "decode", "decode", "slow"), renders, work, LEASE_S)
    stage.start()
    assert begun.wait(10)
    time.sleep(3 * LEASE_S)
    assert Stream(client, "decode", "decode", "other").take_over(LEASE_S) == []
    end.set()
    stage.close()
    found = renders.get("r1")
    assert found is not None and (found.state, found.attempt) == (State.CHECKING, record.attempt)


def test_failed_work_is_counted_once_and_its_time_with_it(client: redis.Redis) -> None:
    renders, metrics = Renders(client), Metrics()
    entry, record = running(client)
    assert renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"x")

    def work(entry: Entry, record: Record) -> None:
        time.sleep(0.05)
        raise RuntimeError("broken")

    stage = a_stage(Stream(client, "decode", "decode", "d1"), renders, work, metrics=metrics)
    stage.start()
    deadline_s = time.monotonic() + 10
    while metrics.registry.get_sample_value("firstlight_renders_total", {"state": "failed"}) != 1:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    stage.close()
    busy_s = metrics.registry.get_sample_value("firstlight_pool_busy_seconds_total", {"pool": "decode"})
    assert busy_s is not None and 0.05 <= busy_s < 5


def test_render_that_was_tried_too_often_is_counted_as_failed_once(client: redis.Redis) -> None:
    renders, metrics = Renders(client), Metrics()
    entry, record = running(client)
    assert renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"x")
    (held,) = Stream(client, "decode", "decode", "dead").pull(1)
    for _ in range(2):
        assert claim(renders, metrics, held.render_id, 3, State.DECODING) is not None
    time.sleep(LEASE_S + 0.05)
    stage = a_stage(Stream(client, "decode", "decode", "d1"), renders, lambda entry, record: None, LEASE_S, metrics)
    stage.start()
    deadline_s = time.monotonic() + 10
    while metrics.registry.get_sample_value("firstlight_renders_total", {"state": "failed"}) == 0:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    stage.close()
    assert metrics.registry.get_sample_value("firstlight_renders_total", {"state": "failed"}) == 1
    found = renders.get("r1")
    assert found is not None and found.state is State.FAILED


class Away:
    """Work that needs what is away for some calls."""

    def __init__(self, renders: Renders, calls: int) -> None:
        self.renders, self.calls, self.tried = renders, calls, 0

    def __call__(self, entry: Entry, record: Record) -> None:
        self.tried += 1
        if self.tried <= self.calls:
            raise Unavailable("the store is away")
        self.renders.finish(record.id, record.attempt, State.DONE)


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("final_engine.stage.FIRST_WAIT_S", 0.3)


def in_decode(client: redis.Redis) -> Renders:
    renders = Renders(client)
    entry, record = running(client)
    assert renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"x")
    return renders


def ended_as(renders: Renders) -> Record:
    deadline_s = time.monotonic() + 10
    while (found := renders.get("r1")) is not None and found.state is State.DECODING:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    assert found is not None
    return found


def test_stage_waits_for_what_its_work_needs_and_keeps_its_hold(client: redis.Redis, short_waits: None) -> None:
    renders = in_decode(client)
    work = Away(renders, calls=2)
    stage = a_stage(Stream(client, "decode", "decode", "d1"), renders, work, LEASE_S, patience_s=10.0)
    stage.start()
    time.sleep(3 * LEASE_S)
    assert Stream(client, "decode", "decode", "other").take_over(LEASE_S) == []
    found = ended_as(renders)
    stage.close()
    assert (found.state, found.attempt, work.tried) == (State.DONE, 1, 3)


def test_render_fails_as_unavailable_when_patience_ends(
    client: redis.Redis, short_waits: None, caplog: pytest.LogCaptureFixture
) -> None:
    renders = in_decode(client)
    work = Away(renders, calls=99)
    stage = a_stage(Stream(client, "decode", "decode", "d1"), renders, work, patience_s=0.5)
    stage.start()
    found = ended_as(renders)
    stage.close()
    assert found.state is State.FAILED and work.tried == 2
    assert found.error == {"code": "unavailable", "message": "the store is away"}
    (told,) = (record for record in caplog.records if record.name == "final_engine.stage")  # a line, no traceback
    assert told.getMessage().endswith("the store is away") and not told.exc_info


def test_cancelled_render_is_not_waited_for(client: redis.Redis, short_waits: None) -> None:
    renders = in_decode(client)
    work = Away(renders, calls=99)
    stage = a_stage(Stream(client, "decode", "decode", "d1"), renders, work, patience_s=10.0)
    stage.start()
    while work.tried == 0:
        time.sleep(0.01)
    renders.cancel("r1")
    time.sleep(0.5)
    assert work.tried == 1
    stage.close()


def test_render_that_waits_when_its_stage_ends_is_taken_over(client: redis.Redis, short_waits: None) -> None:
    renders = in_decode(client)
    work = Away(renders, calls=1)
    first = a_stage(Stream(client, "decode", "decode", "d1"), renders, work, LEASE_S, patience_s=10.0)
    first.start()
    while work.tried == 0:
        time.sleep(0.01)
    first.close()
    time.sleep(LEASE_S)
    second = a_stage(Stream(client, "decode", "decode", "d2"), renders, work, LEASE_S, patience_s=10.0)
    second.start()
    found = ended_as(renders)
    second.close()
    assert (found.state, work.tried) == (State.DONE, 2)


def test_closing_stage_finishes_the_entry_at_work_and_takes_no_other(client: redis.Redis) -> None:
    renders, begun, end = Renders(client), threading.Event(), threading.Event()
    for name in ("r1", "r2"):
        entry, record = running(client, name)
        assert renders.hand_over(entry, record.attempt, "decode", State.DECODING, name, b"x")

    def work(entry: Entry, record: Record) -> None:
        begun.set()
        assert end.wait(10)
        renders.hand_over(entry, record.attempt, "finish", State.CHECKING, record.id, b"y")

    stage = a_stage(Stream(client, "decode", "decode", "leaving"), renders, work)
    stage.start()
    assert begun.wait(10)
    stage.stop_taking()
    threading.Timer(0.1, end.set).start()
    stage.close(10)
    states = [found.state for name in ("r1", "r2") if (found := renders.get(name)) is not None]
    assert states == [State.CHECKING, State.DECODING]


def test_closing_stage_leaves_to_others_what_takes_too_long(client: redis.Redis) -> None:
    renders, begun, end, late = Renders(client), threading.Event(), threading.Event(), threading.Event()
    entry, record = running(client)
    assert renders.hand_over(entry, record.attempt, "decode", State.DECODING, "r1", b"x")
    ends: list[bool] = []

    def work(entry: Entry, record: Record) -> None:
        begun.set()
        assert end.wait(10)
        ends.append(renders.hand_over(entry, record.attempt, "finish", State.CHECKING, "r1", b"y"))
        late.set()

    stage = a_stage(Stream(client, "decode", "decode", "leaving"), renders, work, lease_s=60)
    stage.start()
    assert begun.wait(10)
    stage.close(0.1)
    (taken,) = Stream(client, "decode", "decode", "heir").take_over(60)
    heir = renders.claim(taken.render_id, 3, State.DECODING)
    end.set()
    assert heir is not None and late.wait(10) and ends == [False]


def test_styles_are_named_where_their_latents_cannot_be_decoded(client: redis.Redis) -> None:
    class Broken:
        def decode(self, latents: object) -> None:
            raise NonFinite("the decoder gave pixels that are not finite")

    latents, unused = Latents(client), cast(LiveCosts, None)
    entry, record = running(client)
    latents.put(record.id, {"latents": np.zeros((1, 8, 12, 12), np.float32)})
    work = DecodeWork(decoder=cast(Decoder, Broken()), renders=Renders(client), latents=latents, costs=unused)
    with pytest.raises(NonFinite, match=r"styles: ink:0\.8: the decoder gave"):
        work(entry, record)
