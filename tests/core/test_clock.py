from __future__ import annotations

import pytest

from core.clock import SteadyClock


def test_clock_that_is_set_moves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SteadyClock()
    before_s = clock()
    monkeypatch.setattr("core.clock.time", lambda: 0.0)
    assert 0 <= clock() - before_s < 1


def test_origin_is_where_it_starts() -> None:
    assert SteadyClock(1000.0)() == pytest.approx(1000.0, abs=0.5)
