"""Decisions at a step boundary, with made-up costs: no model, no clock, no queue."""

from __future__ import annotations

from typing import Any

import pytest

from core.cost import ANY, CostTable, Part
from core.scheduler import (
    NO_DEADLINE,
    BatchingMode,
    Claim,
    CohortBatching,
    Forecast,
    Policy,
    StepBatching,
    Task,
    best_order,
    claim_of,
    late_in,
    policy_of,
)

NOTHING_AFTER = {Part.DECODE: {ANY: {1: 0.0}}, Part.SAFETY: {ANY: {1: 0.0}}, Part.PUBLISH: {ANY: {1: 0.0}}}
FREE = CostTable({Part.STEP: {ANY: {1: 0.1, 2: 0.1, 8: 0.1}}, **NOTHING_AFTER})  # a batch costs what one row costs
LINEAR = CostTable({Part.STEP: {ANY: {1: 0.1, 8: 0.8}}, **NOTHING_AFTER})  # every row costs the same


def task(name: str, steps: int = 10, **changes: Any) -> Task:
    return Task(**{"id": name, "bucket": "128x128", "rows": 1, "steps": steps, **changes})


def step_policy(table: CostTable, max_rows: int = 8) -> StepBatching:
    return StepBatching(Forecast(table, max_rows))


def test_forecast_of_tasks_together_shrinks_as_they_finish() -> None:
    times = Forecast(LINEAR, 8).together_s([task("short", 5), task("long", 10)])
    assert times == {"short": pytest.approx(5 * 0.2), "long": pytest.approx(5 * 0.2 + 5 * 0.1)}


def test_forecast_counts_a_forward_for_each_bucket_and_for_each_full_batch() -> None:
    forecast = Forecast(FREE, 2)
    two_buckets = forecast.together_s([task("a"), task("b", bucket="144x112")])
    too_many = forecast.together_s([task("a", rows=2), task("b")])
    assert two_buckets["a"] == too_many["a"] == pytest.approx(10 * 0.2)


def test_forecast_adds_what_follows_denoising_and_stretches_what_is_shared() -> None:
    table = CostTable({Part.STEP: {ANY: {1: 0.1}}, Part.DECODE: {ANY: {1: 1.0}}, **{p: {ANY: {1: 0.5}} for p in (
        Part.SAFETY, Part.PUBLISH)}}, stretch=2.0)  # fmt: skip
    assert Forecast(table, 8).alone_s(task("a")) == pytest.approx(10 * 0.2 + 2.0)


def test_batch_grows_where_rows_are_free() -> None:
    waiting = [task(f"w{n}") for n in range(9)]
    assert step_policy(FREE).decide([task("r")], waiting, 0.0).admit == tuple(f"w{n}" for n in range(7))


def test_batch_stays_small_where_every_row_costs_the_same() -> None:
    assert step_policy(LINEAR).decide([], [task("a"), task("b")], 0.0).admit == ("a",)
    assert step_policy(LINEAR).decide([task("r")], [task("a")], 0.0).admit == ()


def test_short_task_passes_a_long_one() -> None:
    running, waiting = [task("long", 50)], [task("also long", 50), task("short", 5)]
    assert step_policy(LINEAR).decide(running, waiting, 0.0).admit == ("short",)


def test_nothing_passes_a_task_that_waited_long() -> None:
    running, waiting = [task("long", 50)], [task("old", 50), task("short", 5)]
    assert step_policy(LINEAR).decide(running, waiting, 1000.0).admit == ()


def test_task_that_would_be_late_if_it_waited_joins_if_nobody_gets_late() -> None:
    urgent = task("urgent", 10, due_s=2.5)
    assert step_policy(LINEAR).decide([task("r", 20)], [task("first", 20), urgent], 0.0).admit == ("urgent",)
    strict = task("r", 20, due_s=2.2)
    assert step_policy(LINEAR).decide([strict], [urgent], 0.0).admit == ()


def test_order_is_fair_while_everybody_can_be_in_time_and_by_deadline_when_not() -> None:
    fair = [Claim("first", 4.0, 10.0), Claim("second", 2.0, 7.0), Claim("third", 1.0, 50.0)]
    assert [claim.id for claim in best_order(fair, 0.0)] == ["first", "second", "third"]
    assert late_in(fair, 2.0) == {"second"}
    assert [claim.id for claim in best_order(fair, 2.0)] == ["second", "first", "third"]
    assert [claim.id for claim in best_order(fair, 2.0, devices=2)] == ["first", "second", "third"]


def test_task_without_a_deadline_is_wanted_in_a_time_that_a_person_bears() -> None:
    assert claim_of("a", 2.0, 100.0, NO_DEADLINE).due_s == 136.0
    assert claim_of("a", 2.0, 100.0, 103.0).due_s == 103.0


def test_nobody_is_passed_who_would_be_late_for_it() -> None:
    running = [task("long", 50)]
    patient, strict = task("w", 50, due_s=1000.0), task("w", 50, due_s=10.2)
    short = task("short", 5)
    assert step_policy(LINEAR).decide(running, [patient, short], 0.0).admit == ("short",)
    assert step_policy(LINEAR).decide(running, [strict, short], 0.0).admit == ()


def test_doomed_are_named_whether_they_wait_or_run() -> None:
    waiting = [task("late", 10, due_s=0.9), task("just in time", 10, due_s=1.0)]
    running = [task("gone", 10, due_s=0.5), task("nearly", 10, due_s=0.95)]
    decision = step_policy(FREE).decide(running, waiting, 0.0)
    assert decision.doomed == ("gone", "late")
    assert decision.admit == ("just in time",)


def test_task_larger_than_a_batch_runs_alone() -> None:
    assert step_policy(FREE, max_rows=2).decide([], [task("big", rows=8)], 0.0).admit == ("big",)


def test_cohort_starts_together_and_lets_nobody_in() -> None:
    policy = CohortBatching(Forecast(FREE, 4))
    waiting = [task("a"), task("other", bucket="144x112"), task("b", 30), task("c", rows=3), task("d")]
    assert policy.decide([], waiting, 0.0).admit == ("a", "b", "d")
    assert policy.decide([task("r")], waiting, 0.0).admit == ()


@pytest.mark.parametrize("mode", BatchingMode)
def test_every_policy_starts_the_head_of_an_idle_device(mode: BatchingMode) -> None:
    policy: Policy = policy_of(mode, LINEAR, 8)
    assert policy.decide([], [task("a", rows=2)], 0.0).admit == ("a",)
    assert policy.decide([], [], 0.0).admit == ()
