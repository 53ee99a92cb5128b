"""Promises from made-up costs and queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from core.cost import ANY, CostTable, Part
from core.profile import Bucket, Pool
from core.recipe import Sampler
from core.scheduler import NO_DEADLINE, Claim, claim_of
from final_engine.door import Door, RenderWish
from shared_cache.queue import Ahead
from tests.makers import a_final_recipe

BUCKET = Bucket(128, 128)
TABLE = CostTable(
    {
        Part.ENCODE: {ANY: {1: 0.0}},
        Part.STEP: {ANY: {1: 0.1, 8: 0.8}},
        Part.DECODE: {ANY: {1: 0.5}},
        Part.SAFETY: {ANY: {1: 0.0}},
        Part.PUBLISH: {ANY: {1: 0.0}},
    }
)
POOL = Pool(Sampler.EULER, 25, 3.0, (BUCKET,))
RUNNING = Claim("running", 2.0, 99.0)


def door(
    *waiting: Claim, running: Sequence[Claim] = (), rows: int = 0, before: int | None = None, **changes: Any
) -> Door:
    ahead = Ahead(len(waiting), 0, len(waiting) if before is None else before, tuple(running), rows, waiting)
    usual = {"table": TABLE, "ahead": ahead, "workers": 1, "max_rows": 8, "now_s": 0.0, "pool": POOL}
    return Door(**{**usual, **changes})


def wish(steps: int = 10, deadline_s: float | None = None) -> RenderWish:
    return RenderWish(a_final_recipe(steps=steps), deadline_s=deadline_s)


def test_idle_device_promises_the_time_alone() -> None:
    promise = door().promise(wish(), BUCKET)
    assert (promise.total_s, promise.gpu_s, promise.work_s) == (
        pytest.approx(2.5),
        pytest.approx(2.5),
        pytest.approx(2),
    )
    assert promise.kept


def test_what_is_ahead_is_shared_among_the_workers() -> None:
    ahead = (Claim("a", 6.0, 99.0),)
    four = [Claim(name, 0.5, 99.0) for name in "wxyz"]
    assert door(*ahead, running=[RUNNING]).promise(wish(), BUCKET).total_s == pytest.approx(10.5)
    assert door(*ahead, running=[RUNNING], workers=4).promise(wish(), BUCKET).total_s == pytest.approx(2.5)
    assert door(*ahead, running=four, workers=4).promise(wish(), BUCKET).total_s == pytest.approx(4.4)
    stretched = door(*ahead, table=replace(TABLE, stretch=2.0)).promise(wish(), BUCKET)
    assert stretched.total_s == pytest.approx(2 * 6 + 2 * 2 + 0.5)


def test_deadline_is_kept_in_the_fair_place_where_that_does() -> None:
    promise = door(Claim("a", 4.0, 99.0)).promise(wish(deadline_s=7.0), BUCKET)
    assert promise.kept and promise.total_s == pytest.approx(6.5)


def test_deadline_is_kept_before_those_who_have_time() -> None:
    promise = door(Claim("a", 4.0, 99.0)).promise(wish(deadline_s=3.0), BUCKET)
    assert promise.kept and promise.total_s == pytest.approx(2.5)


def test_deadline_that_makes_another_late_is_not_kept() -> None:
    assert not door(Claim("a", 4.0, 5.0)).promise(wish(deadline_s=3.0), BUCKET).kept


def test_those_that_are_late_anyhow_are_no_reason_to_refuse() -> None:
    assert door(Claim("lost", 4.0, 1.0), before=0).promise(wish(deadline_s=3.0), BUCKET).kept


def test_who_is_in_a_hurry_joins_what_runs_where_there_is_room() -> None:
    """Guided: 2 rows for 10 steps take 2.5 s alone, and a second more beside 1 row."""
    long = [Claim("long", 30.0, 99.0)]
    joined = door(running=long, rows=1).promise(wish(deadline_s=4.0), BUCKET)
    assert joined.kept and joined.total_s == pytest.approx(3.5)
    assert not door(running=long, rows=1).promise(wish(deadline_s=3.0), BUCKET).kept
    assert not door(running=long, rows=7).promise(wish(deadline_s=4.0), BUCKET).kept


def test_what_runs_is_not_made_late_either() -> None:
    assert not door(running=[Claim("a", 2.0, 2.5)], rows=1).promise(wish(deadline_s=4.0), BUCKET).kept


def test_caution_leaves_room_for_what_no_order_foresees_but_never_refuses_an_idle_device() -> None:
    careful = replace(TABLE, caution=2.0)
    others = (Claim("a", 4.0, 99.0),)
    assert door(*others).promise(wish(deadline_s=7.0), BUCKET).kept
    assert not door(*others, Claim("b", 1.0, 5.5), table=careful).promise(wish(deadline_s=5.0), BUCKET).kept
    assert door(*others, Claim("b", 1.0, 5.5)).promise(wish(deadline_s=5.0), BUCKET).kept
    assert door(table=careful).promise(wish(deadline_s=2.6), BUCKET).kept


def test_who_asks_for_no_time_is_let_in_and_bears_to_wait() -> None:
    patient = claim_of("a", 4.0, 0.0, NO_DEADLINE)
    assert door(Claim("a", 400.0, 99.0)).promise(wish(), BUCKET).kept
    assert door(patient).promise(wish(deadline_s=3.0), BUCKET).kept


def test_nearest_fit_is_the_most_steps_that_keep_the_deadline(path_profile: Any) -> None:
    asked = door(pool=path_profile.final)
    assert asked.nearest_fit(wish(steps=50, deadline_s=4.0)) == {"steps": 17}
    assert asked.nearest_fit(wish(steps=50, deadline_s=0.1)) is None


@pytest.fixture
def path_profile(bundle: Any) -> Any:
    from sampling.profile import load_profile

    return load_profile(bundle)


def test_fleet_with_an_idle_worker_starts_at_once_and_a_busy_one_when_the_first_is_free() -> None:
    nine, ten = ([Claim(str(n), 30.0 / count, 99.0) for n in range(count)] for count in (9, 10))
    idle = door(running=nine, workers=10).promise(wish(), BUCKET)
    busy = door(running=ten, workers=10).promise(wish(), BUCKET)
    assert idle.total_s == pytest.approx(2.5)
    assert busy.total_s == pytest.approx(2.5 + 3.0 * 2 / 11)


def test_guidance_that_is_an_input_of_the_network_costs_one_pass() -> None:
    guided = wish()
    assert guided.recipe.guidance_scale > 1
    pools = (replace(POOL, negatives=negatives) for negatives in (True, False))
    twice, once = (door(pool=pool).promise(guided, BUCKET) for pool in pools)
    assert twice.gpu_s == pytest.approx(2.5) and once.gpu_s == pytest.approx(1.5)
