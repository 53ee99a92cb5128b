from __future__ import annotations

import redis

from app.overdue import Overdue
from core.clock import SteadyClock
from core.metrics import Metrics
from core.render import State
from shared_cache.renders import Renders
from tests.shared_cache.makers import LANE, a_record, running


def test_sweep_rejects_what_waited_past_its_deadline_and_nothing_else(connected: redis.Redis) -> None:
    connected.flushall()
    renders = Renders(connected)
    renders.create(a_record("late", created_s=100.0, deadline_s=5.0), LANE)
    renders.create(a_record("patient", created_s=100.0), LANE)
    running(connected, "at work", created_s=100.0, deadline_s=5.0)
    metrics = Metrics()
    Overdue(renders, SteadyClock(110.0), metrics).sweep()
    states = {name: renders.get(name) for name in ("late", "patient", "at work")}
    assert [record.state for record in states.values() if record] == [State.REJECTED, State.QUEUED, State.RUNNING]
    late = states["late"]
    assert late is not None and late.error is not None and late.error["code"] == "deadline"
    assert metrics.registry.get_sample_value("firstlight_renders_rejected_total", {"reason": "doomed"}) == 1
