from __future__ import annotations

from dataclasses import replace

import redis

from core.cost import ANY, CostTable, Part
from shared_cache.costs import Costs, LiveCosts


def table(step_s: float, stretch: float = 1.0) -> CostTable:
    return CostTable({Part.STEP: {"128x128": {2: step_s}}}, stretch)


def test_load_takes_each_part_from_the_slowest_that_measured_it(client: redis.Redis) -> None:
    costs = Costs(client, "0")
    costs.save("fast/final", table(0.1))
    costs.save("slow/final", table(0.3, stretch=1.5))
    costs.save("slow/decode", CostTable({Part.DECODE: {ANY: {1: 0.7}}}))
    found = costs.load()
    assert (found.step_s("128x128", 2), found.stretch, found.of(Part.DECODE)) == (0.3, 1.5, 0.7)


def test_load_guesses_when_nothing_was_measured_or_what_stands_there_is_broken(client: redis.Redis) -> None:
    costs = Costs(client, "0")
    assert costs.load() == CostTable()
    client.hset("fl:costs:0", "x", "{not json")
    assert costs.load() == CostTable()


def test_worker_that_is_long_gone_counts_no_more(client: redis.Redis) -> None:
    now_s = [0.0]
    costs = Costs(client, "0", lambda: now_s[0])
    costs.save("old", table(9.0))
    now_s[0] = 2 * 3600.0
    costs.save("new", table(0.1))
    assert costs.load().step_s("128x128", 2) == 0.1


def test_live_costs_are_saved_for_everybody(client: redis.Redis) -> None:
    now_s = [0.0]
    costs = Costs(client, "0")
    live = LiveCosts(costs, "here/final", CostTable(), clock=lambda: now_s[0])
    live.observe(Part.STEP, 0.2, 2, "128x128")
    now_s[0] = 2.0
    live.observe(Part.STEP, 0.2, 2, "128x128")
    assert costs.load().step_s("128x128", 2) == live.table.step_s("128x128", 2) == 0.2


def test_what_was_calibrated_is_known_before_anything_was_measured(client: redis.Redis) -> None:
    costs = Costs(client, "0")
    LiveCosts(costs, "here/final", table(0.3))
    assert costs.load().step_s("128x128", 2) == 0.3


def test_a_role_tells_of_the_parts_that_it_measures_and_of_no_others(client: redis.Redis) -> None:
    costs, calibrated = Costs(client, "0"), table(0.3)
    LiveCosts(costs, "here/decode", calibrated, (Part.DECODE,))
    final = LiveCosts(costs, "here/final", table(0.1), (Part.STEP,))
    found = costs.load()
    assert (found.step_s("128x128", 2), Part.DECODE in found.seconds) == (0.1, False)
    assert final.table == table(0.1)


def test_caution_is_that_of_the_workers_that_make_steps(client: redis.Redis) -> None:
    costs = Costs(client, "0")
    for name, caution in (("a", 1.0), ("b", 2.0), ("c", 5.0)):
        costs.save(f"{name}/final", replace(table(0.1), caution=caution))
        costs.save(f"{name}/finish", CostTable({Part.PUBLISH: {ANY: {1: 0.1}}}))
    assert costs.load().caution == 2.0
