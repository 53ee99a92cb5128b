"""The short form of benchmarks/growth: nothing that is done for one render or preview looks at all that wait."""

from __future__ import annotations

from benchmarks.growth import by_depth, by_sessions

TIMES = 40  # as many wait
MOST = 3.0  # what grew with them would take far longer; a busy machine does not


def test_what_one_render_costs_does_not_grow_with_those_that_wait() -> None:
    costs, _ = by_depth(rounds=30, depths=(100, 100 * TIMES))
    assert {what: us for what, us in costs.items() if us[str(100 * TIMES)] > MOST * us["100"]} == {}


def test_what_one_preview_costs_does_not_grow_with_those_who_type() -> None:
    costs = by_sessions(rounds=1, sessions=(5, 5 * TIMES))
    assert {what: us for what, us in costs.items() if us[str(5 * TIMES)] > MOST * us["5"]} == {}
