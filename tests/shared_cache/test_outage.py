"""Those who run the app read of an outage when it begins and when it is over, and not in between."""

from __future__ import annotations

import pytest

from shared_cache.outage import Fault, Outage
from tests.sampling.conftest import Clock
from tests.telling import lines

REFUSED, LOADING = Fault("nobody listens", "start it"), Fault("it reads its data", "wait")


def test_outage_is_one_line_for_each_remedy_and_one_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outage = Outage("the mill stands", "the mill runs", clock=clock)
    outage.worked()
    for fault in (REFUSED, REFUSED, LOADING, REFUSED):
        outage.failed(fault)
        clock.now_s += 3
    for _ in range(3):
        outage.worked()
    outage.failed(REFUSED)
    begun = [
        "the mill stands: nobody listens; what to do: start it",
        "the mill stands: it reads its data; what to do: wait",
    ]
    assert lines(caplog, "shared_cache.outage") == [*begun, "the mill runs again after 12 s", begun[0]]


def test_what_comes_and_goes_is_one_outage(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    outage = Outage("it refuses", "it takes", quiet_s=5.0, clock=clock)
    for _ in range(4):
        outage.failed(REFUSED)
        outage.worked()
        clock.now_s += 3
        outage.worked()
    assert len(lines(caplog, "shared_cache.outage")) == 1
    clock.now_s += 3
    outage.worked()
    outage.worked()
    assert lines(caplog, "shared_cache.outage")[1:] == ["it takes again after 9 s"]
