"""A stage keeps its hold on what it works on, however long that takes."""

from __future__ import annotations

import threading
import time

import pytest
import redis

from core.render import State
from final_engine.stage import Stage, Work
from shared_cache.lanes import Entry, Stream
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


def a_stage(stream: Stream, renders: Renders, work: Work, lease_s: float) -> Stage:
    return Stage(
        name="decode",
        stream=stream,
        renders=renders,
        expects=State.DECODING,
        work=work,
        lease_s=lease_s,
        max_attempts=3,
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
