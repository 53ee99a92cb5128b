"""Which engine gets the device, and that nobody starves or spins."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import redis

from core.metrics import Metrics
from sampling.device_loop import OUTAGE_WAIT_S, DeviceLoop
from tests.sampling.conftest import Clock
from tests.telling import lines


def no_wait(timeout_s: float) -> None:
    raise AssertionError("there is work")


class FakeEngine:
    """Has some turns of work, each of which takes time."""

    def __init__(self, name: str, turns: int, log: list[str], clock: Clock, turn_s: float = 0.1) -> None:
        self.name, self.turns, self.log, self.clock, self.turn_s = name, turns, log, clock, turn_s
        self.raises = False

    def tick(self) -> bool:
        if self.raises:
            raise RuntimeError("broken")
        if self.turns == 0:
            return False
        self.turns -= 1
        self.clock.now_s += self.turn_s
        self.log.append(self.name)
        return True

    def stop_taking(self) -> None:
        self.log.append(f"{self.name} takes no more")

    def idle(self) -> bool:
        return self.turns == 0

    def hand_back(self) -> None:
        if self.raises:
            raise ConnectionError("away")
        self.log.append(f"{self.name} hands back {self.turns}")


def engines(preview_turns: int, final_turns: int) -> tuple[FakeEngine, FakeEngine, list[str], Clock]:
    log: list[str] = []
    clock = Clock()
    return FakeEngine("p", preview_turns, log, clock), FakeEngine("f", final_turns, log, clock), log, clock


def loop_of(
    engines: Sequence[FakeEngine], wait: Callable[[float], object], clock: Clock, **changes: float
) -> DeviceLoop:
    return DeviceLoop({engine.name: engine for engine in engines}, wait, clock, Metrics(), **changes)


def test_previews_go_first_while_they_have_work() -> None:
    preview, final, log, clock = engines(3, 2)
    loop = loop_of([preview, final], no_wait, clock)
    while loop.turn():
        pass
    assert "".join(log) == "pppff"


def test_finals_are_asked_when_they_waited_long_enough() -> None:
    preview, final, log, clock = engines(40, 4)
    loop = loop_of([preview, final], no_wait, clock, max_wait_s=1.0)
    for _ in range(30):
        loop.turn()
    gaps = "".join(log).split("f")
    assert log.count("f") >= 2
    assert max(len(gap) for gap in gaps) <= 11  # 1.0 s of 0.1 s turns


def test_three_engines_age_longest_first() -> None:
    preview, final, log, clock = engines(60, 9)
    decode = FakeEngine("d", 9, log, clock)
    loop = loop_of([preview, decode, final], no_wait, clock, max_wait_s=0.5)
    for _ in range(40):
        loop.turn()
    assert min(log.count(name) for name in "dfp") >= 5


def test_run_waits_instead_of_spinning_when_nobody_has_work() -> None:
    preview, final, log, clock = engines(1, 1)
    stop = threading.Event()
    waits: list[float] = []

    def wait(timeout_s: float) -> None:
        waits.append(timeout_s)
        stop.set()

    loop_of([preview, final], wait, clock, idle_wait_s=0.25).run(stop)
    assert (log, waits) == (["p", "f"], [0.25])


def test_run_ends_at_once_when_it_was_stopped_before() -> None:
    preview, final, log, clock = engines(5, 5)
    stop = threading.Event()
    stop.set()
    loop_of([preview, final], no_wait, clock).run(stop)
    assert log == []


def test_engine_that_raises_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    preview, final, log, clock = engines(0, 2)
    preview.raises = True
    loop = loop_of([preview, final], no_wait, clock)
    assert loop.turn()
    assert log == ["f"]
    assert "FakeEngine" in caplog.text


def test_trouble_with_the_queue_is_a_pause_and_no_line_of_ours(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    preview, final, log, clock = engines(0, 0)
    stop, pauses = threading.Event(), []

    def full() -> bool:
        raise redis.OutOfMemoryError("command not allowed")

    def pause(timeout_s: float) -> None:
        pauses.append(timeout_s)
        preview.turns = 1
        monkeypatch.undo()

    monkeypatch.setattr(preview, "tick", full)
    monkeypatch.setattr(stop, "wait", pause)
    loop_of([preview, final], lambda timeout_s: stop.set(), clock).run(stop)
    assert (log, pauses) == (["p"], [OUTAGE_WAIT_S])
    assert not lines(caplog, "sampling")  # the queue's client has told


def test_run_outlives_a_wait_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sampling.device_loop.OUTAGE_WAIT_S", 0.01)
    preview, final, log, clock = engines(0, 0)
    stop, waits = threading.Event(), 0

    def wait(timeout_s: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            final.turns = 1
            raise ConnectionError("away")
        stop.set()

    loop_of([preview, final], wait, clock).run(stop)
    assert (log, waits) == (["f"], 2)


def test_time_at_work_is_counted_for_each_pool_and_no_other_time() -> None:
    preview, final, _, clock = engines(3, 2)
    final.turn_s, metrics = 0.4, Metrics()
    loop = DeviceLoop({"preview": preview, "final": final}, no_wait, clock, metrics)
    while loop.turn():
        clock.now_s += 7.0
    preview.raises = True
    loop.turn()
    busy = [metrics.registry.get_sample_value("firstlight_pool_busy_seconds_total", {"pool": p}) for p in loop._pools]
    assert busy == pytest.approx([0.3, 0.8])


def test_loop_of_no_engine_is_refused() -> None:
    with pytest.raises(ValueError, match="engine"):
        DeviceLoop({}, no_wait, Clock(), Metrics())


LEAVING = ["p takes no more", "f takes no more"]


def test_drain_goes_on_until_all_is_done() -> None:
    preview, final, log, clock = engines(1, 2)
    loop_of([preview, final], no_wait, clock).drain(lambda: False)
    assert log == [*LEAVING, "p", "f", "f", "p hands back 0", "f hands back 0"]


def test_drain_hands_back_what_is_not_done_in_time() -> None:
    preview, final, log, clock = engines(0, 9)
    loop_of([preview, final], no_wait, clock).drain(lambda: clock.now_s >= 0.25)
    assert log == [*LEAVING, "f", "f", "f", "p hands back 0", "f hands back 6"]


def test_drain_waits_for_what_is_under_way_elsewhere() -> None:
    preview, final, _, clock = engines(0, 0)
    final.idle = lambda: len(waits) == 3  # type: ignore[method-assign]
    waits: list[float] = []
    loop_of([preview, final], waits.append, clock, idle_wait_s=0.25).drain(lambda: False)
    assert waits == [0.25] * 3


def test_engine_that_cannot_hand_back_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    preview, final, log, clock = engines(0, 1)
    preview.raises = True
    loop_of([preview, final], no_wait, clock).drain(lambda: True)
    assert log == [*LEAVING, "f hands back 1"] and "could not hand back" in caplog.text
