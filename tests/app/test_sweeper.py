"""What ends without a worker: deadlines that pass while a render waits, and models that nobody has any more."""

from __future__ import annotations

import time

import pytest
import redis

from app.sweeper import MODEL_PATIENCE_S, Sweeper
from core.metrics import Metrics
from core.render import State
from shared_cache.lanes import decode_stage
from shared_cache.registry import Registry
from shared_cache.renders import Renders
from tests.sampling.conftest import Clock
from tests.shared_cache.makers import LANE, MODEL, a_record, running
from tests.telling import lines


class Swept:
    """Renders over a real server, and a sweeper whose clock a test sets."""

    def __init__(self, client: redis.Redis) -> None:
        self.renders, self.registry, self.metrics, self.clock = Renders(client), Registry(client), Metrics(), Clock()
        self._sweeper = Sweeper(self.renders, self.registry, self.clock, self.metrics)

    def after(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self._sweeper.sweep()

    def staff(self, version: str, *roles: str) -> None:
        self.registry.announce(f"w{version}", {"roles": roles, "ready": True, "model": "storybook", "version": version})

    def state(self, name: str) -> State:
        record = self.renders.get(name)
        assert record is not None
        return record.state


@pytest.fixture
def swept(connected: redis.Redis) -> Swept:
    return Swept(connected)


def test_sweep_rejects_what_waited_past_its_deadline_and_nothing_else(swept: Swept, connected: redis.Redis) -> None:
    swept.clock.now_s = 100.0
    swept.renders.create(a_record("late", created_s=100.0, deadline_s=5.0), LANE)
    swept.renders.create(a_record("patient", created_s=100.0), LANE)
    running(connected, "at work", created_s=100.0, deadline_s=5.0)
    swept.after(10.0)
    states = [swept.state(name) for name in ("late", "patient", "at work")]
    assert states == [State.REJECTED, State.QUEUED, State.RUNNING]
    late = swept.renders.get("late")
    assert late is not None and late.error is not None and late.error["code"] == "deadline"
    assert swept.metrics.registry.get_sample_value("firstlight_renders_rejected_total", {"reason": "doomed"}) == 1


def test_render_whose_model_nobody_has_any_more_ends_with_the_reason(swept: Swept, connected: redis.Redis) -> None:
    entry, record = running(connected, "decoding")
    assert swept.renders.hand_over(entry, record.attempt, decode_stage(MODEL), State.DECODING, "decoding", b"latents")
    swept.renders.create(a_record("waits"), LANE)
    swept.staff("2", "final", "decode", "finish")
    swept.after(0)
    swept.after(MODEL_PATIENCE_S)
    assert [swept.state(name) for name in ("decoding", "waits")] == [State.DECODING, State.QUEUED]
    swept.staff("2", "final", "decode", "finish")
    swept.after(1)
    for name in ("decoding", "waits"):
        found = swept.renders.get(name)
        assert found is not None and found.state is State.FAILED and found.error is not None
        assert found.error == {"code": "unavailable", "message": f"{MODEL} is not served any more; ask again"}
    assert swept.metrics.registry.get_sample_value("firstlight_renders_total", {"state": "failed"}) == 2
    assert connected.xlen(f"fl:stage:decode:{MODEL}") == connected.xlen(LANE) == 0


def test_what_may_still_be_done_is_waited_for(swept: Swept, connected: redis.Redis) -> None:
    entry, record = running(connected, "decoding")
    swept.renders.hand_over(entry, record.attempt, decode_stage(MODEL), State.DECODING, "decoding", b"latents")
    swept.staff("2", "final", "finish")  # nobody decodes at all: those who do may come back
    for _ in range(2):
        swept.after(2 * MODEL_PATIENCE_S)
    swept.staff("2", "final", "decode", "finish")
    swept.after(1)
    swept.staff("1", "decode")  # one of its own version is there again, though not for long
    swept.after(MODEL_PATIENCE_S)
    swept.registry.withdraw("w1")
    swept.after(MODEL_PATIENCE_S)
    assert swept.state("decoding") is State.DECODING


def test_worker_that_falls_silent_is_told_once_and_one_that_takes_leave_is_not(
    swept: Swept, caplog: pytest.LogCaptureFixture
) -> None:
    info = {"roles": ["final"], "ready": True, "model": "storybook", "version": "0"}
    for name in ("killed", "paused", "left"):
        swept.registry.announce(name, info, ttl_s=0.05)
    swept.staff("0", "final")
    swept.registry.withdraw("left")
    time.sleep(0.1)
    swept.after(1)
    assert not lines(caplog, "app.sweeper")
    swept.registry.announce("paused", info)
    for _ in range(8):
        swept.after(1)
    assert lines(caplog, "app.sweeper") == ["worker killed was not heard of for 15 s; its renders go to others"]
